"""What an exchange of next to nothing costs, beside a call that does nothing at all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastjax
from fastjax.cli.bench.device_workload import AXIS, DeviceWorkload
from fastjax.cli.bench.measure import interleave
from fastjax.traced import contract

EMPTY = "empty call"
EMPTY_SAME = "empty call, same arguments"


def measure(
    mesh: jax.sharding.Mesh, servers: Sequence[int], row_bytes: int, rounds: int
) -> dict[str, list[float]]:
    """Times an exchange of one row for each peer, planning included, under "auto".

    Beside it, an FFI call that does nothing: with one small array, and with the exchange's own
    arguments; and the exchange with a plan made beforehand.
    """
    devices = mesh.devices.size
    workload = DeviceWorkload(mesh, np.ones((devices, devices), np.int64), row_bytes, seed=0)
    small = jax.device_put(
        jnp.zeros(devices, jnp.int32), jax.sharding.NamedSharding(mesh, jax.P(AXIS))
    )
    on_devices = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=jax.P(AXIS), out_specs=jax.P(AXIS)
    )
    empty = jax.jit(on_devices(_empty, check_vma=False))
    empty_same = workload.program(_empty_same, check_vma=False)
    runs: dict[str, Callable[[], object]] = {
        EMPTY: lambda: empty(small).block_until_ready(),
        EMPTY_SAME: functools.partial(workload.run, empty_same),
    }
    for count in servers:
        options = {"axis_name": AXIS, "topology": fastjax.Topology(count, devices // count)}
        name = f"{count}x{devices // count}"
        program = workload.program(functools.partial(fastjax.fast_ragged_all_to_all, **options))
        runs[f"plan + exchange {name}"] = functools.partial(workload.run, program)
        planning = functools.partial(fastjax.plan_ragged_all_to_all, **options)
        plan = jax.jit(on_devices(planning))(workload.send_sizes)
        runs[f"exchange, planned before {name}"] = functools.partial(
            workload.run, workload.program(_with_plan), plan
        )
    for run in runs.values():
        run()
    return interleave(runs, rounds)


def _empty(x: jax.Array) -> jax.Array:
    return jax.ffi.ffi_call(contract.EMPTY.target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def _empty_same(operand: jax.Array, output: jax.Array, *metadata: jax.Array) -> jax.Array:
    del operand, metadata  # passed all the same: the program keeps arguments that it does not use
    result = jax.ShapeDtypeStruct(output.shape, output.dtype)
    return jax.ffi.ffi_call(contract.EMPTY.target, result, input_output_aliases={0: 0})(output)


def _with_plan(*operands: Any) -> jax.Array:
    *exchanged, plan = operands
    return fastjax.fast_ragged_all_to_all(*exchanged, axis_name=AXIS, plan=plan)
