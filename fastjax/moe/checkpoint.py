"""What `jax.checkpoint` should keep rather than make again."""

from __future__ import annotations

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

TreeT = TypeVar("TreeT")

_NAME = "fastjax_handle"


def named(tree: TreeT) -> TreeT:
    """Names arrays, so that policies of `jax.checkpoint` find them."""
    return jax.tree.map(lambda array: checkpoint_name(array, _NAME), tree)


save_plans = jax.checkpoint_policies.save_only_these_names(_NAME)
"""A policy for `jax.checkpoint` that keeps plans and where each token went, a few integers each.

Without it the backward pass sorts, gathers counts and plans again, as it computes all else again.
Combine it with others by `jax.checkpoint_policies.save_from_both_policies`.
"""
