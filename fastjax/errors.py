"""Errors that fastjax raises, and warnings.

Those of a running program come from inside the compiled code, and JAX raises them:
`EXCHANGE_ERRORS` are the classes to catch, and `is_exchange_error` tells exchanges from all else.
The other classes here are raised before that.
"""

import re

import jax

EXCHANGE_ERRORS: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError, ValueError)
"""The exceptions that JAX raises for an exchange that fails in a running program.

That is `jax.errors.JaxRuntimeError`. But where a process has one device, it is `ValueError` from
the second or third call of a jitted function on, with the same text. Both have other uses, too.
"""

# How the text begins, perhaps inside a text of JAX's.
_OF_AN_EXCHANGE = re.compile(
    r"(?:\w+_all_to_all|gather_counts) over axis .+? \(channel -?\d+\): |\bfastjax: "
)


class FastjaxError(Exception):
    """Base of all errors of this package."""


class ArgumentError(FastjaxError, ValueError):
    """An argument is wrong: its shape, its type or how it fits the others."""


class TopologyError(FastjaxError, ValueError):
    """A topology is impossible, or does not fit the axis it is used with."""


class OptionError(FastjaxError, ValueError):
    """An option or an environment variable has a value that means nothing."""


class UnsupportedError(FastjaxError, ValueError):
    """The request is well formed, but there is no way to carry it out."""


def is_exchange_error(error: BaseException) -> bool:
    """Whether an exchange, or its planning, has failed in a running program."""
    of_jax = isinstance(error, EXCHANGE_ERRORS) and not isinstance(error, FastjaxError)
    return of_jax and _OF_AN_EXCHANGE.search(str(error)) is not None


class FallbackWarning(UserWarning):
    """A program for GPUs uses operations of JAX, since there is no backend of ours for them."""


class OptionWarning(UserWarning):
    """An environment variable has no effect: its name is almost that of an option."""


class ReplicatedTokensWarning(UserWarning):
    """All devices have the same tokens, and a layer has experts work on those of each."""


class ThreadsWarning(UserWarning):
    """JAX's CPU client has too few threads for many launches in flight between processes."""


class TopologyWarning(UserWarning):
    """Exchanges are planned for another fabric than devices, or rates, seem to be of."""


__all__ = [
    "EXCHANGE_ERRORS",
    "ArgumentError",
    "FallbackWarning",
    "FastjaxError",
    "OptionError",
    "OptionWarning",
    "ReplicatedTokensWarning",
    "ThreadsWarning",
    "TopologyError",
    "TopologyWarning",
    "UnsupportedError",
    "is_exchange_error",
]
