"""What `dispatch` and `combine` are given, checked."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.errors import ArgumentError
from fastjax.traffic import checks

_P = ParamSpec("_P")
_T = TypeVar("_T")


def with_buffer_factor(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, which says so to those who give it `capacity_factor`, as other layers have."""

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if "capacity_factor" in kwargs:
            raise TypeError(
                f"moe.{function.__name__} takes buffer_factor instead of capacity_factor: the room "
                "of a device for arriving rows, which its experts share, as a multiple of "
                "tokens * k."
            )
        return function(*args, **kwargs)

    return checked


class Tokens(NamedTuple):
    """Tokens of a device, in one dimension.

    Attributes:
      x: shape (tokens, width).
      expert_ids: experts of each, shape (tokens, k); -1 for none.
      weights: of each token's choices, shape (tokens, k), or None.
      shape: of the tokens as they were given: that of x without its width.
    """

    x: jax.Array
    expert_ids: jax.Array
    weights: jax.Array | None
    shape: tuple[int, ...]

    def restored(self, rows: jax.Array) -> jax.Array:
        """Rows of tokens, shape (tokens, columns), in the shape that tokens were given in."""
        return rows.reshape(*self.shape, rows.shape[1])


def check_tokens(
    x: jax.Array,
    expert_ids: jax.Array,
    weights: jax.Array | None,
    num_experts: int,
    no_expert: int | None,
) -> Tokens:
    """Tokens, the experts of each, and the weights of its choices; refused if they do not fit."""
    x, expert_ids = jnp.asarray(x), jnp.asarray(expert_ids)
    if x.ndim < 1:
        raise ArgumentError("x must be tokens, shape (..., width), got one number.")
    shape, choices = x.shape[:-1], expert_ids.shape
    if len(choices) != x.ndim or choices[:-1] != shape or choices[-1] < 1:
        wanted = ", ".join([*map(str, shape), "k"])
        raise ArgumentError(
            f"expert_ids must have the experts of each token of x, which has shape {x.shape}: "
            f"shape ({wanted}), got shape {choices}."
        )
    if not np.issubdtype(expert_ids.dtype, np.integer):
        raise ArgumentError(f"expert_ids must be integers, got {expert_ids.dtype}.")
    if weights is not None:
        weights = check_weights(weights, choices)
    if no_expert is not None:
        expert_ids = _marked(expert_ids, num_experts, no_expert)
    return Tokens(in_one_dimension(x), in_one_dimension(expert_ids), weights, shape)


def in_int32(expert_ids: jax.Array) -> jax.Array:
    """Numbers in int32, and in place of those that it does not hold the nearest that it does."""
    if expert_ids.dtype == jnp.int32:
        return expert_ids
    of, held = jnp.iinfo(expert_ids.dtype), jnp.iinfo(jnp.int32)
    return jnp.clip(expert_ids, max(of.min, held.min), min(of.max, held.max)).astype(jnp.int32)


def _marked(expert_ids: jax.Array, num_experts: int, no_expert: int) -> jax.Array:
    """Experts in int32, with -1 for `no_expert`."""
    check_count("num_experts", num_experts)
    is_integer = isinstance(no_expert, (int, np.integer)) and not isinstance(no_expert, bool)
    if not is_integer or 0 <= no_expert < num_experts:
        raise ArgumentError(
            "no_expert must be an integer that is not the number of an expert, 0 to "
            f"{num_experts - 1}; got {no_expert!r}."
        )
    of = jnp.iinfo(expert_ids.dtype)
    if not of.min <= no_expert <= of.max:
        raise ArgumentError(
            f"no_expert must be a number that expert_ids can hold, which are {expert_ids.dtype}; "
            f"got {no_expert}."
        )
    return jnp.where(expert_ids == no_expert, -1, in_int32(expert_ids))


def check_weights(weights: jax.Array, choices: tuple[int, ...]) -> jax.Array:
    """Weights of choices, of this shape; shape (tokens, k)."""
    weights = jnp.asarray(weights)
    if weights.shape != choices:
        raise ArgumentError(
            f"weights must have one for each choice of expert_ids, shape {choices}, got shape "
            f"{weights.shape}."
        )
    return in_one_dimension(weights)


