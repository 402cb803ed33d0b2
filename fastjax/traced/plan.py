"""Plans inside a traced program."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from fastjax import _core, config, jax_compat, network
from fastjax.checks import check_row_bytes, check_topology
from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.scheduling import (
    check_scheduler,
    check_scheduler_fits,
    scheduler_number,
    schedulers_in_programs,
)
from fastjax.topology import AxisName, Topology, fit_to_groups, usual_topology

_DEFAULT_ROW_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class PlanSpec:
    """What is known of a plan when the program is traced.

    Attributes:
      topology: that of one group, server-major.
      rank_of: server-major number of each position of the group.
      scheduler: a scheduler's name; "auto" where it is chosen anew for every traffic.
      row_bytes: bytes of a row, as far as the planner is told.
    """

    topology: Topology
    rank_of: tuple[int, ...]
    scheduler: str
    row_bytes: int

    @property
    def table_words(self) -> int:
        """Length of a device's stage table."""
        return _core.table_words(self.topology.words, scheduler_number(self.scheduler))


@dataclasses.dataclass(frozen=True)
class TracedPlan:
    """What `plan_ragged_all_to_all` returns: this device's stage table, to pass as `plan=`.

    A pytree, so it goes through jit, scan, remat and shard_map like any array. Each device must be
    given back its own table.
    """

    table: Any
    spec: PlanSpec
    axis_name: tuple[Any, ...]
    axis_index_groups: tuple[tuple[int, ...], ...] | None
    transposed: bool = False

    def transpose(self) -> TracedPlan:
        """The plan of the way back: of the exchange whose send sizes are these receive sizes.

        A plan read backwards, so nothing is planned.
        """
        return dataclasses.replace(self, transposed=not self.transposed)


jax.tree_util.register_dataclass(
    TracedPlan,
    data_fields=["table"],
    meta_fields=["spec", "axis_name", "axis_index_groups", "transposed"],
)


def plan_ragged_all_to_all(
    send_sizes: jax.Array,
    *,
    axis_name: AxisName,
    axis_index_groups: Any = None,
    topology: Topology | None = None,
    scheduler: str | None = None,
    row_bytes: int = _DEFAULT_ROW_BYTES,
) -> TracedPlan:
    """Plans an exchange early, inside a traced program, for `fast_ragged_all_to_all(plan=...)`.

    One plan serves every exchange of the same sizes, and `plan.transpose()` those of the way back:
    dispatch, combine and both gradients of a Mixture-of-Experts layer need one.

    Args:
      send_sizes: rows this device sends, as `fast_ragged_all_to_all` takes them: integers, shape
        (k * group size,), k updates for each peer in order of position.
      axis_name: mesh axis, or several, to exchange over.
      axis_index_groups: groups of axis positions that exchange among themselves, as in `jax.lax`.
      topology: the fabric; by default that of `fastjax.options` or of the processes.
      scheduler: one of `fastjax.schedulers()`; by default that of `fastjax.options`.
      row_bytes: bytes of a row, as far as known; decides how finely stages are cut.

    Returns:
      This device's plan.

    Raises:
      ArgumentError: send_sizes has an impossible shape or type, the groups are unequal, or
        row_bytes is no size.
      TopologyError: the topology does not fit the axis.
      OptionError: there is no such scheduler.
    """
    axes, groups, size = resolve_axis(axis_name, axis_index_groups)
    send_sizes = jnp.asarray(send_sizes)
    check_metadata(size, send_sizes=send_sizes)
    check_row_bytes(row_bytes)
    spec = make_spec(axes, groups, topology, scheduler, row_bytes)
    return plan_sizes(send_sizes, axes, groups, spec)


def plan_sizes(
    send_sizes: Any,
    axes: tuple[Any, ...],
    groups: tuple[tuple[int, ...], ...] | None,
    spec: PlanSpec,
    experts: int = 0,
) -> TracedPlan:
    """Plans for sizes that are known to be right in shape and type.

    Args:
      send_sizes: as `plan_ragged_all_to_all` takes them.
      axes: mesh axes.
      groups: groups of axis positions, or None.
      spec: what the plan depends on besides.
      experts: of an MoE layer, for messages: its sizes may be minus the number of an expert that
        there is not.
    """
    (sizes,) = jax_compat.vary_together([send_sizes], axes)
    table = plan_ragged_all_to_all_p.bind(
        sizes,
        axis_name=axes,
        axis_index_groups=groups,
        spec=spec,
        timeout_ms=config.current().timeout_ms,
        experts=experts,
    )
    return TracedPlan(table, spec, axes, groups)


