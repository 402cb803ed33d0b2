"""The best stages between servers, by integer and linear programming.

Solved exactly up to about five servers and nearly so beyond, in milliseconds to minutes. It needs
scipy, which comes with the extra `fastjax[optimal]`.
"""

from fastjax.optimal.search import solve_stages as solve_stages
