"""A layer of experts, forward and backward: `fastjax.moe` against all_to_alls that pad.

    python benchmarks/moe_layer.py --json moe_layer.json

Tokens are routed as trained models route them, by every scheduler. All runs side by side on 8 CPU
devices of one process, by turns, and results and gradients are compared. The exit status is 1 where
`auto`, with the most experts, is not --least times as fast as the dense layer.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import records
from workloads import TRACE, TRACE_DEVICES

import fastjax
from fastjax import moe, scheduling
from fastjax.cli.bench.device_workload import start_backend
from fastjax.traffic import read_routing_trace

sys.path.append(str(Path(__file__).parents[1] / "examples"))

from moe_lm import layers, report

SCHEMA = "fastjax-moe-layer-1"
AXIS = layers.AXIS
DENSE = "dense, padded"
TRACES = {8: TRACE, 32: TRACE.with_name("train_moe_32.jsonl.gz")}
MOST_DIFFERENCE = 1e-5
SETTLE_SECONDS = 0.1
_P = jax.P(AXIS)


def routing(experts: int, layer: int = 0) -> np.ndarray:
    """Experts of the tokens in all steps of a layer of a trace, shape (devices, tokens, k)."""
    found = [r for r in read_routing_trace(TRACES[experts]) if r.layer == layer]
    by_device = [[r.top_indices for r in found if r.rank == d] for d in range(TRACE_DEVICES)]
    return np.array([np.concatenate(each) for each in by_device])


class Problem:
    """A layer's arrays on the devices.

    Args:
      ids: what tokens chose, shape (devices, tokens, k).
      experts: how many there are.
      width, inner: of a token, and inside an expert.
    """

    def __init__(self, ids: np.ndarray, experts: int, width: int, inner: int) -> None:
        self.ids, self.experts = ids, experts
        kind = jax.sharding.AxisType.Auto
        self.mesh = jax.make_mesh((TRACE_DEVICES,), (AXIS,), axis_types=(kind,))
        rng = np.random.default_rng(0)
        tokens, top_k = ids.shape[0] * ids.shape[1], ids.shape[2]
        weights = rng.uniform(0.1, 1, (tokens, top_k))
        up = rng.normal(0, width**-0.5, (experts, width, inner))
        down = rng.normal(0, inner**-0.5, (experts, inner, width))
        self._floats = self._put((rng.normal(size=(tokens, width)), weights, (up, down)))
        self._ids = self._put(ids.reshape(tokens, top_k))
        self._ct = self._put(rng.normal(size=(tokens, width)))

    def _put(self, tree: Any) -> Any:
        sharding = jax.NamedSharding(self.mesh, _P)

        def one(array: np.ndarray) -> Any:
            narrow = np.float32 if np.issubdtype(array.dtype, np.floating) else np.int32
            return jax.device_put(array.astype(narrow), sharding)

        return jax.tree.map(one, tree)

    def program(self, layer: layers.Layer) -> Callable[[], Any]:
        """The layer's result and its gradients, of tokens, weights and experts."""

        def local(ids: Any, floats: Any, ct: Any) -> Any:
            result, back = jax.vjp(lambda x, w, e: layer(x, ids, w, e)[0], *floats)
            return result, back(ct)

        mapped = jax.jit(jax.shard_map(local, mesh=self.mesh, in_specs=_P, out_specs=_P))
        return lambda: jax.block_until_ready(mapped(self._ids, self._floats, self._ct))


def without_experts(experts: int, options: dict[str, Any]) -> layers.Layer:
    """The layer with nothing between dispatch and combine."""

    def layer(x: Any, ids: Any, weights: Any, _: Any) -> tuple[Any, None]:
        rows, _, handle = moe.dispatch(x, ids, num_experts=experts, axis_name=AXIS, **options)
        return moe.combine(rows, handle, weights), None

    return layer


