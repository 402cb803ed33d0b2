"""Plans inside a traced program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from fastjax import _core
from fastjax.checks import DEFAULT_ROW_BYTES, check_row_bytes
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import Axes, Groups, check_length, check_metadata, resolve_axis
from fastjax.traced.plan_primitive import bind_plan
from fastjax.traced.plan_spec import PlanSpec, make_spec


@dataclasses.dataclass(frozen=True)
class TracedPlan:
    """A plan of `plan_ragged_all_to_all`: this device's stage table, to pass as `plan=`.

    A pytree, so it goes through jit, scan, remat and shard_map like any array. Each device must be
    given back its own table.
    """

    table: jax.Array
    spec: PlanSpec
    axis_name: Axes
    axis_index_groups: Groups
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
    axis_index_groups: Iterable[Iterable[int]] | None = None,
    topology: Topology | None = None,
    scheduler: str | None = None,
    row_bytes: int = DEFAULT_ROW_BYTES,
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
      row_bytes: bytes of a row, on which scheduler and stages depend.

    Returns:
      This device's plan.

    Raises:
      ArgumentError: send_sizes has an impossible shape or type, the groups are unequal, or
        row_bytes is no size.
      TopologyError: the topology does not fit the axis.
      OptionError: there is no such scheduler.
    """
    send_sizes = jnp.asarray(send_sizes)
    check_metadata(send_sizes=send_sizes)
    check_row_bytes(row_bytes)
    axes, groups, size = resolve_axis(axis_name, axis_index_groups)
    check_length(size, send_sizes=send_sizes)
    spec = make_spec(axes, groups, topology, scheduler, row_bytes)
    return plan_sizes(send_sizes, axes, groups, spec)


def plan_sizes(
    send_sizes: jax.Array,
    axes: Axes,
    groups: Groups,
    spec: PlanSpec,
    experts: int = 0,
) -> TracedPlan:
    """Plans for sizes that are known to be right in shape and type.

    Args:
      send_sizes: as `plan_ragged_all_to_all` takes them.
      axes: mesh axes.
      groups: groups of axis positions, or None.
      spec: what the plan depends on besides.
      experts: of an MoE layer, for messages: its sizes may be minus an expert id that is out of
        range.
    """
    (table,) = bind_plan(send_sizes, axes, groups, spec, experts=experts)
    return TracedPlan(table, spec, axes, groups)


def plan_and_gather(
    send_sizes: jax.Array, axes: Axes, groups: Groups, spec: PlanSpec, experts: int = 0
) -> tuple[TracedPlan, jax.Array]:
    """Does what `plan_sizes` does, and gathers the sizes; on CPU devices, the devices meet once.

    Returns:
      The plan, and the sizes of all devices by position, shape (devices, sizes of each).
    """
    table, gathered = bind_plan(send_sizes, axes, groups, spec, experts=experts, gathers=True)
    return TracedPlan(table, spec, axes, groups), gathered.reshape(-1, *send_sizes.shape)


def planning_count() -> int:
    """How many plans traced programs have made in this process so far."""
    return _core.plans_made()
