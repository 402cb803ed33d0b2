"""Statistics of traffic and of exchanges: as records have them, and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import fastjax
from fastjax.cli.shared import text
from fastjax.cli.shared.rates import RATES


def fabric_statistics(topology: fastjax.Topology) -> dict[str, Any]:
    """What is known of a topology."""
    names = ("servers", "devices_per_server", *RATES)
    found = {name: getattr(topology, name) for name in names}
    return found | {"failed_nics": list(topology.failed_nics)}


def traffic_statistics(plan: fastjax.Plan, source: str) -> dict[str, Any]:
    """What is known of a plan's traffic, which is from there."""
    traffic, topology = plan.traffic, plan.topology
    sent, received = traffic.sum(axis=1), traffic.sum(axis=0)
    shape = (topology.servers, topology.devices_per_server) * 2
    between = traffic.reshape(shape).sum(axis=(1, 3))
    np.fill_diagonal(between, 0)
    return {
        "source": source,
        "devices": topology.num_devices,
        "rows": int(traffic.sum()),
        "row_bytes": plan.row_bytes,
        "bytes": int(traffic.sum()) * plan.row_bytes,
        "max_device_rows": int(max(sent.max(), received.max())),
        "device_skew": _skew(sent, received),
        "server_skew": _skew(between.sum(axis=1), between.sum(axis=0)),
        "gini_pairs": fastjax.traffic.gini(traffic),
        "gini_received": fastjax.traffic.gini(received),
    }


def _skew(sent: np.ndarray, received: np.ndarray) -> float | None:
    """The busiest one's rows, sent or received, by the mean; None where there are none."""
    mean = float(sent.mean())
    return float(max(sent.max(), received.max())) / mean if mean else None


def bandwidths(traffic: np.ndarray, row_bytes: int, seconds: float) -> dict[str, float | None]:
    """GB/s of an exchange that takes so long; None where there is nothing to move.

    algbw and busbw as nccl-tests has them: of the busiest device, sending or receiving, and that
    without the share that would stay on it if all had as much. fast_algbw as the FAST paper has
    it: of the mean device.
    """
    if not traffic.any():
        return dict.fromkeys(("algbw", "busbw", "fast_algbw"))
    devices = len(traffic)
    busiest = float(max(traffic.sum(axis=0).max(), traffic.sum(axis=1).max()))
    algbw = busiest * row_bytes / seconds / 1e9
    return {
        "algbw": algbw,
        "busbw": algbw * (devices - 1) / devices,
        "fast_algbw": float(traffic.sum()) * row_bytes / devices / seconds / 1e9,
    }


def traffic_section(traffic: Mapping[str, Any], fabric: Mapping[str, Any]) -> text.Section:
    """`traffic_statistics` for people, with the servers and failed NICs of `fabric_statistics`."""
    failed = ", ".join(map(str, fabric["failed_nics"]))
    return {
        "source": traffic["source"],
        "devices": devices_in_words(traffic["devices"], fabric),
        **({"failed NICs": f"of devices {failed}"} if failed else {}),
        "rows": f"{traffic['rows']} of {text.size(traffic['row_bytes'])}, "
        f"{text.size(traffic['bytes'])} in all",
        "busiest device": times(traffic["device_skew"], "the mean device"),
        "busiest server": times(traffic["server_skew"], "the mean server, of rows between them"),
        "Gini coefficient": f"{traffic['gini_pairs']:.3f} of pairs, "
        f"{traffic['gini_received']:.3f} of receivers",
    }


def devices_in_words(devices: int, fabric: Mapping[str, Any]) -> str:
    """How they are split into servers."""
    split = f"{fabric['servers']} x {fabric['devices_per_server']}"
    return f"{devices} in {split}, servers x devices of each"


def times(ratio: float | None, what: str) -> str:
    """A ratio in words."""
    return "nothing to compare" if ratio is None else f"{ratio:.3f} x {what}"
