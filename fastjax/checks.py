"""Checks of arguments that plans on the host and plans in programs have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastjax.errors import ArgumentError, TopologyError
from fastjax.topology import Topology

DEFAULT_ROW_BYTES = 4096
"""Bytes of a row where nobody says: those of a token of 2,048 elements in bf16."""

_TOO_MANY_DEVICES = 2**15


def check_topology(topology: Any) -> None:
    """Refuses what is not a topology."""
    if not isinstance(topology, Topology):
        raise ArgumentError(f"topology must be a fastjax.Topology, got {topology!r}.")
    if topology.num_devices >= _TOO_MANY_DEVICES:
        raise TopologyError(
            f"{topology.servers} x {topology.devices_per_server} devices are more than the "
            f"{_TOO_MANY_DEVICES - 1} that can be planned for."
        )


def check_row_bytes(row_bytes: Any) -> None:
    """Refuses sizes that no row has."""
    if not isinstance(row_bytes, (int, np.integer)) or not 1 <= row_bytes < 2**40:
        raise ArgumentError(f"row_bytes must be an integer from 1 to 2**40 - 1, got {row_bytes!r}.")
