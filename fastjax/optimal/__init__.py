"""What no schedule can beat, by integer and linear programming: an oracle for tests and studies.

Stages between servers are solved exactly up to about five servers and nearly so beyond; the time
that a fabric needs for some traffic, whatever the schedule, is a linear program. Both need scipy,
which comes with the extra `fastjax[optimal]`, and take milliseconds to minutes: this is no planner.
"""

from fastjax.optimal.fluid import fluid_lower_bound
from fastjax.optimal.stages import Stages, frontier, min_stages, solve_stages

__all__ = ["Stages", "fluid_lower_bound", "frontier", "min_stages", "solve_stages"]
