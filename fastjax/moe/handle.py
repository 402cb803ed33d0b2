"""What `combine` has to know of a `dispatch`."""

from __future__ import annotations

import dataclasses

import jax

from fastjax.traced.contract import Metadata
from fastjax.traced.plan import TracedPlan

Way = Metadata[jax.Array]
"""Offsets and sizes of one direction: int32, shape (devices * experts of a device,) each."""


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

    kept: jax.Array
    dropped: jax.Array
    group_rows: jax.Array
    plan: TracedPlan
    order: jax.Array  # (tokens * k,): the choice that comes n-th by expert
    place: jax.Array  # (tokens * k,): where each choice is then
    there: Way
    back: Way
    tokens: int
    top_k: int
    rows: int  # of a device's buffer


jax.tree_util.register_dataclass(
    Handle,
    data_fields=["kept", "dropped", "group_rows", "plan", "order", "place", "there", "back"],
    meta_fields=["tokens", "top_k", "rows"],
)
