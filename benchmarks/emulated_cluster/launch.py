"""How tests/support/multiprocess.py starts a job in a cluster, a JAX process on each server."""

import os
from pathlib import Path
from typing import Any

import multiprocess

from emulated_cluster import jobs
from emulated_cluster.fabric import TRUNK, Fabric
from emulated_cluster.system import ClusterError

BENCHMARKS = Path(__file__).parents[1]
PORT = 9876


def run(fabric: Fabric, worker: str, seconds: float, arguments: dict[str, Any]) -> list[Any]:
    """What `serve` of a file of this folder returns in each server, called with `arguments`.

    Raises:
      ClusterError: a process failed, or the job took longer than `seconds`.
    """
    try:
        return multiprocess.run(
            BENCHMARKS / "emulated_cluster" / worker,
            "serve",
            seconds=seconds,
            arguments=arguments,
            **job_in(fabric),
        )
    except multiprocess.JobError as error:
        raise ClusterError(str(error)) from error


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

    All servers see this machine's shared memory, which is why TCP has to be asked for.
    """
    return {
        "FASTJAX_UCX_TRANSPORTS": "tcp",
        "FASTJAX_UCX_NICS": ",".join(fabric.nics),
    }
