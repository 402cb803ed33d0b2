"""How tests/support/multiprocess.py starts a job in a cluster, a JAX process on each server."""

import os
from pathlib import Path
from typing import Any

from emulated_cluster import jobs
from emulated_cluster.fabric import TRUNK, Fabric

BENCHMARKS = Path(__file__).parents[1]
PORT = 9876


def job_in(fabric: Fabric) -> dict[str, Any]:
    """What `multiprocess.run` and `multiprocess.Job` take besides a file and a function.

    Processes have a device for each rail. jax.distributed and gloo use the trunk.
    """
    coordinator = f"{fabric.address(0, TRUNK)}:{PORT}"
    servers = range(fabric.servers)
    paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
    return {
        "processes": fabric.servers,
        "devices": fabric.rails,
        "environment": environment(fabric) | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        "initialize": {"coordinator_bind_address": coordinator},
        "prefix": {server: jobs.prefix(fabric.namespace(server)) for server in servers},
        "coordinator": coordinator,
    }


def environment(fabric: Fabric) -> dict[str, str]:
    """What fastjax is told of the cluster.

    All servers see this machine's shared memory, which is why TCP has to be asked for, and none has
    the speeds that somebody may have measured on it.
    """
    return {
        "FASTJAX_UCX_TRANSPORTS": "tcp",
        "FASTJAX_UCX_NICS": ",".join(fabric.nics),
        "FASTJAX_CALIBRATION": "off",
    }
