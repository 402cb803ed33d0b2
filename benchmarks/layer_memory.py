"""The memory of dispatch and combine: tokens that cross once to each server, or once a choice.

    python benchmarks/layer_memory.py --json benchmarks/results/layer_memory.json

8 CPU devices play 4 servers of 2, and experts do nothing. Programs are compiled, and XLA's buffer
assignment says what they need besides arguments and results.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import records

import fastjax
from fastjax import moe

SCHEMA = "fastjax-layer-memory-1"
SERVERS, DEVICES, EXPERTS, TOP_K = 4, 8, 64, 8
MIB = 2**20


def temporary(
    *, once: bool, backward: bool, factor: float | None, tokens: int, width: int
) -> float:
    """MiB of each device that dispatch and combine need, with gradients or without."""
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    options: dict[str, Any] = {
        "num_experts": EXPERTS,
        "axis_name": "x",
        "topology": fastjax.Topology(SERVERS, DEVICES // SERVERS),
        "buffer_factor": factor,
        "deduplicate": once,
    }

    def layer(x: jax.Array, weights: jax.Array, ids: jax.Array) -> jax.Array:
        rows, _, handle = moe.dispatch(x, ids, weights=weights, **options)
        return moe.combine(rows, handle)

    def with_gradients(x: jax.Array, weights: jax.Array, ids: jax.Array) -> Any:
        result, back = jax.vjp(lambda x, weights: layer(x, weights, ids), x, weights)
        return result, *back(result)

    spec, rows = jax.P("x"), DEVICES * tokens
    function = with_gradients if backward else layer
    program = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))
    kinds = ((width, jnp.bfloat16), (TOP_K, jnp.float32), (TOP_K, jnp.int32))  # x, weights, ids
    spread = jax.NamedSharding(mesh, spec)
    operands = [jax.ShapeDtypeStruct((rows, n), dtype, sharding=spread) for n, dtype in kinds]
    analysis: Any = program.lower(*operands).compile().memory_analysis()
    return analysis.temp_size_in_bytes / MIB


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    about = (
        f"Dispatch and combine on {record['devices']} CPU devices that play {record['servers']} "
        f"servers, of experts that do nothing: {record['tokens']} bf16 tokens of "
        f"{2 * record['width']} bytes on each device, and {record['top_k']} choices of "
        f"{record['experts']} experts: what XLA's buffer assignment needs besides arguments and "
        "results, in MiB for each device, where a token crosses once to each server, and once for "
        "each choice."
    )
    found = {
        (cell["once"], cell["backward"], cell["factor"]): cell["temporary"]
        for cell in record["cells"]
    }
    rows = [
        [
            "forward and backward" if backward else "forward",
            "default" if factor is None else f"{factor:g}",
            *(f"{found[once, backward, factor]:.0f}" for once in (True, False)),
        ]
        for backward, factor in programs()
    ]
    table = records.table(["program", "`buffer_factor`", "once", "each choice"], rows)
    return "\n\n".join([f"# {title}", about, table, records.conditions(record)]) + "\n"


def programs() -> list[tuple[bool, float | None]]:
    """Whether there are gradients, and the room."""
    return list(itertools.product((False, True), (None, 1.25)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=2048, help="of a device")
    parser.add_argument("--width", type=int, default=2048, help="elements of a token")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", DEVICES)
    record = records.stamp(SCHEMA)
    record |= {"servers": SERVERS, "devices": DEVICES, "experts": EXPERTS, "top_k": TOP_K}
    record |= {"tokens": options.tokens, "width": options.width}
    kinds = [
        {"once": once, "backward": backward, "factor": factor}
        for backward, factor in programs()
        for once in (True, False)
    ]
    record["cells"] = [
        kind | {"temporary": temporary(**kind, tokens=options.tokens, width=options.width)}
        for kind in kinds
    ]
    records.publish(page(record, "The memory of a layer"), record, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
