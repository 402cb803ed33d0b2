"""Which backends there are for exchange_checks, and how each gets to run them.

Checks of several processes, and of emulated GPUs, run in one job for each number of processes and
devices: starting one takes much longer than an exchange.
"""

from __future__ import annotations

import dataclasses
import functools
import traceback
from collections.abc import Collection, Mapping
from typing import Any

import multiprocess

import fastjax
from exchange_checks import CHECKS
from exchange_checks.backends import Backend, Devices, InJax, Loopback, Processes


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """Processes that are started for checks, once.

    Attributes:
      processes, devices: how many, and how many devices in each.
      environment: what is said to them.
      initialize: further arguments of `jax.distributed.initialize`.
      seconds: that they may take.
    """

    processes: int
    devices: int
    environment: Mapping[str, str]
    initialize: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 240


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A backend, and where its checks run.

    Attributes:
      backend: for the checks.
      job: they run in; None: they run in this process.
      names: of the checks; None: of all.
      shares_a_gpu: whether NCCL has to have two ranks share a GPU.
    """

    backend: Backend
    job: Job | None = None
    names: Collection[str] | None = None
    shares_a_gpu: bool = False

    def checks(self) -> list[str]:
        """That the backend has devices enough for."""
        return [
            name
            for name, check in CHECKS.items()
            if check.needs(self.backend) and (self.names is None or name in self.names)
        ]


# A mesh of ranks needs as many devices, and their axis comes with it; nothing is planned apart, as
# the sizes of all ranks are in one array; and there are no groups, and no gradients.
_NOT_BY_LOOPBACK = (
    *("groups_of_positions", "bad_values_in_a_group", "axes_of_a_mesh", "groups_of_several_axes"),
    *("topology_that_nobody_gave", "devices_in_any_order", "part_of_the_devices"),
    *("several_in_one_program", "planned_reused_and_transposed"),
    *("one_planning_serves_a_layer_and_its_gradients", "output_slices_that_overlap_with_a_plan"),
    *("plans_that_do_not_fit", "gradients_that_cannot_be_summed", "expert_parallel_layer"),
    *("deduplicated_layer", "rows_that_indices_name", "sums_in_the_order_of_entries", "gradients"),
    *("gradients_without_check_vma", "gradients_of_rows_that_are_left"),
    *("gradients_of_a_slice_sent_to_everyone", "bad_values_in_a_gradient"),
    "rows_sent_to_several_devices_are_no_overlap",
)
_SCHEDULERS = ("every_scheduler_on_every_topology",)
_ONE_PLAYS_ALL = [name for name in CHECKS if name not in _NOT_BY_LOOPBACK]

# What becomes of rows, and of their gradients: nothing is planned, counted or refused.
_IN_OPERATIONS_OF_JAX = (
    *("without_any_option", "every_type_of_offsets_and_sizes", "rows_sent_to_everyone"),
    *("slices_land_in_any_order", "axes_of_a_mesh", "part_of_the_devices"),
    *("scan", "planned_reused_and_transposed"),
    *("gradients", "gradients_without_check_vma", "gradients_of_rows_that_are_left"),
    *("gradients_of_a_slice_sent_to_everyone", "rows_that_indices_name"),
)

# Processes compile every program each for itself, which takes most of their time, so most checks
# run in one of two jobs. Two processes show what does not depend on how many there are: what types
# and shapes become in messages, and what a device refuses by itself. Four show who meets whom.
_OF_TWO_PROCESSES = (
    *("every_data_type", "every_type_of_offsets_and_sizes", "rows_of_every_shape", "many_rows"),
    *("nothing_to_send", "rows_sent_to_everyone", "offsets_of_empty_slices_do_not_matter"),
    *("slices_land_in_any_order", "every_scheduler_on_every_topology", "scan"),
    *("planned_reused_and_transposed", "one_planning_serves_a_layer_and_its_gradients"),
    *("gradients", "gradients_of_a_slice_sent_to_everyone", "gradients_that_cannot_be_summed"),
    *("output_slices_that_overlap", "output_slices_that_overlap_with_a_plan"),
    *("overlaps_are_not_looked_for_unless_asked", "rows_sent_to_several_devices_are_no_overlap"),
    *("rows_out_of_range_are_dropped", "gradients_of_rows_that_are_left"),
    "bad_values_in_a_gradient",
)
_OF_BOTH = ("without_any_option", "part_of_the_devices", "programs_in_flight", "bad_values")
_OF_FOUR_PROCESSES = [name for name in CHECKS if name not in _OF_TWO_PROCESSES]

# Emulated GPUs of several processes have no NCCL: that of the C++ tests knows the GPUs of the one
# program that loads it. They are left to tests/cpp/backends/gpu/gpu_network_test.cc.
_EMULATED_HERE = Job(1, 8, {"FASTJAX_EMULATE_GPU": "1"})
_UCX = {"FASTJAX_EMULATE_GPU": "0"}

_ON_ONE_GPU = (
    *("without_any_option", "every_data_type", "rows_of_every_shape", "slices_land_in_any_order"),
    *("gradients", "gradients_of_a_slice_sent_to_everyone", "planned_reused_and_transposed"),
    *("bad_values", "scan", "rows_that_indices_name"),
)

ON_CPUS = {
    "cpu memory": Configuration(Devices(2, 4)),
    "cpu memory of one": Configuration(Devices(1, 1)),
    "cpu loopback": Configuration(Loopback(4, 2), names=_ONE_PLAYS_ALL),
    "cpu loopback of many": Configuration(Loopback(4, 8), names=_SCHEDULERS),
    "cpu loopback of servers": Configuration(Loopback(5, 1), names=_SCHEDULERS),
    "cpu in JAX": Configuration(InJax(2, 4), names=_IN_OPERATIONS_OF_JAX),
    "cpu as GPU": Configuration(Devices(2, 4), _EMULATED_HERE),
    "cpu as GPU of one": Configuration(Devices(1, 1), _EMULATED_HERE, names=_ON_ONE_GPU),
    "cpu, 4 processes of 2": Configuration(
        Processes(4, 2), Job(4, 2, _UCX), names=_OF_FOUR_PROCESSES
    ),
    "cpu, 2 processes of 4": Configuration(
        Processes(2, 4), Job(2, 4, _UCX), names=(*_OF_BOTH, *_OF_TWO_PROCESSES)
    ),
}

_OF_TWO_RANKS = (
    *("without_any_option", "every_scheduler_on_every_topology", "every_data_type"),
    *("nothing_to_send", "planned_reused_and_transposed", "scan"),
    *("gradients", "rows_that_indices_name"),
)
_SHARED_GPU = Job(
    2,
    1,
    {
        "JAX_PLATFORMS": "cuda,cpu",
        "FASTJAX_TEST_PLATFORM": "gpu",
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MAX_CTAS": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    },
    {"local_device_ids": [0]},
    150,
)
ON_GPUS = {
    "loopback": Configuration(Loopback(2, 4, "gpu"), names=_ONE_PLAYS_ALL),
    "loopback of many": Configuration(Loopback(4, 8, "gpu"), names=_SCHEDULERS),
    "one GPU": Configuration(Devices(1, 1, "gpu"), names=_ON_ONE_GPU),
    "NCCL": Configuration(Processes(2, 1), _SHARED_GPU, _OF_TWO_RANKS, True),
}
CONFIGURATIONS = ON_CPUS | ON_GPUS


@functools.cache
def outcomes(job: Job, names: tuple[str, ...]) -> list[Any] | multiprocess.JobError:
    """In each process: by configuration and check, the error and what the check returned."""
    try:
        return multiprocess.run(
            __file__,
            "run_all",
            processes=job.processes,
            devices=job.devices,
            arguments={"names": list(names)},
            environment=job.environment,
            initialize=job.initialize,
            seconds=job.seconds,
        )
    except multiprocess.JobError as error:  # of every test, and not tried again for each
        return error


def run_all(names: list[str]) -> dict[str, Any]:
    """Runs in a job: the checks of these configurations."""
    found: dict[str, Any] = {name: {} for name in names}
    for configuration in names:
        for name in CONFIGURATIONS[configuration].checks():
            try:
                value = CHECKS[name].run(CONFIGURATIONS[configuration].backend)
                outcome = {"error": "", "value": value}
            except Exception:  # noqa: BLE001  # the test of that name fails, the others go on
                outcome = {"error": traceback.format_exc(), "value": None}
            found[configuration][name] = outcome
            # One that failed half-way must not run into the others' next check.
            multiprocess.barrier(f"{configuration}, {name}")
        found[configuration]["used"] = used()
    return found


def used() -> dict[str, bool]:
    """What has carried out exchanges of this process: a network, or emulated GPUs."""
    network = fastjax._core.network_state()
    return {
        "network": network["open"],
        "messages refused": network.get("refused", 0) != 0,
        "GPU": fastjax._core.gpu_tally("cpu")["exchanges"] > 0,
    }
