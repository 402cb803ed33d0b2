"""Statistics of traffic and of exchanges, for people."""

from __future__ import annotations

import numpy as np

import fastjax
from fastjax.cli.shared import text


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


def traffic_section(plan: fastjax.Plan, source: str) -> text.Section:
    """A plan's traffic, which is from there."""
    traffic, topology = plan.traffic, plan.topology
    sent, received, rows = traffic.sum(axis=1), traffic.sum(axis=0), int(traffic.sum())
    shape = (topology.servers, topology.devices_per_server) * 2
    between = traffic.reshape(shape).sum(axis=(1, 3))
    np.fill_diagonal(between, 0)
    busiest_server = _skew(between.sum(axis=1), between.sum(axis=0))
    pairs, receivers = fastjax.traffic.gini(traffic), fastjax.traffic.gini(received)
    failed = ", ".join(map(str, topology.failed_nics))
    return {
        "source": source,
        "devices": devices_in_words(topology),
        **({"failed NICs": f"of devices {failed}"} if failed else {}),
        "rows": f"{rows} of {text.size(plan.row_bytes)}, {text.size(rows * plan.row_bytes)} in all",
        "busiest device": f"{_skew(sent, received)} x the mean device",
        "busiest server": f"{busiest_server} x the mean server, of rows between them",
        "Gini coefficient": f"{pairs:.3f} of pairs, {receivers:.3f} of receivers",
    }


def _skew(sent: np.ndarray, received: np.ndarray) -> str:
    """The busiest one's rows, sent or received, by the mean; a dash where there are none."""
    mean = float(sent.mean())
    return text.number(float(max(sent.max(), received.max())) / mean if mean else None)


def devices_in_words(topology: fastjax.Topology) -> str:
    """How they are split into servers."""
    split = f"{topology.servers} x {topology.devices_per_server}"
    return f"{topology.num_devices} in {split}, servers x devices of each"
