"""The custom calls: what each is called, and its operands and attributes, declared once.

The lowering rules emit calls by these declarations, and tests make calls of their own by them.
ffi/handlers/contract.cc and operands.h have the same for handlers, which decode operands by their
place and attributes by their names; a test compares the two. Compiled and exported programs contain
all of it, so it is a format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
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
      added: whether programs that were exported by an earlier version may lack it; handlers take
        those, and all calls that are made now have it.
    """

    name: str
    kind: str
    optional: bool = False
    added: bool = False


@dataclasses.dataclass(frozen=True)
class CustomCall:
    """A custom call of one result.

    Attributes:
      target: the name that its handler is registered by.
      operands: their names, in order.
      attributes: all that it may have.
      in_place: the operand whose memory the result takes; "" where it has memory of its own.
    """

    target: str
    operands: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()
    in_place: str = ""

    @property
    def aliases(self) -> dict[int, int]:
        """The operand, by its place, in whose memory the result is."""
        return {self.operands.index(self.in_place): 0} if self.in_place else {}

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
    Attribute("operation", "string"),
    Attribute("name", "string", added=True),
    Attribute("axis", "string"),
    Attribute("program", "string"),
    Attribute("shapes", "string"),
    Attribute("channel", "int64"),
    Attribute("timeout_ms", "int64"),
    Attribute("group_size", "int64"),
    Attribute("replica_groups", "int64[]"),  # partitions, group by group, in order of position
    Attribute("rank_of", "int64[]"),  # by position in the group
    Attribute("platform", "string", added=True),
    Attribute("tokens", "int64", optional=True),
    Attribute("top_k", "int64", optional=True),
)
# Both are given where devices of several processes take part, and are indexed by partition.
_PROCESSES = (
    Attribute("processes", "int64[]", optional=True),
    Attribute("rails", "int64[]", optional=True),
    Attribute("module", "string", optional=True),  # its fingerprint, once it is complete
)
_TOPOLOGY = Attribute("topology", "int64[]")  # `Topology.words`
_PLANNING = (_TOPOLOGY, Attribute("scheduler", "int64"), Attribute("row_bytes", "int64"))
_EXCHANGE = (
    Attribute("reverse", "bool"),
    Attribute("transposed_table", "bool"),
    Attribute("check_overlaps", "bool", added=True),
    Attribute("gpu_stream", "bool", optional=True),  # not the one that computes
)

# The rows to send, and what the result holds where none arrives.
_ROWS = ("source", "base")

PLAN = CustomCall(
    "fastjax_plan_v1",
    ("send_sizes", "partition"),
    (*_CALL_SITE, *_PROCESSES, *_PLANNING, Attribute("experts", "int64", added=True)),
)
# The result of a plan may have the sizes of all devices behind the table.
GATHER = CustomCall("fastjax_gather_v1", ("counts", "partition"), (*_CALL_SITE, *_PROCESSES))
EXCHANGE = CustomCall(
    "fastjax_exchange_v1",
    (*_ROWS, *Metadata._fields, "table", "partition"),
    (*_CALL_SITE, *_PROCESSES, dataclasses.replace(_TOPOLOGY, added=True), *_EXCHANGE),
    in_place="base",
)
INDEXED_EXCHANGE = dataclasses.replace(
    EXCHANGE,
    target="fastjax_indexed_exchange_v1",
    operands=(*_ROWS, *Metadata._fields, "table", "indices", "factors", "partition"),
)
# Its indices stay on the device. In reverse they are entries, by the row that they are of, and
# `starts` has where those of each row begin.
GPU_INDEXED_EXCHANGE = dataclasses.replace(
    EXCHANGE,
    target="fastjax_gpu_indexed_exchange_v1",
    operands=(*_ROWS, *Metadata._fields, "table", "indices", "factors", "starts", "partition"),
)
# Each call has a number: otherwise XLA would merge two calls of the same operands.
_STAGE = (Attribute("channel", "int64"),)
STAGE = CustomCall(
    "fastjax_stage_v1", (*_ROWS, *Metadata._fields, "table"), _STAGE, in_place="base"
)
INDEXED_STAGE = CustomCall(
    "fastjax_indexed_stage_v1",
    (*_ROWS, *Metadata._fields, "table", "indices", "factors"),
    _STAGE,
    in_place="base",
)
STAGED_EXCHANGE = dataclasses.replace(
    EXCHANGE, target="fastjax_staged_exchange_v1", operands=("base", "partition")
)
INDEXED_STAGED_EXCHANGE = dataclasses.replace(
    STAGED_EXCHANGE, target="fastjax_indexed_staged_exchange_v1"
)
PLAN_EXCHANGE = CustomCall(
    "fastjax_plan_exchange_v1",
    (*_ROWS, *Metadata._fields, "partition"),
    (*_CALL_SITE, *_PROCESSES, *_PLANNING, *_EXCHANGE),
    in_place="base",
)
LOOPBACK = CustomCall(
    "fastjax_loopback_v1",
    (*_ROWS, *Metadata._fields),
    (*_CALL_SITE, *_PLANNING, *_EXCHANGE),
    in_place="base",
)
LOOPBACK_PLAN = CustomCall(
    "fastjax_loopback_plan_v1",
    ("send_sizes",),
    (*_CALL_SITE, *_PLANNING, Attribute("rank", "int64")),
)
AFTER = CustomCall("fastjax_after_v1", ("value", "earlier"), in_place="value")
DETACHED_AFTER = dataclasses.replace(AFTER, target="fastjax_detached_after_v1")
EMPTY = CustomCall("fastjax_empty_v1", ("anything",))

CALLS = {
    call.target: call
    for call in (
        PLAN,
        GATHER,
        EXCHANGE,
        INDEXED_EXCHANGE,
        GPU_INDEXED_EXCHANGE,
        STAGE,
        INDEXED_STAGE,
        STAGED_EXCHANGE,
        INDEXED_STAGED_EXCHANGE,
        PLAN_EXCHANGE,
        LOOPBACK,
        LOOPBACK_PLAN,
        AFTER,
        DETACHED_AFTER,
        EMPTY,
    )
}

__all__ = [
    "AFTER",
    "CALLS",
    "DETACHED_AFTER",
    "EMPTY",
    "EXCHANGE",
    "GATHER",
    "GPU_INDEXED_EXCHANGE",
    "INDEXED_EXCHANGE",
    "INDEXED_STAGE",
    "INDEXED_STAGED_EXCHANGE",
    "LOOPBACK",
    "LOOPBACK_PLAN",
    "PLAN",
    "PLAN_EXCHANGE",
    "STAGE",
    "STAGED_EXCHANGE",
    "Attribute",
    "CustomCall",
    "Metadata",
    "Value",
]
