"""What is known of a plan: as a record, and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import fastjax
from fastjax import _core, scheduler_traits
from fastjax.cli.shared import units
from fastjax.cli.shared.rates import preset_section
from fastjax.cli.shared.statistics import (
    bandwidths,
    between_servers,
    fabric_statistics,
    rate,
    times,
    traffic_section,
    traffic_statistics,
)
from fastjax.schedule.transfers import SCALE_OUT

SCHEMA = "fastjax-plan-1"


def record(plan: fastjax.Plan, source: str, preset: str | None = None) -> dict[str, Any]:
    """Everything that is known of a plan; times in µs, bandwidths in GB/s."""
    return {
        "schema": SCHEMA,
        "traffic": traffic_statistics(plan, source),
        "fabric": {"preset": preset, **fabric_statistics(plan.topology)},
        "plan": _plan(plan),
        "time": _time(plan),
        "explanation": plan.explain(),
    }


def _plan(plan: fastjax.Plan) -> dict[str, Any]:
    transfers = plan.transfers
    kept = transfers["src"] == transfers["dst"]
    rows = [int(transfers["rows"][(transfers["phase"] == p) & ~kept].sum()) for p in range(4)]
    length = round(_length(plan))
    bound = _length_bound(plan)
    number = scheduler_traits.ALL[plan.scheduler].number
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


def _length(plan: fastjax.Plan) -> float:
    """Rows of the fastest NIC that stages take together, each as long as its busiest NIC."""
    topology, devices = plan.topology, plan.topology.num_devices
    sent = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    nics = np.array(topology.nic_bandwidths or [1.0] * devices)
    relative = np.divide(nics.max(), nics, out=np.full(devices, np.inf), where=nics > 0)
    stage = sent["stage"].astype(np.int64)
    longest = np.zeros(plan.num_stages)
    for end in ("src", "dst"):
        keys, index = np.unique(stage * devices + sent[end], return_inverse=True)
        rows = np.bincount(index, weights=sent["rows"], minlength=len(keys))
        np.maximum.at(longest, keys // devices, rows * relative[keys % devices])
    return float(longest.sum())


def _length_bound(plan: fastjax.Plan) -> float:
    """Rows of the fastest NIC that the busiest server's NICs cannot do with less than, each."""
    topology = plan.topology
    between = between_servers(plan)
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


def sections(found: Mapping[str, Any], asked_for: str) -> dict[str, dict[str, str]]:
    """The record for people, without the explanation.

    Args:
      found: from `record`.
      asked_for: the scheduler that was asked for.
    """
    fabric, plan, time = (found[k] for k in ("fabric", "plan", "time"))
    chosen = "" if plan["scheduler"] == asked_for else f", chosen by {asked_for}"
    up, out = (fabric[f"scale_{tier}_bandwidth"] / 1e9 for tier in ("up", "out"))
    return {
        "traffic": traffic_section(found["traffic"], fabric),
        "plan": {
            "scheduler": plan["scheduler"] + chosen,
            "stages": f"{plan['stages']}, different matchings: {plan['matchings']}",
            "length of stages": f"{plan['length_rows']} rows, "
            + times(plan["length_by_bound"], "the least possible"),
            "rows moved inside": f"{plan['rows_balanced']} to balance, "
            f"{plan['rows_redistributed']} to redistribute, {plan['rows_local']} local",
            "rows moved between": f"{plan['rows_scale_out']}; {plan['rows_kept']} stay "
            "on their device",
            "stage table": f"{units.size(plan['table_bytes'])} a device",
        },
        f"time, for {up:g} GB/s a device inside servers and {out:g} between them": {
            **preset_section(fabric["preset"]),
            "lower bound": f"{time['lower_bound_us']:.1f} µs",
            "predicted": f"{time['predicted_us']:.1f} µs, "
            + times(time["predicted_by_bound"], "the lower bound"),
            "planning": f"{time['planning_us']:.1f} µs of that, about",
            "algbw": f"{rate(time['algbw'])}, as nccl-tests has it: of the busiest device",
            "busbw": f"{rate(time['busbw'])}, as nccl-tests has it",
            "FAST's algbw": f"{rate(time['fast_algbw'])}, of the mean device",
        },
    }


__all__ = ["SCHEMA", "record", "sections"]
