"""An exchange that says when it has begun, so that others begin after it, on all devices alike."""

from __future__ import annotations

import jax

from fastjax.traced.after import after
from fastjax.traced.contract import Metadata
from fastjax.traced.plan import TracedPlan
from fastjax.traced.start_done import done, start


def exchange_ordered(
    operand: jax.Array,
    output: jax.Array,
    metadata: Metadata[jax.Array],
    plan: TracedPlan,
    earlier: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """An exchange that is known to fit its plan, and that others are to begin after.

    Args:
      operand: see `start`.
      output: see there.
      metadata: see there.
      plan: see there.
      earlier: any array, such as one that the operand already waits for.

    Returns:
      The rows, and `earlier`, which exists once the exchange has its place in the order.
    """
    begun = start(operand, output, metadata, plan, after=[earlier])
    return done(begun), after(earlier, begun.token)


__all__ = ["exchange_ordered"]
