"""Exchanges whose statistics are collected."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import reference

import fastjax
from fastjax import Topology

# Slow enough that schedulers differ in what they are predicted to take.
TOPOLOGY = Topology(2, 4, scale_up_bandwidth=1e9, scale_out_bandwidth=1e8)


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Statistics of what runs inside alone."""
    with fastjax.collect_stats():
        fastjax.reset_stats()
        yield
    fastjax.reset_stats()


def exchange(*args: Any, topology: Topology = TOPOLOGY, **options: Any) -> Any:
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x", topology=topology, **options)


def case(rng: Any, most: int = 40) -> Any:
    """Metadata, and operands and outputs that have room for any."""
    sizes = reference.random_sizes(rng, 8, 8, most)
    operand, output = rng.normal(size=(2, 8, 320, 3)).astype(np.float32)
    return reference.packed(sizes), operand, output


def launch(run: Any, meta: Any, *data: Any) -> Any:
    return jax.block_until_ready(run(*data, *meta.arrays()))
