"""The transfers that plans are made of: their fields and their phases."""

from __future__ import annotations

import numpy as np

LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)
PHASES = {BALANCE: "balance", SCALE_OUT: "scale-out", REDISTRIBUTE: "redistribute"}

TRANSFER_DTYPE = np.dtype(
    [
        ("phase", "i1"),
        ("stage", "i4"),
        ("src", "i4"),
        ("dst", "i4"),
        ("origin", "i4"),
        ("target", "i4"),
        ("first_row", "i8"),
        ("rows", "i8"),
    ]
)
"""Fields of `Plan.transfers`.

phase is 0 local, 1 balance, 2 scale-out, 3 redistribute; stage is the scale-out stage that a
balance feeds, a scale-out is part of or a redistribution drains, and -1 for local.
"""
