"""The custom calls: what each is called, and its operands and attributes, as handlers declare them.

ffi/handlers/contract.cc has the declarations, by which handlers decode operands and attributes. The
lowering rules emit calls by them, and tests make calls of their own by them. Compiled and exported
programs contain all of it, so it is a format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from fastjax import _core

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


class Attribute(NamedTuple):
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
      in_place: the place of the operand whose memory the result takes; -1: there is none.
    """

    target: str
    attributes: tuple[Attribute, ...] = ()
    operands: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    in_place: int = -1

    @property
    def aliases(self) -> dict[int, int]:
        """The operand, by its place, in whose memory the result is."""
        return {} if self.in_place < 0 else {self.in_place: 0}

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


def _declared() -> dict[str, CustomCall]:
    """The calls that there are handlers of, by target."""
    return {
        target: CustomCall(
            target,
            tuple(Attribute(*given) for given in attributes),
            tuple(name for name, needed in operands if needed),
            tuple(name for name, needed in operands if not needed),
            in_place,
        )
        for target, (operands, attributes, in_place) in _core.declared_calls().items()
    }


CALLS = _declared()

PLAN = CALLS["fastjax_plan_v2"]
"""Plans, gathers the sizes of all devices, or both: the result is the table, the sizes behind it.

Without `partition`, one device has all ranks, and wants the table of one of them. Without a
scheduler it does not plan, and tells statistics the topology.
"""

EXCHANGE = CALLS["fastjax_exchange_v2"]
"""Without a table it plans itself; without `partition`, one device has all ranks.

`source` has the rows to send, `base` what the result holds where none arrives. On GPUs indices stay
on the device, and come with `starts`: in reverse they are entries, by the row that they are of, and
`starts` has where those of each row begin. A token is that of a start.
"""

START = CALLS["fastjax_start_v2"]
"""The token of an exchange that begins after those whose tokens are among the operands.

Each call has a number: otherwise XLA would merge two calls of the same operands.
"""

DONE = CALLS["fastjax_done_v2"]
"""Its first operand, once all others exist, whose memory is not given away before.

On GPUs, the rows of an exchange that was started, once they have come.
"""

AFTER = CALLS["fastjax_after_v2"]
"""The same, for any array."""

LEVEL = CALLS["fastjax_level_v2"]
"""Which devices compute rows of popular experts: slots and rows, one behind the other.

Operands are int32, shape (..., experts), the result (..., words). On CPU devices only.
"""

DEAL = CALLS["fastjax_deal_v2"]
"""Deals each sender's rows to these devices: sizes and starts, one behind the other.

Counts are int32, shape (..., senders, experts); slots and rows as LEVEL returns them.
"""

EMPTY = CALLS["fastjax_empty_v2"]
