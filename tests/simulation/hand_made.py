"""Fabrics with round rates, and transfers written by hand."""

import numpy as np

from fastjax import Topology
from fastjax.schedule import TRANSFER_DTYPE

LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)


def fabric_of(servers, per_server, **rates):
    """10 B/s inside servers, 1 B/s between them, nothing else."""
    nothing = {"scale_up_latency": 0, "scale_out_latency": 0, "transfer_overhead": 0}
    rates = {"scale_up_bandwidth": 10, "scale_out_bandwidth": 1} | nothing | rates
    return Topology(servers, per_server, **rates)


def moves(*rows):
    """Transfers of those fields."""
    return np.array(list(rows), TRANSFER_DTYPE)


def straight(pairs, *, phase=SCALE_OUT, stage=0):
    """Rows straight from origin to target; pairs: {(src, dst): rows}."""
    return moves(*((phase, stage, i, j, i, j, 0, rows) for (i, j), rows in pairs.items()))
