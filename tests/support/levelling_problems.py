"""Rows of experts to level and to deal, and what was made of them."""

import functools
from typing import NamedTuple

import jax
import numpy as np
from hypothesis import strategies as st

from fastjax.traced.levelling import deal, level


class Shape(NamedTuple):
    servers: int
    devices: int
    here: int
    copies: int
    cost_rows: int

    @property
    def ranks(self):
        return self.servers * self.devices

    @property
    def experts(self):
        return self.ranks * self.here

    @property
    def options(self):
        return {k: v for k, v in self._asdict().items() if k != "here"}

    @property
    def group(self):
        return {"servers": self.servers, "devices": self.devices}


SHAPES = [
    Shape(1, 1, 3, 1, 0),
    Shape(1, 2, 1, 3, 0),
    Shape(1, 5, 2, 2, 0),
    Shape(1, 4, 4, 3, 6),
    Shape(3, 1, 2, 2, 1),
    Shape(2, 3, 3, 4, 0),
    Shape(3, 2, 2, 1, 25),
]
SMALL = Shape(2, 2, 2, 2, 1)


def small_counts(rng, *batch):
    return rng.poisson(rng.gamma(0.5, size=8) * 20, size=(*batch, 4, 8)).astype(np.int32)


@st.composite
def problems(draw, means=(0.5, 10, 1000, 10**6)):
    shape = draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.2, 1, 5]))
    rows = rng.gamma(spread, size=shape.experts) * rng.gamma(1, size=(shape.ranks, shape.experts))
    rows *= draw(st.sampled_from(means))
    return shape, np.minimum(rows, 2**31 // (2 * rows.size)).astype(np.int32)


@functools.cache
def compiled(function, **options):
    return jax.jit(functools.partial(function, **options))


def levelled(shape, counts):
    """By the call."""
    return compiled(level, **shape.options)(counts.sum(-2, dtype=np.int32))


def dealt(shape, counts):
    """Slots, sizes and starts of all rows, by the calls; as numpy arrays."""
    made = levelled(shape, counts)
    arrays = (made.slots, *compiled(deal, **shape.group)(counts, made))
    return [np.asarray(a) for a in arrays]


def groups_of(shape, slots):
    """The expert of each group of each device, or -1."""
    home = np.arange(shape.experts).reshape(shape.ranks, shape.here)
    return np.concatenate([home, slots], axis=1)