def in_one_dimension(array: jax.Array) -> jax.Array:
    """An array of tokens, shape (..., columns), as one of shape (tokens, columns)."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def check_functions(expert_fn: Any, grouped_fn: Any) -> None:
    """Refuses all but one function that can be called with the arguments that it will get."""
    usage = (
        "moe.layer needs expert_fn, a function of (rows, params) for the rows of one expert, or "
        "grouped_fn, one of (rows, group_sizes, params) for all rows of a device"
    )
    given = {"expert_fn": (expert_fn, 2), "grouped_fn": (grouped_fn, 3)}
    given = {name: pair for name, pair in given.items() if pair[0] is not None}
    if len(given) != 1:
        raise ArgumentError(f"{usage}; got {'both' if given else 'neither'}.")
    ((name, (function, wanted)),) = given.items()
    if not callable(function):
        raise ArgumentError(f"{usage}; {name} is {type(function).__name__}, no function.")
    of = getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(function).bind(*range(wanted))
    except TypeError as error:
        raise ArgumentError(f"{usage}; {name}={of} takes other arguments: {error}.") from error
    except ValueError:
        pass  # some built-in functions have no signature


def check_count(name: str, value: object) -> None:
    """Refuses what is no positive int32."""
    checks.integer(name, value, 1, 2**31 - 1)


def check_experts(num_experts: int, devices: int) -> None:
    """Refuses experts that do not divide over the devices."""
    check_count("num_experts", num_experts)
    if num_experts % devices:
        raise ArgumentError(
            f"num_experts must be a multiple of the {devices} devices that share them, as many on "
            f"each; got {num_experts}."
        )


def check_range(rows: int, choices: int) -> None:
    """Refuses more rows or choices than int32 counts."""
    if choices >= 2**31:
        raise ArgumentError(
            f"the devices have {choices} choices together, more than int32 counts; dispatch fewer "
            "tokens at a time."
        )
    if rows >= 2**31:
        raise ArgumentError(
            f"a device would have room for {rows} rows, more than int32 counts; give a smaller "
            "buffer_factor or alignment, or dispatch fewer tokens at a time."
        )


def room_of(tokens: int, top_k: int, here: int, devices: int, buffer_factor: float | None) -> int:
    """Rows that a device has room for, without padding.

    Args:
      tokens: of a device.
      top_k: choices of a token.
      here: experts of a device.
      devices: those that share the experts.
      buffer_factor: see `dispatch`.
    """
    if buffer_factor is None:
        return tokens * min(top_k, here) * devices
    is_number = isinstance(buffer_factor, (int, float, np.number))
    if isinstance(buffer_factor, bool) or not is_number or not 0 < buffer_factor < math.inf:
        raise ArgumentError(f"buffer_factor must be a positive number, got {buffer_factor!r}.")
    return math.ceil(min(buffer_factor, devices) * tokens * top_k)


def check_decision(name: str, value: object) -> None:
    """Refuses what is neither yes nor no nor left out."""
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(f"{name} must be True, False or None, got {value!r}.")


def check_replicated(replicated: object, groups: object) -> None:
    """Refuses what is neither yes nor no, and groups of devices that have the same tokens."""
    if not isinstance(replicated, bool):
        raise ArgumentError(f"replicated must be True or False, got {replicated!r}.")
    if replicated and groups is not None:
        raise ArgumentError(
            "replicated=True is for all devices of an axis, and cannot have axis_index_groups: "
            "give the mesh an axis for each group's devices."
        )


def check_params(params: Any, count: int, owners: str = "experts of this device") -> None:
    """Refuses params without an entry for each expert of a device, or each group."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        shape = np.shape(leaf)
        if shape[:1] != (count,):
            raise ArgumentError(
                f"params must have an entry for each of the {count} {owners}, shape ({count}, "
                f"...); params{jax.tree_util.keystr(path)} has shape {shape}. In a layer "
                "the in_specs of the shard_map must hand out those of each device, "
                "jax.P(axis_name). The function may use what all share from around it."
            )


def check_chunks(chunks: Any, tokens: int) -> None:
    """Refuses what is no number of chunks of so many tokens, or left out."""
    if chunks is None:
        return
    check_count("chunks", chunks)
    if chunks > max(1, tokens):
        raise ArgumentError(
            f"chunks must be at most the {tokens} tokens of a device, got {chunks}."
        )


def check_travelling(weights: jax.Array, deduplicate: bool | None) -> bool | None:
    """Whether to deduplicate tokens with these weights, which complex ones cannot travel with."""
    if not jnp.issubdtype(weights.dtype, jnp.complexfloating):
        return deduplicate
    if deduplicate:
        raise ArgumentError(
            f"weights must be real to travel with deduplicated tokens, got {weights.dtype}; give "
            "deduplicate=False."
        )
    return False
