"""What is decided of a dispatch, or a layer, when the program is traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import numpy as np
from jax.typing import DTypeLike

from fastjax import scheduling
from fastjax.chunking import deduplication, levelling, prices
from fastjax.chunking.times import layer_time
from fastjax.moe import arguments, types, wire
from fastjax.moe.servers import Balance, Experts, Servers
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import resolve_axis
from fastjax.traced.plan import ExchangeGroup
from fastjax.traced.plan_spec import PlanSpec, make_spec
from fastjax.traffic import checks

ROUND_FACTOR = 1.25
# Of rows. Whether there are rounds takes time to find out, and a small layer saves little memory.
_SMALL_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Options:
    """The keywords of `dispatch` and `layer`, as they were given.

    And `expert_bytes`, of an expert's params, as far as they are known. By `row_seconds`, copies
    cost as many rows for any number.
    """

    num_experts: int
    axis_name: AxisName
    axis_index_groups: Iterable[Iterable[int]] | None = None
    topology: Topology | None = None
    scheduler: str | None = None
    buffer_factor: float | None = None
    alignment: int = 1
    payload_dtype: DTypeLike | None = None
    deduplicate: bool | None = None
    balance: bool | None = None
    copies: int = 4
    drop: bool = True
    chunks: int | None = None
    seconds_per_row: float | None = None
    expert_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        arguments.check_count("alignment", self.alignment)
        arguments.check_decision("deduplicate", self.deduplicate)
        arguments.check_decision("balance", self.balance)
        arguments.check_count("copies", self.copies)
        if self.seconds_per_row is not None:
            checks.real("seconds_per_row, the time of one row,", self.seconds_per_row, 0)


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How tokens go to the devices of their experts.

    Attributes:
      group: the devices, and what the planner is told of rows that go to one expert.
      experts: of the devices of a group, and the room for their rows.
      wire: type of dispatched rows on the wire.
      payload_dtype: the option, for the way back.
      crossing_bytes: of a row that crosses once, with the numbers of its experts and weights.
      deduplicated: whether a token crosses once to each server.
    """

    group: ExchangeGroup
    experts: Experts
    wire: np.dtype
    payload_dtype: DTypeLike | None
    crossing_bytes: int
    deduplicated: bool

    @property
    def servers(self) -> Servers:
        """Where the experts are."""
        spec = self.group.spec
        return Servers(spec.topology, spec.rank_of, self.experts.count)

    @property
    def inside(self) -> Arrangement:
        """The same of the devices of each server, by rank, which send each other all at once.

        Rows without room have been taken out before.
        """
        servers, group = self.servers, self.group
        all_groups = group.groups or (tuple(range(jax.lax.axis_size(group.axes))),)
        at = servers.position_at.reshape(servers.count, servers.devices)
        inner = tuple(
            tuple(members[position] for position in server)
            for members in all_groups
            for server in at
        )
        one = dataclasses.replace(servers.topology, servers=1, nic_bandwidths=None)
        ranks, direct = tuple(range(servers.devices)), scheduling.FALLBACK
        spec = PlanSpec(one, ranks, direct, group.spec.row_bytes, layer=group.spec.layer)
        experts = dataclasses.replace(
            self.experts, count=servers.experts, devices=servers.devices, drop=None
        )
        group = ExchangeGroup(group.axes, inner, spec)
        return dataclasses.replace(self, group=group, experts=experts)