def _size_of(axes: tuple[Any, ...]) -> int:
    try:
        return jax.lax.axis_size(axes)
    except NameError as error:  # what jax.lax raises, too
        raise NameError(
            f"{error}. Call this inside jax.shard_map over a mesh with that axis; got axis_name "
            f"{axes[0] if len(axes) == 1 else axes!r}."
        ) from None


def resolve_axis(
    axis_name: AxisName, axis_index_groups: Any
) -> tuple[tuple[Any, ...], tuple[tuple[int, ...], ...] | None, int]:
    """Canonical axis names and groups, and the number of devices that exchange with each other."""
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    axis_size = _size_of(axes)
    if axis_index_groups is None:
        return axes, None, axis_size
    groups = tuple(tuple(int(i) for i in group) for group in axis_index_groups)
    if len({len(group) for group in groups}) != 1:
        raise ArgumentError(
            f"axis_index_groups must be equally large, got sizes {[len(g) for g in groups]}."
        )
    if sorted(i for group in groups for i in group) != list(range(axis_size)):
        raise ArgumentError(
            f"axis_index_groups must name every position of the axis, 0 to {axis_size - 1}, once; "
            f"got {groups}."
        )
    return axes, groups, len(groups[0])


def check_metadata(group_size: int, **arrays: Any) -> None:
    """Refuses offsets and sizes of impossible shape or type."""
    lengths = {}
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.integer):
            raise ArgumentError(
                f"ragged_all_to_all {name} must be integer type, got {array.dtype}."
            )
        if np.ndim(array) != 1 or array.shape[0] < 1:
            raise ArgumentError(
                f"ragged_all_to_all {name} must be rank 1 with positive dimension size, "
                f"but got shape {np.shape(array)}."
            )
        lengths[name] = array.shape[0]
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"offsets and sizes must have one length, got {lengths}.")
    length = next(iter(lengths.values()))
    if length % group_size:
        raise ArgumentError(
            f"{next(iter(lengths))} has {length} entries; want a multiple of the {group_size} "
            "devices that exchange: as many entries for each device."
        )


def make_spec(
    axes: tuple[Any, ...],
    groups: tuple[tuple[int, ...], ...] | None,
    topology: Topology | None,
    scheduler: str | None,
    row_bytes: int,
) -> PlanSpec:
    """What the planner of a call is told, arguments before options before defaults."""
    opts = config.current()
    name = opts.scheduler if scheduler is None else scheduler
    check_scheduler(name, "scheduler")
    axis_size = jax.lax.axis_size(axes)
    if topology is not None:
        check_topology(topology)
    given = topology or opts.topology or _default_topology(axes, axis_size)
    fitted, rank_of = fit_to_groups(given, axis_size, groups)
    if name == "optimal":
        raise UnsupportedError(
            "scheduler 'optimal' solves for seconds, on the host: call fastjax.make_plan with it. "
            f"Inside programs there are {', '.join(schedulers_in_programs())}."
        )
    check_topology(fitted)
    check_scheduler_fits(name, fitted)
    # Inside one server there is nothing to choose, and a table of direct transfers is small.
    chosen = "direct" if name == "auto" and fitted.servers == 1 else name
    return PlanSpec(fitted, rank_of, chosen, max(1, int(row_bytes)))


