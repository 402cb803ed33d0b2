"""What `combine` has to know of a `dispatch`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from fastjax.traced.plan import TracedPlan


@dataclasses.dataclass(frozen=True)
class Way:
    """Offsets and sizes of one direction, as `fast_ragged_all_to_all` takes them.

    int32, shape (devices * experts of a device,) each.
    """

    input_offsets: Any
    send_sizes: Any
    output_offsets: Any
    recv_sizes: Any

    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """In the order of the exchange's arguments."""
        return self.input_offsets, self.send_sizes, self.output_offsets, self.recv_sizes


@dataclasses.dataclass(frozen=True)
class Handle:
    """What `combine` has to know of a `dispatch`: a pytree, of this device's integers.

    Attributes:
      kept: bool, shape (tokens, k): which choices went to their experts; where not, `combine` adds
        nothing for them.
      dropped: int32: how many choices of this device found no room. Those of expert -1 want none.
      group_rows: int32, shape (experts of a device,): rows that arrived for each local expert,
        without padding.
      plan: of both exchanges, and of their gradients.
    """

    kept: Any
    dropped: Any
    group_rows: Any
    plan: TracedPlan
    order: Any  # (tokens * k,): the choice that comes n-th by expert
    place: Any  # (tokens * k,): where each choice is then
    there: Way
    back: Way
    tokens: int
    top_k: int
    rows: int  # of a device's buffer


jax.tree_util.register_dataclass(
    Way,
    data_fields=["input_offsets", "send_sizes", "output_offsets", "recv_sizes"],
    meta_fields=[],
)
jax.tree_util.register_dataclass(
    Handle,
    data_fields=["kept", "dropped", "group_rows", "plan", "order", "place", "there", "back"],
    meta_fields=["tokens", "top_k", "rows"],
)
