"""What is known of a layer of experts that others wrote."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from edits import Edit

DEVICES, EXPERTS, TOP_K = 8, 16, 2
WIDTH, INNER = 128, 256
SEQUENCES, LENGTH = 16, 64  # of all devices
# How much a router prefers the first two experts. With 20 all tokens go there, and devices that
# have only other experts receive nothing.
PREFERENCES = [0.0, 20.0]


def tokens() -> jax.Array:
    """Random ones, which all begin with 1: by that a router can prefer an expert."""
    shape = SEQUENCES, LENGTH, WIDTH
    return jax.random.normal(jax.random.key(1), shape).at[..., 0].set(1.0)


def router_and_kernels() -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Random matrices of a router, and those of all experts: two up, shape (experts, from, to), and
    one down."""
    *keys, of_router = jax.random.split(jax.random.key(0), 4)
    shapes = [(EXPERTS, WIDTH, INNER)] * 2 + [(EXPERTS, INNER, WIDTH)]
    some = lambda key, shape: jax.random.normal(key, shape) / shape[-2] ** 0.5  # noqa: E731
    return some(of_router, (WIDTH, EXPERTS)), tuple(map(some, keys, shapes))


def prefer_first(router: jax.Array, preference: float) -> jax.Array:
    return router.at[0, :2].add(preference)


def some_groups(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, group_offset: Any, **_: Any
) -> jax.Array:
    """What kernels for TPUs make of all rows: products of those groups that there are matrices for.

    The first of these is number `group_offset`. Other rows are zeros.
    """
    ends = jnp.cumsum(group_sizes)
    start = ends[group_offset] - group_sizes[group_offset]
    sizes = jax.lax.dynamic_slice_in_dim(group_sizes, group_offset, len(rhs))
    result = jax.lax.ragged_dot(jnp.roll(lhs, -start, axis=0), rhs, sizes)
    inside = jnp.arange(len(lhs)) < sizes.sum()
    return jnp.roll(jnp.where(inside[:, None], result, 0), start, axis=0)


@dataclass(frozen=True)
class Layer:
    """A layer, to be traced in a scope.

    Attributes:
      function: of parameters and tokens, to the layer's result.
      params: for each of `PREFERENCES`.
      scope: of its mesh.
      x: tokens.
    """

    function: Callable[[Any, jax.Array], jax.Array]
    params: Sequence[Any]
    scope: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    x: jax.Array = field(default_factory=tokens)


@dataclass(frozen=True)
class Case:
    """A layer of a tree, and what would change there.

    Attributes:
      module: that has the layer.
      build: the layer, of the module as it is or edited.
      edits: what changes for `fastjax.moe`, for the options that `build` chooses: no biases, no
        dropout, no quantized matrices.
      exchanges: calls of `jax.lax.ragged_all_to_all` in a program with gradients.
      folder: of the tree, from which Python imports.
      absent: modules that are imported and that the layer does not use; they need not be there.
      bare: packages of the tree that import more than the layer needs; only their modules are.
      replaced: names of the module that it has to find otherwise, on CPU devices.
      own_gradients: whether those of `jax.lax.ragged_all_to_all` are right. They are not where rows
        go to several devices; then gradients are compared with those under the swap.
      options: of `build`.
    """

    module: str
    build: Callable[..., Layer]
    edits: Sequence[Edit]
    exchanges: int
    folder: str = "."
    absent: Sequence[str] = ()
    bare: Sequence[str] = ()
    replaced: dict[str, Any] = field(default_factory=dict)
    own_gradients: bool = True
    options: dict[str, Any] = field(default_factory=dict)
