"""One list of checks (exchange_checks), on every backend (exchange_jobs)."""

from __future__ import annotations

from typing import Any

import multiprocess
import pytest
from gpu_check import machine
from gpu_support import device_of

from exchange_checks import CHECKS, exchange_jobs
from exchange_checks.exchange_jobs import CONFIGURATIONS, ON_CPUS, ON_GPUS

NCCL_OF_SHARED_GPUS = (2, 30, 3)  # the first that has ranks share a GPU, where it is told to


def marks(configuration: str, name: str) -> list[Any]:
    found = []
    if configuration == "cpu memory":
        found.append(pytest.mark.every_jax)
        if CHECKS[name].sanitized:
            found.append(pytest.mark.sanitize)
    if configuration in ON_GPUS:
        found.append(pytest.mark.gpu)
    job = CONFIGURATIONS[configuration].job
    if job is not None:
        # One worker waits for a job, as long as that may take.
        group = next(name for name, made in CONFIGURATIONS.items() if made.job is job)
        found += [pytest.mark.timeout(job.seconds + 20), pytest.mark.xdist_group(group)]
    return found


def cases() -> list[Any]:
    return [
        pytest.param(
            configuration, name, id=f"{configuration}: {name}", marks=marks(configuration, name)
        )
        for configuration, made in CONFIGURATIONS.items()
        for name in made.checks()
    ]


@pytest.mark.parametrize(("configuration", "name"), cases())
def test_exchanges(configuration, name):
    made = CONFIGURATIONS[configuration]
    if configuration in ON_GPUS:
        device_of("gpu")
    if why := lacking(made):
        pytest.skip(why)
    if made.job is None:
        CHECKS[name].run(made.backend)
        return
    results = [result[configuration][name] for result in in_processes(made.job)]
    assert [result["error"] for result in results] == [""] * made.backend.processes
    values = [result["value"] for result in results]
    assert values == values[:1] * len(values)


def lacking(made):
    """What this machine has not."""
    if made.shares_a_gpu and machine.nccl()[1] < NCCL_OF_SHARED_GPUS:
        return f"NCCL {machine.nccl()[1]} has no two processes share a GPU; 2.30.3 does"
    if made.backend.processes > 1 and not machine.has_ucx():
        return "processes find each other by UCX, and there is no libucx here"
    return ""


def in_processes(job):
    of_job = {name: made for name, made in CONFIGURATIONS.items() if made.job is job}
    names = (name for name, made in of_job.items() if not lacking(made))
    results = exchange_jobs.outcomes(job, tuple(names))
    if isinstance(results, multiprocess.JobError):
        raise results
    return results


@pytest.mark.parametrize(
    "configuration", [n for n, made in ON_CPUS.items() if made.job is not None]
)
def test_a_job_is_of_the_backend_that_it_is_for(configuration):
    job = CONFIGURATIONS[configuration].job
    emulated = job.environment["FASTJAX_EMULATE_GPU"] == "1"
    for result in in_processes(job):
        assert result[configuration]["used"] == {
            "network": not emulated,
            "messages refused": False,
            "GPU": emulated,
        }
