"""Traffic that is made to be hard: the worst that planners are given."""

from __future__ import annotations

import numpy as np

from fastjax.traffic import checks
from fastjax.traffic.generators import Seed, check_rows, round_shares


def single_flow(
    devices: int, rows: int, *, sender: int = 0, receiver: int | None = None
) -> np.ndarray:
    """All rows go from one device to one other.

    Hard for FAST (arXiv 2505.09764) where the two are in different servers and have different local
    indices: all but one m-th of the rows have to move inside both servers, m being the devices of
    one, to use all their NICs, and nothing else is going on that could hide it.

    Args:
      devices: number of devices.
      rows: rows that are sent.
      sender: who sends them.
      receiver: who receives them; by default the last device.

    Returns:
      Traffic, int64, shape (devices, devices).

    Raises:
      ArgumentError: an argument is out of bounds.
    """
    check_rows(devices, rows)
    checks.integer("sender", sender, 0, devices - 1)
    last = devices - 1 if receiver is None else checks.integer("receiver", receiver, 0, devices - 1)
    traffic = np.zeros((devices, devices), np.int64)
    traffic[sender, last] = rows
    return traffic


def hot_receiver(devices: int, rows: int, *, receiver: int = 0, share: float = 0.5) -> np.ndarray:
    """Every device sends one of them a share of its rows, and the others equal parts of the rest.

    As with one popular expert. Sent without a schedule, all senders meet at one NIC; FAST spreads
    rows that enter the server over all of its NICs.

    Args:
      devices: number of devices.
      rows: rows that a device sends, including those that it keeps.
      receiver: who is hot.
      share: of every device's rows that it receives, from 0 to 1.

    Returns:
      Traffic, int64, shape (devices, devices).

    Raises:
      ArgumentError: an argument is out of bounds.
    """
    check_rows(devices, rows)
    checks.integer("receiver", receiver, 0, devices - 1)
    checks.real("share", share, 0, 1)
    shares = np.full(devices, (1 - share) / max(1, devices - 1))
    shares[receiver] = share if devices > 1 else 1
    return np.tile(round_shares(shares, rows), (devices, 1))


def permutation(devices: int, rows: int, *, seed: Seed = 0) -> np.ndarray:
    """Every device sends all its rows to one, no two to the same, none to itself.

    One stage can carry it if each server has one target server; a random permutation has several,
    so that planners show how they split and merge them.

    Args:
      devices: number of devices; with one, it keeps its rows.
      rows: rows that a device sends.
      seed: of the permutation, one of those that are a single cycle.

    Returns:
      Traffic, int64, shape (devices, devices).

    Raises:
      ArgumentError: an argument is out of bounds.
    """
    check_rows(devices, rows)
    cycle = np.random.default_rng(seed).permutation(devices)
    traffic = np.zeros((devices, devices), np.int64)
    traffic[cycle, np.roll(cycle, 1)] = rows
    return traffic


__all__ = ["hot_receiver", "permutation", "single_flow"]
