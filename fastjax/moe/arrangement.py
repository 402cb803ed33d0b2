"""What is decided of a dispatch when the program is traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import numpy as np
from jax.typing import DTypeLike

from fastjax.moe import arguments, choosing, payload
from fastjax.moe.by_server import beside_rows
from fastjax.moe.servers import Servers
from fastjax.moe.to_experts import Experts, Over
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import resolve_axis
from fastjax.traced.plan_spec import make_spec


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How tokens go to the devices of their experts.

    Attributes:
      over: the devices, and what the planner is told of rows that go to one expert.
      servers: where the experts are.
      experts: of the devices of a group, and the room for what goes to them.
      travels_in: the type that rows travel in.
      row_bytes: of a row that goes to one expert.
      crossing_bytes: of one that crosses once, with the numbers of its experts and weights.
      once: whether a token crosses once to each server.
    """

    over: Over
    servers: Servers
    experts: Experts
    travels_in: np.dtype
    row_bytes: int
    crossing_bytes: int
    once: bool

    @property
    def crossing(self) -> Over:
        """The devices, and what the planner is told of rows that cross once."""
        spec = dataclasses.replace(self.over.spec, row_bytes=self.crossing_bytes)
        return dataclasses.replace(self.over, spec=spec)

    @property
    def inside(self) -> Over:
        """The devices of each server."""
        over = self.servers.inside(self.over.axes, self.over.groups, self.row_bytes)
        return over.described(self.over.spec.layer)


def arrange(
    x: jax.Array,
    expert_ids: jax.Array,
    weights: jax.Array | None,
    *,
    num_experts: int,
    axis_name: AxisName,
    axis_index_groups: Iterable[Iterable[int]] | None,
    topology: Topology | None,
    scheduler: str | None,
    buffer_factor: float | None,
    alignment: int,
    payload_dtype: DTypeLike | None,
    deduplicate: bool | None,
) -> Arrangement:
    """Checks what `dispatch` is given, and decides what can be decided without looking at values.

    Raises:
      ArgumentError, TopologyError, OptionError, NameError: see `dispatch`.
    """
    axes, groups, devices = resolve_axis(axis_name, axis_index_groups)
    arguments.check_experts(num_experts, devices)
    arguments.check_count("alignment", alignment)
    arguments.check_deduplicate(deduplicate)
    tokens, top_k = expert_ids.shape
    here = num_experts // devices
    available = arguments.room_of(tokens, top_k, here, devices, buffer_factor)
    rows = aligned(available, here, alignment)
    arguments.check_range(rows, devices * tokens * top_k)
    travels_in = payload.check(payload_dtype, x.dtype)
    may_drop = available < devices * tokens * top_k  # with room for all, the program need not look

    row_bytes = max(1, payload.row_bytes(x.shape[1], travels_in, x.dtype))
    spec = make_spec(axes, groups, topology, scheduler, row_bytes)
    servers = Servers(spec.topology, spec.rank_of, num_experts)
    beside = beside_rows(top_k, weights, servers)
    crossing_bytes = max(1, payload.layout(x.shape[1], travels_in, x.dtype, beside).row_bytes)
    if weights is not None:
        deduplicate = arguments.check_travelling(weights, deduplicate)
    if deduplicate is None:
        work = choosing.Tokens(tokens, top_k, row_bytes, crossing_bytes)
        deduplicate = choosing.crosses_once(servers, work, spec.scheduler)
    once = deduplicate and servers.count > 1
    return Arrangement(
        over=Over(axes, groups, spec).described(f"deduplicate={once}, room for {rows} rows"),
        servers=servers,
        experts=Experts(num_experts, rows, alignment, may_drop),
        travels_in=travels_in,
        row_bytes=row_bytes,
        crossing_bytes=crossing_bytes,
        once=once,
    )


def aligned(available: int, here: int, alignment: int) -> int:
    """Room for `available` rows of `here` experts, each padded to a multiple of `alignment`."""
    return -(-(available + here * (alignment - 1)) // alignment) * alignment


__all__ = ["Arrangement", "aligned", "arrange"]
