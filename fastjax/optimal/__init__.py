"""The best stages there are, by integer and linear programming: an oracle for tests and studies.

Stages between servers are solved exactly up to about five servers and nearly so beyond. It needs
scipy, which comes with the extra `fastjax[optimal]`, and takes milliseconds to minutes: this is no
planner.
"""

from fastjax.optimal.stages import Stages, solve_stages

__all__ = ["Stages", "solve_stages"]
