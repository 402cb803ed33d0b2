"""How tests/support/multiprocess.py starts a job in a cluster, a JAX process on each server."""

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import multiprocess
import records

from emulated_cluster import system
from emulated_cluster.fabric import TRUNK, Fabric, cluster
from emulated_cluster.options import fabric_of, told
from emulated_cluster.system import ClusterError

BENCHMARKS = Path(__file__).parents[1]
PORT = 9876


@contextlib.contextmanager
def recorded(
    schema: str, options: argparse.Namespace, names: Sequence[str]
) -> Generator[tuple[dict[str, Any], Fabric]]:
    """A cluster, and a record that says what it is like, and so many of the options.

    Raises:
      ClusterError: there can be no cluster, or the job in it failed; nothing of either is left.
    """
    record = records.stamp(schema)
    with cluster(fabric_of(options)) as fabric:
        record["fabric"] = dataclasses.asdict(fabric)
        record["topology"] = told(options)
        record["options"] = {name: getattr(options, name) for name in names}
        yield record, fabric


def run(fabric: Fabric, worker: str, options: argparse.Namespace, **arguments: Any) -> list[Any]:
    """What `serve` of a file of this folder returns in each server.

    It is called with the arguments of `Fabric`, those of `fastjax.Topology`, and these.

    Raises:
      ClusterError: a process failed, or the job took longer than it may.
    """
    shape = {"servers": fabric.servers, "devices_per_server": fabric.rails}
    known = {"fabric": dataclasses.asdict(fabric), "topology": shape | told(options)}
    try:
        return multiprocess.run(
            BENCHMARKS / "emulated_cluster" / worker,
            "serve",
            seconds=options.timeout,
            arguments=known | arguments,
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
        "prefix": {server: system.prefix(fabric.namespace(server)) for server in servers},
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
