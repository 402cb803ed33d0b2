"""Exchanges between two processes that share one GPU: over NCCL, and in each other's memory."""

import functools
import re

import exchanges
import multiprocess
import pytest
from gpu_check import lineup, machine
from gpu_support import device_of

# One job serves many tests, so they are one worker's, who waits for it as long as it may take.
SECONDS = 70
pytestmark = [pytest.mark.xdist_group("two processes"), pytest.mark.timeout(SECONDS + 20)]

CHECKS = (
    *("without_any_option", "every_scheduler", "data_types", "nothing_to_send", "gradients"),
    *("planned_reused_and_transposed", "scan"),
)
# The gradient of an exchange has devices tell each other where rows come from by XLA's all-to-all,
# which is NCCL's, whatever the rows go by.
WITHOUT_NCCL = tuple(name for name in CHECKS if name != "gradients")
ENVIRONMENT = {
    "JAX_PLATFORMS": "cuda,cpu",
    "FASTJAX_TEST_PLATFORM": "gpu",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
COLLECTIVE = re.compile(
    r".*\b(?:all-(?:reduce|gather|to-all)|collective-\w+|reduce-scatter)(?:-start)?\(.*"
)
# There is nothing that messages could go by: what works, works by shared memory.
SHARED_MEMORY = {"FASTJAX_GPU_IPC": "1", "FASTJAX_NCCL_LIBRARY": "libno_nccl_is_called_that.so"}


@functools.cache
def results(shares_memory, names):
    """One job for all checks: starting one takes much longer than an exchange."""
    try:
        return multiprocess.run(
            exchanges.__file__,
            "run_all",
            processes=2,
            devices=1,
            arguments={"names": list(names)},
            environment=ENVIRONMENT | (SHARED_MEMORY if shares_memory else {}),
            initialize={"local_device_ids": [0]},
            seconds=SECONDS,
        )
    except multiprocess.JobError as error:  # of every test, and not tried again for each
        return error


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHECKS)
def test_two_processes_on_one_gpu(name):
    need_two_processes()
    if not ranks_share_gpus():
        pytest.skip(f"NCCL {machine.nccl()[1]} has no two processes share a GPU; 2.30.3 does")
    assert errors(results(False, CHECKS))[name] == ["", ""]


@pytest.mark.gpu
def test_two_processes_share_memory():
    need_two_processes()
    names = CHECKS if ranks_share_gpus() else WITHOUT_NCCL
    assert errors(results(True, names)) == {name: ["", ""] for name in names}


def test_checks_need_no_collective_of_xla_here_on_cpu(tmp_path):
    """Which would be NCCL's on GPUs, also in the job that shares memory so as to need none."""
    need_ucx()
    found = multiprocess.run(
        exchanges.__file__,
        "run_all",
        processes=2,
        devices=1,
        arguments={"names": list(WITHOUT_NCCL)},
        environment={
            "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
            "FASTJAX_EMULATE_GPU": "0",  # those of one process cannot reach another's
        },
    )
    assert errors(found) == {name: ["", ""] for name in WITHOUT_NCCL}
    programs = [file.read_text() for file in tmp_path.glob("*after_optimizations.txt")]
    assert any("fastjax" in program for program in programs)
    assert [line for program in programs for line in COLLECTIVE.findall(program)] == []


def ranks_share_gpus():
    return machine.nccl()[1] >= lineup.NCCL_OF_SHARED_GPUS


def need_two_processes():
    device_of("gpu")
    need_ucx()


def need_ucx():
    if not machine.has_ucx():
        pytest.skip("processes find each other by UCX, and there is no libucx here")


def errors(found):
    if isinstance(found, multiprocess.JobError):
        raise found
    return {name: [result[name]["error"] for result in found] for name in found[0]}