def largest_difference(got: Any, wanted: Any) -> float:
    """Of any element, as a share of its array's largest."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    return max(
        float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max())
        for a, b in pairs
    )


def measure(problem: Problem, servers: int, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of everything, and how far results are from the dense layer's.

    Raises:
      AssertionError: they are not the same.
    """
    topology = fastjax.Topology(servers, TRACE_DEVICES // servers)
    whole = {DENSE: problem.program(layers.dense)}
    parts = {}
    for name in scheduling.schedulers_in_programs():
        options = {"scheduler": name, "topology": topology}
        whole[name] = problem.program(layers.fast(**options))
        parts[name] = problem.program(without_experts(problem.experts, options))
    wanted = whole[DENSE]()
    differs = {name: largest_difference(run(), wanted) for name, run in whole.items()}
    wrong = {name: value for name, value in differs.items() if not value <= MOST_DIFFERENCE}
    if wrong:
        raise AssertionError(f"results differ from the dense layer's, by {wrong} of the largest.")
    for run in parts.values():  # compiles it
        run()
    exchanges = {f"{name}: exchanges": run for name, run in parts.items()}
    seconds = report.by_turns(whole | exchanges, rounds, settle=SETTLE_SECONDS)
    cells = []
    for name in whole:
        ratios = np.array(seconds[DENSE]) / np.array(seconds[name])
        cell: dict[str, Any] = {"experts": problem.experts, "layer": name}
        cell |= {"ms": records.spread(seconds[name]), "differs": differs[name]}
        cell["faster"] = float(np.median(seconds[DENSE]) / np.median(seconds[name]))
        cell["ratios"] = [float(r) for r in np.percentile(ratios, [25, 75])]
        if name != DENSE:
            cell["exchange"] = records.spread(seconds[f"{name}: exchanges"])
        cells.append(cell)
    return cells


def as_table(cells: Sequence[dict[str, Any]]) -> str:
    header = ["layer", "ms", "quartiles", "times as fast", "quartiles of the rounds' ratios"]
    header += ["exchanges alone, ms", "quartiles", "share"]
    rows = []
    for cell in cells:
        low, high = cell["ratios"]
        row = [cell["layer"], *_times(cell["ms"])]
        row += [f"{cell['faster']:.2f}", f"{low:.2f} to {high:.2f}"]
        alone = ["-"] * 3
        if "exchange" in cell:
            share = cell["exchange"]["median"] / cell["ms"]["median"]
            alone = [*_times(cell["exchange"]), f"{share:.1%}"]
        rows.append(row + alone)
    return records.table(header, rows, texts=1)


def _times(ms: dict[str, float]) -> list[str]:
    return [f"{ms['median']:.2f}", f"{ms['p25']:.2f} to {ms['p75']:.2f}"]


def page(record: dict[str, Any], title: str) -> str:
    work = record["workload"]
    servers = work["servers"]
    about = (
        f"A layer of experts, forward and backward, on {TRACE_DEVICES} CPU devices of one process: "
        f"{work['tokens']} tokens a device, {work['width']} wide, {work['inner']} inside an "
        "expert, float32, routed as the models of `benchmarks/traces` do in their first layer. "
        f"The planner is told of {servers} x {TRACE_DEVICES // servers} servers x devices. "
        f"{work['rounds']} rounds, each of which runs everything once in random order.\n\n"
        f"*{DENSE}*: `jax.lax.all_to_all` with room for every token at every expert, and experts "
        "on all that room in one batched product: what can be compiled beforehand without "
        "dropping tokens. The others: `moe.dispatch`, `moe.grouped_map` and `moe.combine`, by "
        "scheduler. *exchanges alone*: the same without experts, forward and backward: sorting, "
        "counts, the plan, four exchanges, and adding up; its share is of that program's time, "
        "not of a part of the layer's: what overlaps counts in full."
    )
    parts = [f"# {title}", about]
    for routed in record["routing"]:
        cells = [cell for cell in record["cells"] if cell["experts"] == routed["experts"]]
        padding = routed["experts"] / routed["top_k"]
        rows = (
            f"Each token goes to {routed['top_k']}; the busiest expert gets "
            f"{routed['busiest']:.1%} of the rows, the idlest {routed['idlest']:.1%}. The dense "
            f"layer has {padding:g} times the rows that there are, and multiplies as much more."
        )
        parts += [f"## {routed['experts']} experts", rows, as_table(cells)]
    worst = max(cell["differs"] for cell in record["cells"])
    checked = (
        "Results and all gradients are the dense layer's: no element differs by more than "
        f"{worst:.1e} of its array's largest."
    )
    return "\n\n".join([*parts, checked, records.conditions(record)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    known = list(TRACES)
    parser.add_argument("--experts", type=int, nargs="+", default=known, choices=known)
    parser.add_argument("--tokens", type=int, default=512, help="of a device; at most 1024")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--inner", type=int, default=512)
    parser.add_argument("--servers", type=int, default=2, choices=(1, 2, 4, 8))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--least", type=float, default=5.0, help="times the dense layer's speed")
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.width, options.inner, options.tokens) < 1:
        parser.error("--rounds, --width, --inner and --tokens must be 1 or more.")
    traced = min(routing(experts).shape[1] for experts in options.experts)
    if options.tokens > traced:
        parser.error(f"--tokens must be {traced} at most: the traces have no more.")
    start_backend(TRACE_DEVICES)
    names = ("tokens", "width", "inner", "servers", "rounds", "least")
    record = records.stamp(SCHEMA)
    record["workload"] = {name: getattr(options, name) for name in names}
    record |= {"routing": [], "cells": []}
    for experts in options.experts:
        ids = routing(experts)[:, : options.tokens]
        rows = np.bincount(ids.ravel(), minlength=experts) / ids.size
        routed = {"experts": experts, "top_k": ids.shape[2]}
        routed |= {"busiest": float(rows.max()), "idlest": float(rows.min())}
        record["routing"].append(routed)
        problem = Problem(ids, experts, options.width, options.inner)
        record["cells"] += measure(problem, options.servers, options.rounds)
    records.publish(page(record, "A layer of experts"), record, options.json)
    auto = {c["experts"]: c["faster"] for c in record["cells"] if c["layer"] == "auto"}
    return 0 if auto[max(auto)] >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
