"""What `combine` has to know of a `dispatch`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from fastjax.moe.copies import Copies
from fastjax.moe.routing import Offsets
from fastjax.traced.plan import TracedPlan


@dataclasses.dataclass(frozen=True)
class Route:
    """How choices get to their experts, a row for each, and back.

    Attributes:
      kept: bool, shape (tokens, k): which choices go.
      plan: of both exchanges, and of their gradients.
      order: int32, shape (tokens * k,): the choice that comes n-th by expert.
      place: int32, shape (tokens * k,): where each choice is then.
      dispatch, combine: offsets and sizes of either exchange.
      tokens, top_k: how many.
      rows: of the buffer that they arrive in.
    """

    kept: jax.Array
    plan: TracedPlan
    order: jax.Array
    place: jax.Array
    dispatch: Offsets
    combine: Offsets
    tokens: int
    top_k: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Crossing:
    """How tokens get to the other servers that have experts of theirs, one row each, and back.

    A row that crosses is an entry of the list of its device's: by server, then by token.

    Attributes:
      plan: of both exchanges, and of their gradients.
      dispatch, combine: offsets and sizes of either exchange, one for each device.
      token: int32, shape (entries,): the token of each entry.
      server: int32, shape (entries,): and the server that it goes to.
      entry: int32, shape (tokens, servers): the entry of a token for a server, if it goes there.
      goes: bool, shape (tokens, servers): whether it does; not to its own.
      chosen: int32, shape (tokens, k): the server of each choice, or `servers` for none.
      here: int32: the server of this device.
      room: the most rows that arrive.
    """

    plan: TracedPlan
    dispatch: Offsets
    combine: Offsets
    token: jax.Array
    server: jax.Array
    entry: jax.Array
    goes: jax.Array
    chosen: jax.Array
    here: jax.Array
    room: int

    @property
    def servers(self) -> int:
        """How many there are."""
        return self.goes.shape[-1]


@dataclasses.dataclass(frozen=True)
class Handle:
    """What `combine` has to know of a `dispatch`: a pytree.

    Attributes:
      kept: bool, shape (..., k): which choices went to their experts; where not, `combine` adds
        nothing for them.
      dropped: int32: how many choices of this device found no room. Those of expert -1 want none.
      group_rows: int32, shape (groups,): rows that arrived for each group, without padding.
      copies: of experts of other devices; None without `balance`.
      shape: of the dispatched tokens: that of x without its width.
    """

    kept: jax.Array
    dropped: jax.Array
    group_rows: jax.Array
    weights: jax.Array | None  # of choices, or of rows at experts where tokens cross once
    route: Route  # to experts: of this device's tokens, or of those that landed on it
    crossing: Crossing | None  # to other servers before that, where tokens cross once
    shape: tuple[int, ...]
    copies: Copies | None = None

    def params(self, params: Any) -> Any:
        """Params of all groups of rows: of this device's experts, then of its copies of others.

        Args:
          params: a pytree of arrays of this device's experts, shape (experts of a device, ...).

        Returns:
          The same, shape (groups, ...). The params of copies come from their devices by an exchange
          inside the server, and their gradients go back. A copy that is not in use has no rows, and
          the params of the device's first expert.

        Raises:
          ArgumentError: an array has not one entry for each expert of the device.
        """
        return params if self.copies is None else self.copies.params(params)

    @property
    def deduplicated(self) -> bool:
        """Whether tokens cross once to each server: what `deduplicate=None` decided."""
        return self.crossing is not None

    @property
    def plan(self) -> TracedPlan:
        """The plan of what crosses servers, and of its way back and all gradients."""
        return self.route.plan if self.crossing is None else self.crossing.plan

    @property
    def rows(self) -> int:
        """Rows of a device's buffer."""
        return self.route.rows


jax.tree_util.register_dataclass(
    Route,
    data_fields=["kept", "plan", "order", "place", "dispatch", "combine"],
    meta_fields=["tokens", "top_k", "rows"],
)
jax.tree_util.register_dataclass(
    Crossing,
    data_fields=[
        *("plan", "dispatch", "combine", "token", "server", "entry", "goes", "chosen", "here"),
    ],
    meta_fields=["room"],
)
jax.tree_util.register_dataclass(
    Handle,
    data_fields=["kept", "dropped", "group_rows", "weights", "route", "crossing", "copies"],
    meta_fields=["shape"],
)
