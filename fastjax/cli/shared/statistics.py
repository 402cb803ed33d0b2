"""Statistics of traffic and of exchanges, as records have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import fastjax
from fastjax.cli.shared import measure, units
from fastjax.cli.shared.rates import RATES


def fabric_statistics(topology: fastjax.Topology) -> dict[str, Any]:
    """What is known of a topology."""
    names = ("servers", "devices_per_server", *RATES)
    found = {name: getattr(topology, name) for name in names}
    return found | {"failed_nics": list(topology.failed_nics)}


def traffic_statistics(plan: fastjax.Plan, source: str) -> dict[str, Any]:
    """What is known of a plan's traffic, which is from there."""
    traffic = plan.traffic
    sent, received = traffic.sum(axis=1), traffic.sum(axis=0)
    between = between_servers(plan)
    return {
        "source": source,
        "devices": plan.topology.num_devices,
        "rows": int(traffic.sum()),
        "row_bytes": plan.row_bytes,
        "bytes": int(traffic.sum()) * plan.row_bytes,
        "max_device_rows": int(max(sent.max(), received.max())),
        "device_skew": _skew(sent, received),
        "server_skew": _skew(between.sum(axis=1), between.sum(axis=0)),
        "gini_pairs": fastjax.traffic.gini(traffic),
        "gini_received": fastjax.traffic.gini(received),
    }


def between_servers(plan: fastjax.Plan) -> np.ndarray:
    """Rows from server to server; none that stay inside."""
    shape = (plan.topology.servers, plan.topology.devices_per_server) * 2
    between = plan.traffic.reshape(shape).sum(axis=(1, 3))
    np.fill_diagonal(between, 0)
    return between


def _skew(sent: np.ndarray, received: np.ndarray) -> float | None:
    """The busiest one's rows, sent or received, by the mean; None where there are none."""
    mean = float(sent.mean())
    return float(max(sent.max(), received.max())) / mean if mean else None


def bandwidths(plan: fastjax.Plan, seconds: float) -> dict[str, float | None]:
    """GB/s of an exchange that takes so long; None where there is nothing to move."""
    moving = plan.traffic.any()
    found = {"algbw": measure.algbw, "busbw": measure.busbw, "fast_algbw": measure.mean_bw}
    return {
        name: bandwidth(plan.traffic, plan.row_bytes, seconds) if moving else None
        for name, bandwidth in found.items()
    }


def traffic_section(traffic: Mapping[str, Any], fabric: Mapping[str, Any]) -> dict[str, str]:
    """`traffic_statistics` for people, with the servers and failed NICs of `fabric_statistics`."""
    failed = ", ".join(map(str, fabric["failed_nics"]))
    return {
        "source": traffic["source"],
        "devices": f"{traffic['devices']} in {fabric['servers']} x "
        f"{fabric['devices_per_server']}, servers x devices of each",
        **({"failed NICs": f"of devices {failed}"} if failed else {}),
        "rows": f"{traffic['rows']} of {units.size(traffic['row_bytes'])}, "
        f"{units.size(traffic['bytes'])} in all",
        "busiest device": times(traffic["device_skew"], "the mean device"),
        "busiest server": times(traffic["server_skew"], "the mean server, of rows between them"),
        "Gini coefficient": f"{traffic['gini_pairs']:.3f} of pairs, "
        f"{traffic['gini_received']:.3f} of receivers",
    }


def times(ratio: float | None, what: str) -> str:
    """A ratio in words."""
    return "nothing to compare" if ratio is None else f"{ratio:.3f} x {what}"


def rate(rate: float | None) -> str:
    """GB/s in words."""
    return "-" if rate is None else f"{rate:.2f} GB/s"


__all__ = [
    "bandwidths",
    "between_servers",
    "fabric_statistics",
    "rate",
    "times",
    "traffic_section",
    "traffic_statistics",
]
