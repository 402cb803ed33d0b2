"""The custom calls: what each is called, and its operands and attributes, declared once.

The lowering rules emit calls by these declarations, and tests make calls of their own by them.
ffi/handlers/contract.cc has the same for handlers, which decode operands and attributes by their
names; a test compares the two. Compiled and exported programs contain
all of it, so it is a format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

ArrayT = TypeVar("ArrayT")


class Metadata(NamedTuple, Generic[ArrayT]):
    """The offsets and sizes of an exchange, in the order of `fast_ragged_all_to_all`."""

    input_offsets: ArrayT
    send_sizes: ArrayT
    output_offsets: ArrayT
    recv_sizes: ArrayT


Value = str | np.bool_ | np.int64 | np.ndarray

_KINDS: dict[str, Callable[[Any], Value]] = {
    "string": str,
    "bool": np.bool_,
    "int64": np.int64,
    "int64[]": lambda values: np.asarray(values, np.int64).reshape(-1),
}


@dataclasses.dataclass(frozen=True)
class Attribute:
    """An attribute of custom calls.

    Attributes:
      name: its name.
      kind: its type: "string", "bool", "int64" or "int64[]", a vector.
      optional: whether calls may lack it.
    """

    name: str
    kind: str
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class CustomCall:
    """A custom call of one result.

    Attributes:
      target: the name that its handler is registered by.
      attributes: all that it may have.
      operands: those that it needs, by name.
      optional: those that it takes besides. Calls whose operands have names say in the attribute
        "operands" which they have, in order; those of others are told apart by their places.
      in_place: the place of the operand whose memory the result takes, if any.
    """

    target: str
    attributes: tuple[Attribute, ...] = ()
    operands: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    in_place: int | None = None

    @property
    def aliases(self) -> dict[int, int]:
        """The operand, by its place, in whose memory the result is."""
        return {} if self.in_place is None else {self.in_place: 0}

    def named(self, names: Sequence[str]) -> str:
        """The attribute that names operands.

        Raises:
          TypeError: an operand is missing, or there is none of that name.
        """
        unknown = {*names} - {*self.operands, *self.optional}
        if unknown or {*self.operands} - {*names} or len({*names}) < len(names):
            raise TypeError(
                f"{self.target} takes {self.operands} and may take {self.optional}, "
                f"got {tuple(names)}."
            )
        return ",".join(names)

    def encoded(self, values: Mapping[str, object]) -> dict[str, Value]:
        """Attributes of their declared types.

        Args:
          values: by name; None for an optional attribute that the call lacks.

        Raises:
          TypeError: an attribute is missing, or there is none of that name.
        """
        given = {name for name, value in values.items() if value is not None}
        needed = {a.name for a in self.attributes if not a.optional}
        unknown = given - {a.name for a in self.attributes}
        if unknown or needed - given:
            raise TypeError(
                f"{self.target} lacks attributes {sorted(needed - given)} and has no attributes "
                f"{sorted(unknown)}."
            )
        return {a.name: _KINDS[a.kind](values[a.name]) for a in self.attributes if a.name in given}


# Attributes of every call site.
_CALL_SITE = (
    Attribute("operands", "string"),
    Attribute("operation", "string"),
    Attribute("name", "string"),
    Attribute("axis", "string"),
    Attribute("program", "string"),
    Attribute("shapes", "string"),
    Attribute("channel", "int64"),
    Attribute("timeout_ms", "int64"),
    Attribute("group_size", "int64"),
    Attribute("replica_groups", "int64[]"),  # partitions, group by group, in order of position
    Attribute("rank_of", "int64[]"),  # by position in the group
    Attribute("platform", "string"),
    Attribute("tokens", "int64", optional=True),
    Attribute("top_k", "int64", optional=True),
    # Both are given where devices of several processes take part, and are indexed by partition.
    Attribute("processes", "int64[]", optional=True),
    Attribute("rails", "int64[]", optional=True),
    Attribute("module", "string", optional=True),  # its fingerprint, once it is complete
)
# Of calls that plan. Others tell statistics the topology.
_PLANNING = (
    Attribute("topology", "int64[]", optional=True),  # `Topology.words`
    Attribute("scheduler", "int64", optional=True),
    Attribute("row_bytes", "int64", optional=True),
)

PLAN = CustomCall(
    "fastjax_plan_v2",
    (
        *_CALL_SITE,
        *_PLANNING,
        Attribute("experts", "int64", optional=True),
        Attribute("servers", "int64", optional=True),  # of gathered counts: those before experts'
        Attribute("rank", "int64", optional=True),
    ),
    operands=("send_sizes",),
    optional=("partition",),
)
"""Plans, gathers the sizes of all devices, or both: the result is the table, the sizes behind it.

Without `partition`, one device has all ranks, and wants the table of one of them. Without a
scheduler it does not plan.
"""

EXCHANGE = CustomCall(
    "fastjax_exchange_v2",
    (
        *_CALL_SITE,
        *_PLANNING,
        Attribute("reverse", "bool"),
        Attribute("transposed_table", "bool"),
        Attribute("check_overlaps", "bool"),
        Attribute("drop", "bool", optional=True),  # rows out of range, which are refused otherwise
        Attribute("started", "bool", optional=True),  # on GPUs: until a done of its result
    ),
    # The rows to send, and what the result holds where none arrives.
    operands=("source", "base", *Metadata._fields),
    optional=("table", "indices", "factors", "starts", "token", "partition"),
    in_place=1,
)
"""Without a table it plans itself; without `partition`, one device has all ranks.

On GPUs indices stay on the device, and come with `starts`: in reverse they are entries, by the row
that they are of, and `starts` has where those of each row begin. A token is that of a start.
"""

START = CustomCall("fastjax_start_v2", (Attribute("channel", "int64"),))
"""The token of an exchange that begins after those whose tokens are among the operands.

Each call has a number: otherwise XLA would merge two calls of the same operands.
"""

DONE = CustomCall("fastjax_done_v2", in_place=0)
"""Its first operand, once all others exist, whose memory is not given away before.

On GPUs, the rows of an exchange that was started, once they have come.
"""

AFTER = CustomCall("fastjax_after_v2", (Attribute("detached", "bool"),), in_place=0)
"""The same, for any array."""

_LEVELLING = (
    Attribute("operands", "string"),
    Attribute("servers", "int64"),
    Attribute("devices", "int64"),
    Attribute("copies", "int64"),
)

LEVEL = CustomCall(
    "fastjax_level_v2", (*_LEVELLING, Attribute("cost_rows", "int64")), operands=("rows",)
)
"""Which devices compute rows of popular experts: slots and rows, one behind the other.

Operands are int32, shape (..., experts), the result (..., words). On CPU devices only.
"""

DEAL = CustomCall("fastjax_deal_v2", _LEVELLING, operands=("counts", "slots", "rows"))
"""Deals each sender's rows to these devices: sizes and starts, one behind the other.

Counts are int32, shape (..., senders, experts); slots and rows as LEVEL returns them.
"""

EMPTY = CustomCall("fastjax_empty_v2")

CALLS = {call.target: call for call in (PLAN, EXCHANGE, START, DONE, AFTER, LEVEL, DEAL, EMPTY)}

__all__ = [
    "AFTER",
    "CALLS",
    "DEAL",
    "DONE",
    "EMPTY",
    "EXCHANGE",
    "LEVEL",
    "PLAN",
    "START",
    "Attribute",
    "CustomCall",
    "Metadata",
    "Value",
]
