"""What make_plan and plans on the host refuse, and what they still take."""

import math
from functools import partial

import jax
import numpy as np
from refusals import bounds, keywords, refusals, refused

import fastjax
from fastjax import Topology, make_plan
from fastjax.errors import ArgumentError, OptionError, TopologyError

ONES = np.ones((4, 4), int)
SQUARE = Topology(2, 2)
MOST = 2**62 // 16  # rows of a block, of 16


def planning(traffic=ONES, topology=SQUARE, **options):
    return lambda: make_plan(traffic, topology, **options)


def with_block(row, column, rows, dtype=np.int64):
    traffic = np.ones((4, 4), dtype)
    traffic[row, column] = rows
    return planning(traffic)


test_bounds = bounds(
    ArgumentError,
    *keywords(
        partial(make_plan, ONES, SQUARE),
        row_bytes=([0, -1, 1.5, 2**40], [1, 2**40 - 1]),
        time_limit=([0, -1.0, math.nan], [math.nextafter(0, 1), math.inf]),
    ),
    ("topology", lambda v: make_plan(ONES, v), [(2, 2), None], [SQUARE]),
    ("device must be from 0 to 3", lambda v: planning()().stage_table(v), [-1, 4], [0, 3]),
)

SHAPE = "traffic must have shape (4, 4) for a topology of 2 x 2 devices"
TOO_MANY = "traffic has more rows than int64 can add up"

test_refused_traffic = refusals(
    ArgumentError,
    (planning(np.ones((4, 3), int)), SHAPE, "got (4, 3)"),
    (planning(np.ones((1, 4, 4), int)), SHAPE, "got (1, 4, 4)"),
    (planning(7), SHAPE, "got ()"),
    (planning([[1, 2], [3]]), "traffic must be a matrix"),
    (
        lambda: jax.eval_shape(partial(make_plan, topology=SQUARE), ONES),
        "inside programs, plan with",
    ),
    (planning(ONES * 1.0), "traffic must be integers (rows), got float64"),
    (planning(ONES > 0), "traffic must be integers (rows), got bool"),
    (with_block(2, 3, -5), "traffic must be 0 or more, got traffic[2, 3] = -5"),
    (with_block(1, 0, MOST + 1), TOO_MANY),
    (with_block(1, 0, 2**64 - 1, np.uint64), TOO_MANY),
)


def test_traffic_at_its_bounds():
    for rows in (0, MOST):
        assert with_block(1, 0, rows)().traffic[1, 0] == rows


def test_schedulers_and_topologies():
    known = ", ".join(fastjax.schedulers())
    refused(OptionError, planning(scheduler="slow"), f"must be one of {known}; got 'slow'")
    many = planning(np.zeros((2, 2), int), Topology(2, 2**14))
    refused(TopologyError, many, "2 x 16384 devices", "32767")
