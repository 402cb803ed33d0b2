"""What FAST's paper (arXiv 2505.09764) reports, beside which our times are put."""

from __future__ import annotations

import dataclasses

import numpy as np

# Seconds of FAST's planner, by devices, 8 in a server.
PLANNING = {16: 3.1e-6, 32: 25e-6, 64: 221e-6, 96: 805e-6, 320: 77e-3}

MEGA = 10**6
LARGE = tuple(size * MEGA for size in (100, 250, 500, 1000))


def planning_time(devices: int) -> float:
    """Seconds of FAST's planner; between reported ones, a power of the number of devices."""
    known = np.log([*PLANNING]), np.log([*PLANNING.values()])
    return float(np.exp(np.interp(np.log(devices), *known)))


@dataclasses.dataclass(frozen=True)
class Claim:
    """How many times as fast FAST is as another, in its paper.

    Attributes:
      against: the paper's name of the other.
      other: the contestant that stands for it here.
      least, most: the range of the paper's values.
      fabric, workload, sizes: where, on 4 servers of 8.
    """

    against: str
    other: str
    least: float
    most: float
    fabric: str
    workload: str
    sizes: tuple[int, ...]


_ZIPF, _DRAWS = "pair-zipf 0.8", "zipf draws 0.8"
# On pair-Zipf traffic each stands twice, for the two readings of it.
CLAIMS = (
    Claim("NCCL", "direct", 1.2, 1.3, "h200", _DRAWS, LARGE),
    Claim("NCCL", "direct", 1.2, 1.3, "h200", _ZIPF, LARGE),
    Claim("DeepEP", "two-tier", 1.2, 1.5, "h200", _DRAWS, LARGE),
    Claim("DeepEP", "two-tier", 1.2, 1.5, "h200", _ZIPF, LARGE),
    Claim("NCCL", "direct", 1.01, 1.1, "h200", "random", LARGE),
    Claim("RCCL", "direct", 1.3, 2.6, "mi300x", _DRAWS, LARGE),
    Claim("RCCL", "direct", 1.3, 2.6, "mi300x", _ZIPF, LARGE),
    Claim("SpreadOut", "spreadout", 2.5, 2.8, "mi300x", _DRAWS, LARGE),
    Claim("SpreadOut", "spreadout", 2.5, 2.8, "mi300x", _ZIPF, LARGE),
    Claim("RCCL", "direct", 0.6, 0.75, "mi300x", _DRAWS, (8 * MEGA,)),
    Claim("RCCL", "direct", 0.6, 0.75, "mi300x", _ZIPF, (8 * MEGA,)),
)

# GB/s by FAST's definition, balanced traffic, 4 x 8 H200.
BALANCED_ALGBW = {"as published": 58.0, "direct": 58.0, "two-tier": 60.0}

# Time over lower bound of FAST's planner at 48.85 and 380 GB/s without start-ups, by servers.
PLANNER = {
    "random": {2: 1.29, 4: 1.10, 8: 1.04},
    _DRAWS: {2: 1.48, 4: 1.15, 8: 1.08},
    _ZIPF: {2: 1.48, 4: 1.15, 8: 1.08},
    "single flow": {2: 2.80, 4: 2.80, 8: 2.80},
}
