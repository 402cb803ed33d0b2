"""The programs of `fastjax.loopback`: all ranks of an exchange, executed by one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from fastjax import config, jax_compat, scheduling
from fastjax.checks import DEFAULT_ROW_BYTES, check_row_bytes, check_topology
from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.scheduling import check_scheduler, check_scheduler_fits
from fastjax.topology import Topology
from fastjax.traced import custom_calls
from fastjax.traced.contract import EXCHANGE, PLAN, CustomCall, Metadata
from fastjax.traced.fallback import BUILT_FOR
from fastjax.traced.narrow_types import byte_sized
from fastjax.traced.plan_spec import PlanSpec


def loopback_ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    topology: Topology,
    scheduler: str | None = None,
) -> jax.Array:
    """Executes every rank of a `fast_ragged_all_to_all` on the one device that holds the arrays.

    Args:
      operand: rows to send, shape (ranks, rows, ...).
      output: the result where no row arrives, shape (ranks, output rows, ...).
      input_offsets: integers, shape (ranks, k * ranks), like the three that follow: what each rank
        would pass, by rank.
      send_sizes: rows of each slice.
      output_offsets: where each slice lands in the receiver's output.
      recv_sizes: rows that arrive.
      topology: the fabric of the ranks; servers are domains between which rows go as messages.
      scheduler: one of `fastjax.schedulers()`; by default that of `fastjax.options`.

    Returns:
      The results of all ranks, in the shape of output.

    Raises:
      ArgumentError: shapes or types do not fit each other or the topology.
      TopologyError: the topology is none.
      OptionError: there is no such scheduler.
      jax.errors.JaxRuntimeError: while running, as `fast_ragged_all_to_all` does; or there is no
        GPU library in this installation.
    """
    operand, output = jnp.asarray(operand), jnp.asarray(output)
    metadata = Metadata(*map(jnp.asarray, (input_offsets, send_sizes, output_offsets, recv_sizes)))
    row_bytes = operand.dtype.itemsize * int(np.prod(operand.shape[2:]))
    spec = _spec(topology, scheduler, row_bytes)
    _check_metadata(spec, **metadata._asdict())
    ranks = topology.servers * topology.devices_per_server
    for name, rows in (("operand", operand), ("output", output)):
        if rows.ndim < 2 or rows.shape[0] != ranks:
            raise ArgumentError(
                f"{name} must have shape (ranks, rows, ...), with {ranks} ranks; got {rows.shape}."
            )
    if operand.shape[2:] != output.shape[2:] or operand.dtype != output.dtype:
        raise ArgumentError(
            "operand and output must agree in their type and behind their rows, got "
            f"{operand.dtype}{list(operand.shape)} and {output.dtype}{list(output.shape)}."
        )
    carried, restore = byte_sized(operand, output)
    options = {"reverse": False, "transposed_table": False}
    options["check_overlaps"] = config.current().check_overlaps
    options |= {"drop": True} if config.current().overflow == "drop" else {}
    operands = (*carried, *metadata)
    return restore(_play("loopback_ragged_all_to_all", EXCHANGE, operands, spec, options))


def loopback_plan(
    send_sizes: jax.Array,
    *,
    topology: Topology,
    scheduler: str | None = None,
    row_bytes: int = DEFAULT_ROW_BYTES,
    rank: int = 0,
) -> jax.Array:
    """Plans as a device of a GPU program does: from counts in its memory to a table in its memory.

    Args:
      send_sizes: those of every rank, shape (ranks, k * ranks), integers.
      topology: the fabric of the ranks.
      scheduler: one of `fastjax.schedulers()`; by default that of `fastjax.options`.
      row_bytes: bytes of a row, as far as known.
      rank: whose stage table is wanted.

    Returns:
      That rank's stage table, int32.

    Raises:
      ArgumentError: send_sizes does not fit the topology, or there is no such rank.
      TopologyError: the topology is none.
      OptionError: there is no such scheduler.
      jax.errors.JaxRuntimeError: while running, if a size is negative.
    """
    sizes = jnp.asarray(send_sizes)
    check_row_bytes(row_bytes)
    spec = _spec(topology, scheduler, row_bytes)
    _check_metadata(spec, send_sizes=sizes)
    if not 0 <= rank < sizes.shape[0]:
        raise ArgumentError(f"rank must be 0 to {sizes.shape[0] - 1}, got {rank}.")
    return _play("loopback_plan", PLAN, (sizes,), spec, {"rank": rank})


def _spec(topology: Topology, scheduler: str | None, row_bytes: int) -> PlanSpec:
    check_topology(topology)
    name = config.current().scheduler if scheduler is None else scheduler
    check_scheduler(name, "scheduler")
    if scheduling.ALL[name].solves:
        raise ArgumentError(f"scheduler {name!r} plans on the host only; name another.")
    check_scheduler_fits(name, topology)
    ranks = topology.servers * topology.devices_per_server
    return PlanSpec(topology, tuple(range(ranks)), name, max(1, row_bytes))


def _check_metadata(spec: PlanSpec, **arrays: jax.Array) -> None:
    ranks = len(spec.rank_of)
    shapes = {name: array.shape for name, array in arrays.items()}
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.integer):
            raise ArgumentError(f"{name} must be integer type, got {array.dtype}.")
        fits = array.ndim == 2 and array.shape[0] == ranks and array.shape[1] % ranks == 0
        if not fits or array.shape[1] == 0 or len(set(shapes.values())) > 1:
            raise ArgumentError(
                f"offsets and sizes must have one shape, (ranks, k * ranks) with {ranks} ranks; "
                f"got {shapes}."
            )


def _play(
    operation: str,
    call: CustomCall,
    operands: Sequence[jax.Array],
    spec: PlanSpec,
    options: Mapping[str, object],
) -> jax.Array:
    params = {"operation": operation, "call": call, "spec": spec, "options": (*options.items(),)}
    return _loopback_p.bind(*operands, **params, timeout_ms=config.current().timeout_ms)


def _lowering(
    ctx: jax_compat.LoweringContext,
    *values: jax_compat.MlirValue,
    operation: str,
    call: CustomCall,
    spec: PlanSpec,
    options: tuple[tuple[str, object], ...],
    timeout_ms: int,
    platform: str,
) -> list[jax_compat.MlirValue]:
    if platform not in ("cpu", *BUILT_FOR):
        raise UnsupportedError(
            f"fastjax.loopback cannot run on {platform}: it is fastjax's own, for cpu, cuda and "
            "rocm. Run it there; no operation of JAX takes its place."
        )
    ranks = np.arange(len(spec.rank_of))
    site = custom_calls.call_site(
        ctx, operation, "'loopback'", ranks[None], ranks.tolist(), timeout_ms, platform
    )
    named = zip(call.operands, custom_calls.operands_of(ctx, values), strict=True)
    attributes = site | custom_calls.planning(spec) | dict(options)
    return [custom_calls.emit(ctx, call, dict(named), attributes)]


_loopback_p = Primitive("loopback")


@_loopback_p.def_abstract_eval
def _type(
    first: jax_compat.Aval,
    *others: jax_compat.Aval,
    call: CustomCall,
    spec: PlanSpec,
    **_: object,
) -> jax_compat.Aval:
    if call is EXCHANGE:
        return others[0].update(weak_type=False)
    int32 = np.dtype(np.int32)
    return first.update(shape=(spec.table_words,), dtype=int32, weak_type=False)


jax_compat.set_impl(_loopback_p)
jax_compat.set_lowering(_loopback_p, _lowering)
