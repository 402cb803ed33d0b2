"""Errors that fastjax raises, and warnings.

Those of a running program come from inside the compiled code and reach the user as
`jax.errors.JaxRuntimeError`; the classes here are for what is refused before that.
"""


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


class FallbackWarning(UserWarning):
    """A program for GPUs uses operations of JAX, since there is no backend of ours for them."""


class CalibrationWarning(UserWarning):
    """A calibration file cannot be used, and defaults take its place."""


class OptionWarning(UserWarning):
    """An environment variable has no effect: its name is almost that of an option."""


__all__ = [
    "ArgumentError",
    "CalibrationWarning",
    "FallbackWarning",
    "FastjaxError",
    "OptionError",
    "OptionWarning",
    "TopologyError",
    "UnsupportedError",
]