def arrange(
    x: jax.Array, expert_ids: jax.Array, weights: jax.Array | None, options: Options
) -> Arrangement:
    """Checks the arguments of `dispatch`, and decides what can be decided without values.

    Raises:
      ArgumentError, TopologyError, OptionError, NameError: see `dispatch`.
    """
    axes, groups, devices = resolve_axis(options.axis_name, options.axis_index_groups)
    num_experts = options.num_experts
    arguments.check_experts(num_experts, devices)
    tokens, top_k = expert_ids.shape
    factor = options.buffer_factor
    if factor is None and not options.drop:
        all_bytes = devices * tokens * top_k * x.shape[1] * x.dtype.itemsize
        factor = ROUND_FACTOR if all_bytes > _SMALL_BYTES else devices
    available = arguments.room_of(tokens, top_k, num_experts // devices, devices, factor)
    wire_dtype = wire.check(options.payload_dtype, x.dtype)
    row_bytes = max(1, wire.row_bytes(x.shape[1], wire_dtype, x.dtype))
    spec = make_spec(axes, groups, options.topology, options.scheduler, row_bytes)
    servers = Servers(spec.topology, spec.rank_of, num_experts)
    balance = balance_of(options, spec.topology, tokens, top_k)
    experts = Experts(num_experts, devices, options.alignment, balance)
    experts = experts.with_room(available, (tokens, top_k), drop=options.drop)
    arguments.check_range(experts.rows, devices * tokens * top_k)
    beside = ((top_k, servers.number_type()),)
    if weights is not None:
        beside = ((top_k, types.summed_in(weights.dtype)), *beside)
    crossing_bytes = max(1, wire.row_bytes(x.shape[1], wire_dtype, x.dtype, beside))
    deduplicate = options.deduplicate
    if weights is not None:
        deduplicate = arguments.check_travelling(weights, deduplicate)
    if deduplicate is None:
        work = prices.Tokens(tokens, top_k, row_bytes, crossing_bytes)
        deduplicate = deduplication.crosses_once(spec.topology, num_experts, work, spec.scheduler)
    deduplicated = deduplicate and servers.count > 1
    described = f"deduplicate={deduplicated}, room for {experts.rows} rows"
    if balance is not None:
        described += f", copies={balance.copies}"
    return Arrangement(
        group=ExchangeGroup(axes, groups, spec).told(layer=described),
        experts=experts,
        wire=wire_dtype,
        payload_dtype=options.payload_dtype,
        crossing_bytes=crossing_bytes,
        deduplicated=deduplicated,
    )


def balance_of(options: Options, topology: Topology, tokens: int, top_k: int) -> Balance | None:
    """How far experts are levelled; None if they are not.

    Left to the model, they are only where the time of a row on a device is given, and CPU devices
    belong to several processes: all devices of one process share its processors. On GPUs it is not
    known how long dealing takes.

    Args:
      options: the keywords.
      topology: of a group.
      tokens: of a device.
      top_k: choices of each.
    """
    if topology.devices_per_server == 1 or options.balance is False:
        return None
    platform = jax.default_backend()
    num_experts, expert_bytes = options.num_experts, options.expert_bytes
    seconds = options.seconds_per_row
    if seconds is None:
        seconds = levelling.row_seconds(expert_bytes, platform)
    here = num_experts // topology.num_devices
    copies = min(options.copies, (topology.devices_per_server - 1) * here)  # no more can be in use
    model = levelling.Levelling(topology, copies, expert_bytes, seconds, platform)
    if options.balance is None:
        known = (
            options.seconds_per_row is not None and jax.process_count() > 1 and platform == "cpu"
        )
        if not (known and levelling.pays(model, tokens, top_k, num_experts)):
            return None
    return Balance(copies, model.cost_rows)


def chunks_of(whole: Arrangement, tokens: int, top_k: int, seconds_per_row: float | None) -> int:
    """The number that the model of a layer predicts to be fastest; 1 where nothing can be gained.

    That is wherever nothing is known of the experts' work; in one process, whose processors both
    move rows and work; and on GPUs, where exchanges and experts have one stream. Elsewhere it is
    the fastest for a forward and a backward pass together: a program is not known to be
    differentiated when it is traced.

    Args:
      whole: how all tokens go.
      tokens: of a device.
      top_k: choices of each.
      seconds_per_row: see `layer`.
    """
    here = jax.process_count() == 1 or jax.default_backend() != "cpu"
    if seconds_per_row is None or here or tokens == 0 or whole.servers.count == 1:
        return 1
    best = layer_time(
        whole.servers.topology,
        tokens,
        top_k,
        whole.group.spec.row_bytes,
        whole.experts.count,
        seconds_per_row=seconds_per_row,
        deduplicate=whole.deduplicated,
        crossing_bytes=whole.crossing_bytes,
        scheduler=whole.group.spec.scheduler,
        backward=True,
    )
    return best.chunks
