"""Which backends there are for exchange_checks, and how each gets to run them.

Checks of several processes, and of emulated GPUs, run in one job for each number of processes and
devices: starting one takes much longer than an exchange.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import traceback
from collections.abc import Collection, Mapping
from typing import Any

import multiprocess

import fastjax
from exchange_checks import CHECKS
from exchange_checks.backends import Backend, Devices, Loopback, Processes


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
    """A backend, where its checks run, and what it cannot do.

    Attributes:
      backend: for the checks.
      job: they run in; None: they run in this process.
      cannot: by check, what the error says.
      names: of the checks; None: of all.
      shares_a_gpu: whether NCCL has to have two ranks share a GPU.
    """

    backend: Backend
    job: Job | None = None
    cannot: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Collection[str] | None = None
    shares_a_gpu: bool = False

    def checks(self) -> list[str]:
        """That the backend has devices enough for."""
        return [
            name
            for name, check in CHECKS.items()
            if check.needs(self.backend) and (self.names is None or name in self.names)
        ]

    def run(self, name: str) -> Any:
        """Runs a check here, which fails where the backend cannot do it."""
        if name not in self.cannot:
            return CHECKS[name].run(self.backend)
        try:
            CHECKS[name].run(self.backend)
        except Exception as error:
            if re.search(self.cannot[name], str(error)) is None:
                raise
            return None
        raise AssertionError(f"it can do what it cannot: {self.cannot[name]}")


# A mesh of ranks needs as many devices, and their axis comes with it. Nothing is planned apart: the
# sizes of all ranks are in one array. There are no gradients.
_NO_MESH = "cannot reshape array of size 1"
_NO_AXIS = "unbound axis name: x"
_NO_PLANS = r"send_sizes must be rank 1 .* got shape \(8, \d+\)"
_NO_GROUPS = "unexpected keyword argument 'axis_index_groups'"
_NO_GRADIENTS = (
    r"(Differentiation|Transpose) rule.* for 'loopback_ragged_all_to_all' not implemented"
)
LOOPBACK = {
    "groups_of_positions": _NO_GROUPS,
    "bad_values_in_a_group": _NO_GROUPS,
    "axes_of_a_mesh": _NO_MESH,
    "groups_of_several_axes": _NO_MESH,
    "topology_that_nobody_gave": _NO_MESH,
    "devices_in_any_order": _NO_MESH,
    "part_of_the_devices": _NO_MESH,
    "several_in_one_program": _NO_AXIS,
    "planned_reused_and_transposed": _NO_PLANS,
    "one_planning_serves_a_layer_and_its_gradients": _NO_PLANS,
    "output_slices_that_overlap_with_a_plan": _NO_PLANS,
    "plans_that_do_not_fit": _NO_PLANS,
    "gradients_that_cannot_be_summed": _NO_AXIS,
    "expert_parallel_layer": _NO_AXIS,
    "deduplicated_layer": _NO_AXIS,
    "rows_that_indices_name": _NO_PLANS,
    "sums_in_the_order_of_entries": _NO_PLANS,
    "gradients": _NO_GRADIENTS,
    "gradients_without_check_vma": _NO_GRADIENTS,
    "gradients_of_rows_that_are_left": _NO_GRADIENTS,
    "gradients_of_a_slice_sent_to_everyone": _NO_GRADIENTS,
    "bad_values_in_a_gradient": _NO_GRADIENTS,
    "rows_sent_to_several_devices_are_no_overlap": _NO_GRADIENTS,
}
_SCHEDULERS = ("every_scheduler_on_every_topology",)
_ONE_PLAYS_ALL = [name for name in CHECKS if name not in LOOPBACK]

# Emulated GPUs of one process reach each other's memory; messages between them are loopback's. For
# those of several there is no NCCL: that of the C++ tests knows the GPUs of the program that it is
# loaded by, and no others. So they are left to tests/cpp/backends/gpu/gpu_network_test.cc.
_NO_NCCL = r"cannot load NCCL or RCCL \(no name of it was given\)"

_ONE_REFUSED = {"without_any_option": _NO_NCCL}

# Processes compile every program each for itself, which takes most of their time. Those of two show
# what does not depend on how many there are: what types and shapes become in messages, and what a
# device refuses by itself. Every scheduler on every topology is also in any_traffic.
_OF_ANY_TWO_PROCESSES = (
    *("every_data_type", "every_type_of_offsets_and_sizes", "rows_of_every_shape", "many_rows"),
    *("gradients_of_a_slice_sent_to_everyone", "gradients_that_cannot_be_summed"),
    *("every_scheduler_on_every_topology", "planned_reused_and_transposed", "scan"),
    *("output_slices_that_overlap", "output_slices_that_overlap_with_a_plan"),
    *("overlaps_are_not_looked_for_unless_asked", "rows_sent_to_several_devices_are_no_overlap"),
    *("rows_out_of_range_are_dropped", "gradients_of_rows_that_are_left"),
)
_OF_MANY_PROCESSES = [name for name in CHECKS if name not in _OF_ANY_TWO_PROCESSES]

_EMULATED = {"FASTJAX_EMULATE_GPU": "1"}
_EMULATED_HERE = Job(1, 8, _EMULATED)
_UCX = {"FASTJAX_EMULATE_GPU": "0"}

ON_CPUS = {
    "cpu memory": Configuration(Devices(2, 4)),
    "cpu memory of one": Configuration(Devices(1, 1)),
    "cpu loopback": Configuration(Loopback(4, 2), cannot=LOOPBACK),
    "cpu loopback of many": Configuration(Loopback(4, 8), names=_SCHEDULERS),
    "cpu loopback of servers": Configuration(Loopback(5, 1), names=_SCHEDULERS),
    "cpu as GPU": Configuration(Devices(2, 4), _EMULATED_HERE),
    "cpu as GPU of one": Configuration(Devices(1, 1), _EMULATED_HERE),
    "cpu as GPU, 2 processes": Configuration(
        Processes(2, 1),
        Job(2, 1, _EMULATED),
        {"without_any_option": _NO_NCCL},
        ["without_any_option"],
    ),
    "cpu, 4 processes of 2": Configuration(
        Processes(4, 2), Job(4, 2, _UCX), names=_OF_MANY_PROCESSES
    ),
    "cpu, 2 processes of 4": Configuration(Processes(2, 4), Job(2, 4, _UCX)),
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
_ON_ONE_GPU = (
    *("without_any_option", "every_data_type", "rows_of_every_shape", "slices_land_in_any_order"),
    *("gradients", "gradients_of_a_slice_sent_to_everyone", "planned_reused_and_transposed"),
    *("bad_values", "scan", "rows_that_indices_name"),
)
ON_GPUS = {
    "loopback": Configuration(Loopback(2, 4, "gpu"), names=_ONE_PLAYS_ALL),
    "loopback of many": Configuration(Loopback(4, 8, "gpu"), names=_SCHEDULERS),
    "one GPU": Configuration(Devices(1, 1, "gpu"), names=_ON_ONE_GPU),
    "NCCL": Configuration(Processes(2, 1), _SHARED_GPU, {}, _OF_TWO_RANKS, True),
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
                value = CONFIGURATIONS[configuration].run(name)
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
