"""The network between the processes of a job: found, opened and closed.

The first exchange that spans processes opens it, while it is lowered. What processes have to tell
each other before they can talk (a secret, and addresses) goes through the key-value store that
`jax.distributed.initialize()` has started; rows never do.
"""

from fastjax.network.bootstrap import ensure_open as ensure_open
from fastjax.network.modules import follow as follow
from fastjax.network.report import report as report