def _default_topology(axes: tuple[Any, ...], axis_size: int) -> Topology:
    """Devices of one process are one server, as far as can be told from the shape of the mesh."""
    if jax.process_count() == 1:
        return Topology(1, axis_size)
    local = jax.local_device_count()
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size == jax.device_count() and set(axes) <= set(mesh.axis_names):
        return usual_topology(dict(mesh.shape), axes, local)
    # Some devices are left out, and which is not known here.
    if axis_size % local:
        return Topology(axis_size, 1)
    return Topology(axis_size // local, local)


plan_ragged_all_to_all_p = Primitive("plan_ragged_all_to_all")


@plan_ragged_all_to_all_p.def_impl
def _plan_impl(*_: Any, **__: Any) -> Any:
    raise RuntimeError("plan_ragged_all_to_all must be used within a mapped context, in shard_map.")


@plan_ragged_all_to_all_p.def_effectful_abstract_eval
def _plan_abstract_eval(send_sizes: Any, *, axis_name: Any, spec: PlanSpec, **_: Any) -> Any:
    table = send_sizes.update(shape=(spec.table_words,), dtype=np.dtype(np.int32), weak_type=False)
    table = jax_compat.with_vma(table, frozenset(axis_name))
    return table, jax_compat.axis_effects(axis_name)


def position(axes: tuple[Any, ...], groups: tuple[tuple[int, ...], ...] | None) -> Any:
    """Of this device in its group."""
    index = jax.lax.axis_index(axes)
    if groups is None:
        return index
    positions = {device: i for group in groups for i, device in enumerate(group)}
    return jnp.array([positions[i] for i in range(len(positions))], jnp.int32)[index]


def call_site_attributes(
    ctx: Any,
    operation: str,
    axes: tuple[Any, ...],
    groups: tuple[tuple[int, ...], ...] | None,
    spec: PlanSpec,
    timeout_ms: int,
    platform: str,
) -> dict[str, Any]:
    """Attributes that every fastjax custom call carries.

    Where a group spans processes, this opens the network between them.
    """
    replicas = jax_compat.replica_groups(ctx, axes, groups)
    attributes = {
        "operation": operation,
        "name": jax_compat.op_name(ctx, operation),
        "axis": repr(axes[0]) if len(axes) == 1 else repr(axes),
        "program": jax_compat.program_name(ctx),
        "shapes": " ".join(f"{a.dtype.name}{list(a.shape)}" for a in ctx.avals_in[:3]),
        "channel": np.int64(jax_compat.new_channel(ctx)),
        "timeout_ms": np.int64(timeout_ms),
        "group_size": np.int64(replicas.shape[1]),
        "replica_groups": replicas.reshape(-1),
        "rank_of": np.array(spec.rank_of, dtype=np.int64),
        "platform": platform,
    }
    placed = jax_compat.device_processes(ctx, replicas)
    if placed is not None:
        network.ensure_open()
        attributes |= {"processes": placed[0], "rails": placed[1]}
    return attributes


def planning_attributes(spec: PlanSpec) -> dict[str, Any]:
    """Attributes of the custom calls that plan."""
    return {
        "topology": np.array(spec.topology.words, dtype=np.int64),
        "scheduler": np.int64(scheduler_number(spec.scheduler)),
        "row_bytes": np.int64(spec.row_bytes),
    }


def _plan_lowering(
    ctx: Any,
    send_sizes: Any,
    *,
    axis_name: tuple[Any, ...],
    axis_index_groups: tuple[tuple[int, ...], ...] | None,
    spec: PlanSpec,
    timeout_ms: int,
    experts: int,
    platform: str,
) -> list[Any]:
    attributes = call_site_attributes(
        ctx, "plan_ragged_all_to_all", axis_name, axis_index_groups, spec, timeout_ms, platform
    )
    attributes["experts"] = np.int64(experts)
    table = jax_compat.custom_call(
        ctx,
        "fastjax_plan_v1",
        [send_sizes, jax_compat.partition_id()],
        [ctx.avals_in[0], jax_compat.PARTITION_AVAL],
        ctx.avals_out[0],
        attributes | planning_attributes(spec),
    )
    return [table]


def _plan_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    """Sizes have no derivative; what JAX hands on for those of a custom_vjp is one in name only."""
    del tangents
    table = plan_ragged_all_to_all_p.bind(*primals, **params)
    return table, jax_compat.zero_tangent(table)


def _plan_batcher(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
    """A batch exchanges as one: its plan is that of all sizes, laid out as the exchange does."""
    refuse_mapped_axis(axis_data, params["axis_name"])
    (sizes,), (dim,) = values, dims
    if dim is not None:
        sizes = fold_metadata(sizes, dim)
    return plan_ragged_all_to_all_p.bind(sizes, **params), None


def fold_metadata(array: Any, dim: int) -> Any:
    """Batched offsets or sizes as one array, updates to one peer side by side."""
    return jnp.moveaxis(array, dim, 1).reshape(-1)


def refuse_mapped_axis(axis_data: Any, axes: tuple[Any, ...]) -> None:
    """Vmap over the very axis that is exchanged over has no devices to exchange between."""
    if axis_data.name in axes:
        raise ArgumentError(
            f"axis {axis_data.name!r} is a vmap axis; ragged exchanges run over mesh axes, inside "
            "jax.shard_map."
        )


jax_compat.set_lowering(plan_ragged_all_to_all_p, _plan_lowering)
jax_compat.set_batcher(plan_ragged_all_to_all_p, _plan_batcher)
ad.primitive_jvps[plan_ragged_all_to_all_p] = _plan_jvp


def planning_count() -> int:
    """How many plans traced programs have made in this process so far."""
    return _core.plans_made()


__all__ = [
    "PlanSpec",
    "TracedPlan",
    "plan_ragged_all_to_all",
    "planning_count",
]
