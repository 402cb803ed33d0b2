"""A plan in figures: as a record, and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import fastjax
from fastjax import _core
from fastjax.cli.shared import measure, units
from fastjax.cli.shared.rates import RATES
from fastjax.schedule.steps import steps_of
from fastjax.schedule.transfers import SCALE_OUT

SCHEMA = "fastjax-plan-1"


def record(plan: fastjax.Plan, source: str) -> dict[str, Any]:
    """Everything that is known of a plan; times in µs, bandwidths in GB/s."""
    return {
        "schema": SCHEMA,
        "traffic": traffic_figures(plan, source),
        "fabric": fabric_figures(plan.topology),
        "plan": _plan(plan),
        "time": _time(plan),
        "explanation": plan.explain(),
    }


def fabric_figures(topology: fastjax.Topology) -> dict[str, Any]:
    """What is known of a topology."""
    names = ("servers", "devices_per_server", *RATES)
    found = {name: getattr(topology, name) for name in names}
    return found | {"failed_nics": list(topology.failed_nics)}


def traffic_figures(plan: fastjax.Plan, source: str) -> dict[str, Any]:
    """What is known of a plan's traffic, which is from there."""
    traffic = plan.traffic
    sent, received = traffic.sum(axis=1), traffic.sum(axis=0)
    between = _between_servers(plan)
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


def _between_servers(plan: fastjax.Plan) -> np.ndarray:
    """Rows from server to server; none that stay inside."""
    shape = (plan.topology.servers, plan.topology.devices_per_server) * 2
    between = plan.traffic.reshape(shape).sum(axis=(1, 3))
    np.fill_diagonal(between, 0)
    return between


def _skew(sent: np.ndarray, received: np.ndarray) -> float | None:
    """The busiest one's rows, sent or received, by the mean; None where there are none."""
    mean = float(sent.mean())
    return float(max(sent.max(), received.max())) / mean if mean else None


def _plan(plan: fastjax.Plan) -> dict[str, Any]:
    transfers = plan.transfers
    kept = transfers["src"] == transfers["dst"]
    rows = [int(transfers["rows"][(transfers["phase"] == p) & ~kept].sum()) for p in range(4)]
    length = round(float(steps_of(plan).rows[SCALE_OUT].sum()))
    bound = _length_bound(plan)
    # The solver's plans are FAST's, with other stages.
    planner = "fast" if plan.scheduler == "optimal" else plan.scheduler
    number = _core.scheduler_names().index(planner)
    return {
        "scheduler": plan.scheduler,
        "stages": plan.num_stages,
        "matchings": plan.num_matchings,
        "transfers": len(transfers),
        "length_rows": length,
        "length_bound_rows": bound,
        "length_by_bound": length / bound if bound else None,
        "rows_local": rows[0],
        "rows_balanced": rows[1],
        "rows_scale_out": rows[2],
        "rows_redistributed": rows[3],
        "rows_kept": int(transfers["rows"][kept].sum()),
        "table_bytes": _core.table_words(plan.topology.words, number) * 4,
    }


def _length_bound(plan: fastjax.Plan) -> float:
    """Rows of the fastest NIC that the busiest server's NICs cannot do with less than, each."""
    topology = plan.topology
    between = _between_servers(plan)
    busiest = np.maximum(between.sum(axis=1), between.sum(axis=0))
    nics = np.array(topology.nic_bandwidths or [1.0] * topology.num_devices)
    together = nics.reshape(topology.servers, -1).sum(axis=1) / nics.max()
    return float((busiest / np.where(busiest > 0, together, 1)).max())


def _time(plan: fastjax.Plan) -> dict[str, Any]:
    seconds, bound = plan.predicted_time(), plan.lower_bound()
    return {
        "lower_bound_us": bound * 1e6,
        "predicted_us": seconds * 1e6,
        "planning_us": plan.planning_time() * 1e6,
        "predicted_by_bound": seconds / bound if bound else None,
        **bandwidths(plan, seconds),
    }


def bandwidths(plan: fastjax.Plan, seconds: float) -> dict[str, float | None]:
    """GB/s of an exchange that takes so long; None where there is nothing to move."""
    moving = plan.traffic.any()
    found = {"algbw": measure.algbw, "busbw": measure.busbw, "fast_algbw": measure.mean_bw}
    return {
        name: bandwidth(plan.traffic, plan.row_bytes, seconds) if moving else None
        for name, bandwidth in found.items()
    }


def sections(figures: Mapping[str, Any], asked_for: str) -> dict[str, dict[str, str]]:
    """The record for people, without the explanation.

    Args:
      figures: from `record`.
      asked_for: the scheduler that was asked for.
    """
    fabric, plan, time = (figures[k] for k in ("fabric", "plan", "time"))
    chosen = "" if plan["scheduler"] == asked_for else f", chosen by {asked_for}"
    up, out = (fabric[f"scale_{tier}_bandwidth"] / 1e9 for tier in ("up", "out"))
    return {
        "traffic": traffic_section(figures["traffic"], fabric),
        "plan": {
            "scheduler": plan["scheduler"] + chosen,
            "stages": f"{plan['stages']}, different matchings: {plan['matchings']}",
            "length of stages": f"{plan['length_rows']} rows, "
            + _times(plan["length_by_bound"], "the least possible"),
            "rows moved inside": f"{plan['rows_balanced']} to balance, "
            f"{plan['rows_redistributed']} to redistribute, {plan['rows_local']} local",
            "rows moved between": f"{plan['rows_scale_out']}; {plan['rows_kept']} stay "
            "on their device",
            "stage table": f"{units.size(plan['table_bytes'])} a device",
        },
        f"time, for {up:g} GB/s a device inside servers and {out:g} between them": {
            "lower bound": f"{time['lower_bound_us']:.1f} µs",
            "predicted": f"{time['predicted_us']:.1f} µs, "
            + _times(time["predicted_by_bound"], "the lower bound"),
            "planning": f"{time['planning_us']:.1f} µs of that, about",
            "algbw": f"{_rate(time['algbw'])}, as nccl-tests has it: of the busiest device",
            "busbw": f"{_rate(time['busbw'])}, as nccl-tests has it",
            "FAST's algbw": f"{_rate(time['fast_algbw'])}, of the mean device",
        },
    }


def traffic_section(traffic: Mapping[str, Any], fabric: Mapping[str, Any]) -> dict[str, str]:
    """`traffic_figures` for people, with the servers and failed NICs of `fabric_figures`."""
    failed = ", ".join(map(str, fabric["failed_nics"]))
    return {
        "source": traffic["source"],
        "devices": f"{traffic['devices']} in {fabric['servers']} x "
        f"{fabric['devices_per_server']}, servers x devices of each",
        **({"failed NICs": f"of devices {failed}"} if failed else {}),
        "rows": f"{traffic['rows']} of {units.size(traffic['row_bytes'])}, "
        f"{units.size(traffic['bytes'])} in all",
        "busiest device": _times(traffic["device_skew"], "the mean device"),
        "busiest server": _times(traffic["server_skew"], "the mean server, of rows between them"),
        "Gini coefficient": f"{traffic['gini_pairs']:.3f} of pairs, "
        f"{traffic['gini_received']:.3f} of receivers",
    }


def _times(ratio: float | None, what: str) -> str:
    return "nothing to compare" if ratio is None else f"{ratio:.3f} x {what}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2f} GB/s"


__all__ = [
    "SCHEMA",
    "bandwidths",
    "fabric_figures",
    "record",
    "sections",
    "traffic_figures",
    "traffic_section",
]
