"""Rows of the slowest device, with and without levelled experts.

    python benchmarks/balance.py --json benchmarks/results/balance.json

8 CPU devices play servers of 8, 4 and 2. Compiled layers count their rows (`moe.LayerStats`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import records
from moe_layer import TRACES, routing

import fastjax
from fastjax import moe
from fastjax.traffic import gini, zipf

SCHEMA = "fastjax-balance-1"
DEVICES = 8
SERVERS = (1, 2, 4)
LAWS = ("Gini 0.15", "Gini 0.25", "Gini 0.35", "Zipf 0.8", "Zipf 1.2", "one device", "one expert")
TRACED_LAYERS = 3
P = jax.P
Loads = dict[str, np.ndarray]
"""Experts of all devices' tokens, by what chose them."""


def drawn(experts: int, top_k: int, tokens: int) -> Loads:
    """Choices of so many tokens of each device."""
    return {law: ids_of(law, experts, top_k, tokens) for law in LAWS}


def traced(experts: int) -> Loads:
    """Choices of a model that has been trained, in each of its layers."""
    choices = (routing(experts, layer) for layer in range(TRACED_LAYERS))
    return {
        f"trained, layer {layer}": ids.reshape(-1, ids.shape[-1]).astype(np.int32)
        for layer, ids in enumerate(choices)
    }


def ids_of(law: str, experts: int, top_k: int, tokens: int) -> np.ndarray:
    """Experts of all devices' tokens, different ones; -1 where a law has too few."""
    rng, count = np.random.default_rng(1), DEVICES * tokens
    ids = np.full((count, top_k), -1, np.int32)
    if law.startswith("one"):
        few = experts // DEVICES if law == "one device" else 1
        chosen = np.argsort(rng.random((count, few)), 1)[:, :top_k]
    else:
        name, value = law.split()
        exponent = float(value) if name == "Zipf" else exponent_of(float(value), experts)
        keys = rng.gumbel(size=(count, experts))
        keys += np.log(rng.permutation(zipf(experts, exponent)))
        chosen = np.argsort(-keys, 1)[:, :top_k]
    ids[:, : chosen.shape[1]] = chosen
    return ids


def exponent_of(coefficient: float, experts: int) -> float:
    """The exponent of Zipf's law whose shares have a Gini coefficient."""
    exponents = np.linspace(0, 2, 2001)
    found = [gini(zipf(experts, float(e))) for e in exponents]
    return float(exponents[np.searchsorted(found, coefficient)])


def on_devices(function: Any, **options: Any) -> Any:
    """The layer of all devices, which returns what it did, too."""
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def local(x: jax.Array, ids: jax.Array, params: Any) -> Any:
        made, stats = moe.layer(
            x, ids, None, params, expert_fn=function, axis_name="x", return_stats=True, **options
        )
        return made, jax.tree.map(lambda count: count[None], stats)

    return jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x"))


def cells_of(servers: int, experts: int, loads: Loads) -> list[dict[str, Any]]:
    """What a layer did for each load."""
    topology = fastjax.Topology(servers, DEVICES // servers)
    options = {"num_experts": experts, "topology": topology, "buffer_factor": 1.25}
    run = jax.jit(on_devices(lambda rows, scale: rows * scale, balance=True, **options))
    cells = []
    for law, ids in loads.items():
        x, params = np.ones((len(ids), 1), np.float32), np.ones((experts, 1), np.float32)
        _, stats = run(x, ids, params)
        after = np.asarray(stats.rows, np.int64).reshape(servers, -1)
        home = np.asarray(stats.expert_rows[0], np.int64).reshape(servers, DEVICES // servers, -1)
        mean = np.maximum(after.mean(1), 1)
        cells.append(
            {
                "servers": servers,
                "experts": experts,
                "top_k": ids.shape[1],
                "law": law,
                "before": round(float((home.sum(2).max(1) / mean).max()), 3),
                "after": round(float((after.max(1) / mean).max()), 4),
                "copies": int(stats.copies.max()),
                "rounds": int(stats.rounds[0]),
                "dropped": int(stats.dropped.sum()),
            }
        )
    return cells


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    rows = [
        [
            f"{cell['servers']} x {DEVICES // cell['servers']}",
            cell["law"],
            *(str(cell[key]) for key in ("experts", "top_k", "before", "after")),
            *(str(cell[key]) for key in ("copies", "rounds", "dropped")),
        ]
        for cell in record["loads"]
    ]
    header = ["servers", "load", "experts", "choices", "at home", "levelled", "copies", "rounds"]
    about = (
        f"Rows of the slowest device of a server by the mean of that server, {record['tokens']} "
        "tokens a device, counted in compiled layers: *at home*, and *levelled* with at most four "
        "copies of experts a device. *copies*: the most on a device. *rounds*: of room for 1.25 "
        "times the mean of all devices, so more than one where servers are uneven. *trained*: the "
        f"[traces](../traces/README.md) of a model's training, {record['traced_tokens']} tokens a "
        "device; an auxiliary loss had kept its experts about equally busy."
    )
    parts = [f"# {title}", about, records.table([*header, "dropped"], rows)]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the page, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048, help="of a device")
    parser.add_argument("--experts", type=int, nargs="+", default=(64, 256))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", DEVICES)
    record = records.stamp(SCHEMA) | {"tokens": options.tokens}
    record["traced_tokens"] = routing(min(TRACES)).shape[1]
    of_traces = [(experts, traced(experts)) for experts in TRACES]
    of_laws = [
        (experts, drawn(experts, top_k, options.tokens))
        for experts in options.experts
        for top_k in (1, 4, 8)
    ]
    record["loads"] = [
        cell
        for servers in SERVERS
        for experts, loads in (*of_laws, *of_traces)
        for cell in cells_of(servers, experts, loads)
    ]
    records.publish(page(record, "Levelled experts"), record, options.json)
    return int(any(cell["dropped"] for cell in record["loads"]))


if __name__ == "__main__":
    sys.exit(main())
