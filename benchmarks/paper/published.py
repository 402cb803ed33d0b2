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
    """How many times as fast one is as another, in a paper.

    Attributes:
      who, against: the paper's names of the two.
      one, other: contestants that stand for them here.
      least, most: the range of the paper's values.
      preset, workload, sizes: where, on 4 servers of 8.
      why: what may account for a difference.
    """

    who: str
    against: str
    one: str
    other: str
    least: float
    most: float
    preset: str
    workload: str
    sizes: tuple[int, ...]
    why: str


_ZIPF, _DRAWS = "pair-zipf 0.8", "zipf draws 0.8"
_RANKS = (
    "Shares by rank over all 1,024 pairs: the largest has a sixteenth of all rows, and its sender "
    "twice a device's mean for its one NIC. The paper's pairs seem to have drawn for themselves."
)
_SPREADOUT = "The paper's SpreadOut may lose more to its barriers: here a start-up is 10 µs."
_EVEN = (
    "Here blocks are anything from nothing to twice the mean: devices send unlike amounts, so that "
    "`direct` is behind without any incast too. The paper's may be more alike."
)

_KERNELS = "The forwarding peer hands rows on as they come, by kernels that cost nothing here."
_ROCE = "What is lost to incast over RoCE is a guess inside the range of its sources."
_SMALL = (
    "The paper has FAST behind, we have it ahead, and we do not know why. 8 MB take 0.7 ms at the "
    "bound; start-ups of 10 µs a stage are nothing beside that, and would have to be fifty times "
    "as long."
)

# On pair-Zipf traffic each stands twice, for the two readings of it.
CLAIMS = (
    Claim("FAST", "NCCL", "as published", "direct", 1.2, 1.3, "h200", _DRAWS, LARGE, ""),
    Claim("FAST", "NCCL", "as published", "direct", 1.2, 1.3, "h200", _ZIPF, LARGE, _RANKS),
    Claim("FAST", "DeepEP", "as published", "two-tier", 1.2, 1.5, "h200", _DRAWS, LARGE, _KERNELS),
    Claim("FAST", "DeepEP", "as published", "two-tier", 1.2, 1.5, "h200", _ZIPF, LARGE, _RANKS),
    Claim("FAST", "NCCL", "as published", "direct", 1.01, 1.1, "h200", "random", LARGE, _EVEN),
    Claim("FAST", "RCCL", "as published", "direct", 1.3, 2.6, "mi300x", _DRAWS, LARGE, _ROCE),
    Claim("FAST", "RCCL", "as published", "direct", 1.3, 2.6, "mi300x", _ZIPF, LARGE, _RANKS),
    Claim(
        *("FAST", "SpreadOut", "as published", "spreadout", 2.5, 2.8),
        *("mi300x", _DRAWS, LARGE, _SPREADOUT),
    ),
    Claim(
        *("FAST", "SpreadOut", "as published", "spreadout", 2.5, 2.8),
        *("mi300x", _ZIPF, LARGE, _RANKS),
    ),
    Claim(
        *("FAST", "RCCL", "as published", "direct", 0.6, 0.75),
        *("mi300x", _DRAWS, (8 * MEGA,), _SMALL),
    ),
    Claim(
        *("FAST", "RCCL", "as published", "direct", 0.6, 0.75),
        *("mi300x", _ZIPF, (8 * MEGA,), _SMALL),
    ),
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

# MB a device below which balancing and sending everything at once beats FAST's stages.
STAGING_PAYS_FROM = (33, 65)
MEMORY = (0.30, 0.63, 0.90)
