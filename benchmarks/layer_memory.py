"""The memory of dispatch and combine: tokens that cross once to each server, or once a choice.

    python benchmarks/layer_memory.py --json benchmarks/results/layer_memory.json

8 CPU devices play 4 servers of 2, and experts do nothing. Each program runs in a process of its
own: what XLA's buffer assignment needs besides arguments and results, and by how much the resident
memory of the process grows at most while the program runs, with results and what exchanges stage.
"""

import argparse
import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import records

import fastjax
from fastjax import moe

SCHEMA = "fastjax-layer-memory-1"
SERVERS, DEVICES, EXPERTS, TOP_K = 4, 8, 64, 8
MIB = 2**20


def layer_program(
    *, once: bool, backward: bool, factor: float | None
) -> tuple[Any, jax.sharding.Mesh]:
    """Dispatch and combine of all devices, with gradients of tokens and weights or without.

    Returns:
      The program, not yet compiled, and its mesh.
    """
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

    spec = jax.P("x")
    function = with_gradients if backward else layer
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)), mesh


def operands_of(mesh: jax.sharding.Mesh, tokens: int, width: int) -> list[jax.Array]:
    """bf16 tokens, weights, and different experts for each token, over the devices."""
    rng = np.random.default_rng(0)
    rows = DEVICES * tokens
    ids = np.argsort(rng.random((rows, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int32)
    x = rng.standard_normal((rows, width), np.float32).astype(jnp.bfloat16)
    weights = rng.random((rows, TOP_K), np.float32)
    spread = jax.NamedSharding(mesh, jax.P("x"))
    return jax.block_until_ready([jax.device_put(a, spread) for a in (x, weights, ids)])


def resident(name: str) -> int:
    """Of this process, in bytes: VmRSS, or VmHWM, the most since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(name + ":")]
    return int(line.split()[1]) * 1024


def measure(
    *, once: bool, backward: bool, factor: float | None, tokens: int, width: int
) -> dict[str, Any]:
    """One program, in this process.

    Returns:
      MiB for each device: `temporary`, by buffer assignment; `peak`, of the process, beyond its
      operands and its program.
    """
    jax.config.update("jax_num_cpu_devices", DEVICES)
    program, mesh = layer_program(once=once, backward=backward, factor=factor)
    operands = operands_of(mesh, tokens, width)
    compiled = program.lower(*operands).compile()
    analysis = compiled.memory_analysis()
    ctypes.CDLL(None).malloc_trim(0)  # what compiling has left
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    jax.block_until_ready(compiled(*operands))
    return {
        "once": once,
        "backward": backward,
        "factor": factor,
        "temporary": analysis.temp_size_in_bytes / MIB,
        "peak": (resident("VmHWM") - before) / DEVICES / MIB,
    }


def in_a_child(cell: dict[str, Any]) -> dict[str, Any]:
    """`measure`, in a new process."""
    command = [sys.executable, __file__, "--cell", json.dumps(cell)]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.getenv("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    about = (
        f"Dispatch and combine on {record['devices']} CPU devices that play {record['servers']} "
        f"servers, of experts that do nothing: {record['tokens']} bf16 tokens of "
        f"{2 * record['width']} bytes on each device, and {record['top_k']} choices of "
        f"{record['experts']} experts. *temporary*: what XLA's buffer assignment needs "
        "besides arguments and results. *peak*: by how much the resident memory of the process "
        "grows at most while the program runs for the first time; it includes results and what "
        "exchanges stage. All in MiB for each device; each program in a process of its own, "
        f"{record['runs']} times: median (least to most)."
    )
    header = ["program", "`buffer_factor`", "temporary: once", "each choice", "peak: once"]
    header += ["each choice"]
    rows = []
    for backward, factor in programs():
        found = {
            once: [
                cell
                for cell in record["cells"]
                if (cell["once"], cell["backward"], cell["factor"]) == (once, backward, factor)
            ]
            for once in (True, False)
        }
        row = ["forward and backward" if backward else "forward"]
        row.append("default" if factor is None else f"{factor:g}")
        for name, once in itertools.product(("temporary", "peak"), (True, False)):
            points = np.percentile([cell[name] for cell in found[once]], [50, 0, 100])
            spread = "" if points[1] == points[2] else f" ({points[1]:.0f} to {points[2]:.0f})"
            row.append(f"{points[0]:.0f}{spread}")
        rows.append(row)
    table = records.table(header, rows)
    return "\n\n".join([f"# {title}", about, table, records.conditions(record)]) + "\n"


def programs() -> list[tuple[bool, float | None]]:
    """Whether there are gradients, and the room."""
    return list(itertools.product((False, True), (None, 1.25)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=2048, help="of a device")
    parser.add_argument("--width", type=int, default=2048, help="elements of a token")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cell", help="measure one program here, and print what was found")
    options = parser.parse_args(arguments)
    if options.cell is not None:
        print(json.dumps(measure(**json.loads(options.cell))))
        return 0
    record = records.stamp(SCHEMA)
    record |= {"servers": SERVERS, "devices": DEVICES, "experts": EXPERTS, "top_k": TOP_K}
    record |= {"tokens": options.tokens, "width": options.width, "runs": options.runs}
    record["cells"] = [
        in_a_child(
            {
                "once": once,
                "backward": backward,
                "factor": factor,
                "tokens": options.tokens,
                "width": options.width,
            }
        )
        for backward, factor in programs()
        for once in (True, False)
        for _ in range(options.runs)
    ]
    records.publish(page(record, "The memory of a layer"), record, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
