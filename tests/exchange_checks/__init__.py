"""Exchanges that every backend must carry out: one list of checks, against numpy.

`listed.CHECKS` is the list. What a check may know of a backend is in `backends`. Which backends
there are is in exchange_jobs.py.
"""

from exchange_checks import gradients, groups, indexed, mistakes, programs, values
from exchange_checks.listed import CHECKS

__all__ = ["CHECKS", "gradients", "groups", "indexed", "mistakes", "programs", "values"]
