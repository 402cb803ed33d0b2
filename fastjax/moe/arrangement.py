"""What is decided of a dispatch when the program is traced."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax.chunking import deduplication
from fastjax.moe import arguments, checkpoint, types, wire
from fastjax.moe.balancing import Balancing, balance_of
from fastjax.moe.levelled import Levelled, deal_inside
from fastjax.moe.planning import Routed, find_route
from fastjax.moe.servers import ExchangeGroup, Experts, Servers
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import resolve_axis
from fastjax.traced.plan_spec import make_spec

ROUND_FACTOR = 1.25
# Of rows. Whether there are rounds takes time to find out, and a small layer saves little memory.
_SMALL_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Options:
    """The keywords of `dispatch` and `layer`, as they were given."""

    num_experts: int
    axis_name: AxisName
    axis_index_groups: Iterable[Iterable[int]] | None
    topology: Topology | None
    scheduler: str | None
    buffer_factor: float | None
    alignment: int
    payload_dtype: DTypeLike | None
    deduplicate: bool | None
    balancing: Balancing
    drop: bool = True


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How tokens go to the devices of their experts.

    Attributes:
      group: the devices, and what the planner is told of rows that go to one expert.
      servers: where the experts are.
      experts: of the devices of a group, and the room for their rows.
      wire: type of dispatched rows on the wire.
      payload_dtype: the option, for the way back.
      row_bytes: of a row that goes to one expert.
      crossing_bytes: of a row that crosses once, with the numbers of its experts and weights.
      deduplicated: whether a token crosses once to each server.
    """

    group: ExchangeGroup
    servers: Servers
    experts: Experts
    wire: np.dtype
    payload_dtype: DTypeLike | None
    row_bytes: int
    crossing_bytes: int
    deduplicated: bool

    @property
    def crossing(self) -> ExchangeGroup:
        """The devices, and what the planner is told of rows that cross once."""
        spec = dataclasses.replace(self.group.spec, row_bytes=self.crossing_bytes)
        return dataclasses.replace(self.group, spec=spec)

    @property
    def inside(self) -> ExchangeGroup:
        """The devices of each server."""
        group = self.servers.inside(self.group.axes, self.group.groups, self.row_bytes)
        return group.described(self.group.spec.layer)

    @jax.named_scope("moe_to_experts")
    def route_inside(
        self, numbers: jax.Array, levelled: Levelled | None, token: jax.Array | None = None
    ) -> Routed:
        """Where tokens on the devices of a server go, by the numbers that crossed with them.

        Those without room have been taken out before. The plan is made after `token`.
        `levelled` is of this server.
        """
        experts = dataclasses.replace(self.experts, count=self.servers.experts, may_drop=False)
        ids = numbers.astype(jnp.int32) - 1
        deal = None if levelled is None else functools.partial(deal_inside, levelled=levelled)
        return checkpoint.named(find_route(ids, experts, self.inside, token, deal))


def arrange(
    x: jax.Array, expert_ids: jax.Array, weights: jax.Array | None, options: Options
) -> Arrangement:
    """Checks the arguments of `dispatch`, and decides what can be decided without values.

    Raises:
      ArgumentError, TopologyError, OptionError, NameError: see `dispatch`.
    """
    axes, groups, devices = resolve_axis(options.axis_name, options.axis_index_groups)
    num_experts, alignment = options.num_experts, options.alignment
    arguments.check_experts(num_experts, devices)
    arguments.check_count("alignment", alignment)
    arguments.check_deduplicate(options.deduplicate)
    tokens, top_k = expert_ids.shape
    here = num_experts // devices
    factor = options.buffer_factor
    if factor is None and not options.drop:
        all_bytes = devices * tokens * top_k * x.shape[1] * x.dtype.itemsize
        factor = ROUND_FACTOR if all_bytes > _SMALL_BYTES else devices
    available = arguments.room_of(tokens, top_k, here, devices, factor)
    wire_dtype = wire.check(options.payload_dtype, x.dtype)
    row_bytes = max(1, wire.row_bytes(x.shape[1], wire_dtype, x.dtype))
    spec = make_spec(axes, groups, options.topology, options.scheduler, row_bytes)
    servers = Servers(spec.topology, spec.rank_of, num_experts)
    balance = balance_of(options.balancing, spec.topology, tokens, top_k, num_experts)
    experts = Experts(num_experts, 0, 0, alignment, balance=balance)
    experts = room_for(experts, available, (tokens, top_k), devices, drop=options.drop)
    rows = experts.rows
    arguments.check_range(rows, devices * tokens * top_k)
    beside = ((top_k, servers.number_type()),)
    if weights is not None:
        beside = ((top_k, types.summed_in(weights.dtype)), *beside)
    crossing_bytes = max(1, wire.layout(x.shape[1], wire_dtype, x.dtype, beside).row_bytes)
    deduplicate = options.deduplicate
    if weights is not None:
        deduplicate = arguments.check_travelling(weights, deduplicate)
    if deduplicate is None:
        work = deduplication.Tokens(tokens, top_k, row_bytes, crossing_bytes)
        deduplicate = deduplication.crosses_once(spec.topology, num_experts, work, spec.scheduler)
    deduplicated = deduplicate and servers.count > 1
    described = f"deduplicate={deduplicated}, room for {rows} rows"
    if balance is not None:
        described += f", copies={balance.copies}"
    return Arrangement(
        group=ExchangeGroup(axes, groups, spec).described(described),
        servers=servers,
        experts=experts,
        wire=wire_dtype,
        payload_dtype=options.payload_dtype,
        row_bytes=row_bytes,
        crossing_bytes=crossing_bytes,
        deduplicated=deduplicated,
    )


def room_for(
    experts: Experts, available: int, choices: tuple[int, int], devices: int, *, drop: bool
) -> Experts:
    """The experts, with room for rows of the choices, (tokens, k), of each device.

    Args:
      experts: of the devices.
      available: rows that are to find room.
      choices: of each device, (tokens, k).
      devices: how many.
      drop: whether rows without room are dropped, or go in a further round. A round has room for
        one token of each device, whatever they choose.
    """
    tokens, top_k = choices
    most = devices * tokens * top_k
    if not drop:
        available = min(max(available, devices * top_k), most)
    over = available < most  # with room for all, the program need not look
    padding = experts.groups(devices) * (experts.alignment - 1)
    rows = -(-(available + padding) // experts.alignment) * experts.alignment
    return dataclasses.replace(
        experts,
        available=available,
        rows=rows,
        may_drop=over and drop,
        may_overflow=over and not drop,
    )


__all__ = ["ROUND_FACTOR", "Arrangement", "Options", "arrange", "room_for"]
