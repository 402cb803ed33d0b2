"""Plans inside a traced program, and the devices that they are of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import _core, config, jax_compat
from fastjax.checks import DEFAULT_ROW_BYTES, check_row_bytes
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import (
    Axes,
    Groups,
    check_length,
    check_metadata,
    position,
    resolve_axis,
)
from fastjax.traced.nonnegative import is_identity, look_up
from fastjax.traced.plan_primitive import plan_ragged_all_to_all_p
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
    return ExchangeGroup(axes, groups, spec).plan(send_sizes)


@dataclasses.dataclass(frozen=True)
class ExchangeGroup:
    """The devices that exchange with each other.

    Attributes:
      axes: mesh axes.
      groups: groups of their positions, or None.
      spec: what the planner is told.
    """

    axes: Axes
    groups: Groups
    spec: PlanSpec

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.spec.rank_of)

    def told(self, **changes: Any) -> ExchangeGroup:
        """The same, whose planner is told something else; see `PlanSpec`."""
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, **changes))

    def of_choices(self, *chosen: jax.Array) -> ExchangeGroup:
        """The same; statistics count these choices, of shape (tokens, k) each."""
        return self.told(tokens=sum(map(len, chosen)), top_k=chosen[0].shape[1])

    def position(self) -> jax.Array:
        """That of this device."""
        return position(self.axes, self.groups)

    def rank(self) -> jax.Array:
        """The number of this device, server by server."""
        own, rank_of = self.position(), np.array(self.spec.rank_of, np.int32)
        return own if is_identity(rank_of) else look_up(jnp.asarray(rank_of), own)

    def plan(
        self,
        send_sizes: jax.Array,
        experts: int = 0,
        *,
        timeout_ms: int | None = None,
        fallback: str | None = None,
    ) -> TracedPlan:
        """The plan of an exchange of sizes that are right in shape and type.

        Args:
          send_sizes: as `plan_ragged_all_to_all` takes them.
          experts: of an MoE layer, for messages: its sizes may be minus an expert id that is out of
            range.
          timeout_ms: the option; as it is now if left out.
          fallback: the same.
        """
        (table,) = self._bind(send_sizes, experts, timeout_ms=timeout_ms, fallback=fallback)
        return TracedPlan(table, self.spec, self.axes, self.groups)

    def plan_and_gather(
        self, send_sizes: jax.Array, experts: int = 0
    ) -> tuple[TracedPlan, jax.Array]:
        """The same, and the sizes of all devices; on CPU devices, the devices meet once.

        Returns:
          The plan, and the sizes by position, shape (devices, sizes of each).
        """
        table, gathered = self._bind(send_sizes, experts, gathers=True)
        plan = TracedPlan(table, self.spec, self.axes, self.groups)
        return plan, gathered.reshape(-1, *send_sizes.shape)

    def gather(
        self,
        counts: Sequence[jax.Array],
        experts: int = 0,
        servers: int = 0,
        timeout_ms: int | None = None,
    ) -> list[jax.Array]:
        """The counts of all devices, by position, by one call for all of the arrays.

        Args:
          counts: of this device, int32, all of one shape.
          experts: for how many each array has the choices, which statistics tell; 0 for none.
          servers: how many counts it has before these.
          timeout_ms: how long a device waits for the others; that of the options if left out.

        Returns:
          Arrays of shape (devices, ...).
        """
        together = jnp.stack(counts) if len(counts) > 1 else counts[0][None]
        told = {"servers": servers, "timeout_ms": timeout_ms, "plans": False, "gathers": True}
        with jax.named_scope("gather_counts"):
            (gathered,) = self._bind(together.reshape(-1), experts, **told)
        gathered = gathered.reshape(self.size, *together.shape)
        return [gathered[:, number] for number in range(len(counts))]

    def _bind(
        self,
        counts: jax.Array,
        experts: int,
        *,
        servers: int = 0,
        timeout_ms: int | None = None,
        fallback: str | None = None,
        plans: bool = True,
        gathers: bool = False,
    ) -> list[jax.Array]:
        now = config.current()
        return plan_ragged_all_to_all_p.bind(
            jax_compat.vary_together(counts, self.axes),
            axis_name=self.axes,
            axis_index_groups=self.groups,
            spec=self.spec,
            timeout_ms=timeout_ms or now.timeout_ms,
            experts=experts,
            servers=servers,
            fallback=fallback or now.fallback,
            plans=plans,
            gathers=gathers,
        )


def planning_count() -> int:
    """How many plans traced programs have made in this process so far."""
    return _core.plans_made()
