"""fastjax's planner and its handlers for XLA."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


ffi_api_version: tuple = (0, 3)

def registrations(emulates: bool) -> dict:
    """
    The CPU handlers, by custom-call target, as jax.ffi registers them; of devices that emulate GPUs, or not.
    """

def gpu_registrations(platform: str) -> dict:
    """The handlers of CUDA or of ROCm programs."""

def declared_calls() -> dict:
    """
    By target: (name, needed) of the operands that handlers find, (name, kind, optional) of the attributes, and the place of the operand whose memory the result takes, or -1.
    """

def record_of_turns() -> list[tuple[int, int]]:
    """
    For tests: (channel, partition) of exchanges that have begun, in order, where FASTJAX_DELAY_STARTS is set.
    """

def set_gpu_options(platform: str, library: str, multiprocessors: int, message_libraries: Sequence[str]) -> None:
    """
    For 'cuda' or 'rocm': the path of our own library, how many multiprocessors its kernels may take (0: all), and names or paths of NCCL or RCCL.
    """

def gpu_tally(platform: str) -> dict:
    """
    What exchanges have put on the streams of 'cuda' or 'rocm', or of the emulated GPUs of 'cpu', so far: launches of kernels, messages, and bytes that were packed, sent, copied straight, unpacked and summed.
    """

def set_emulated_faults(pinned: int = -1, lost: int = -1) -> None:
    """
    For tests: from now on this emulated GPU gets no more pinned memory, and that one takes no more work.
    """

def level_experts(rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], servers: int, devices: int, copies: int, cost_rows: int) -> tuple:
    """
    The expert of each slot of each device, and the rows of each group of each device.
    """

def plans_made() -> int:
    """How many plans traced programs have made in this process."""

def copy_threads() -> int:
    """Threads that move rows between the devices of this process."""

def scheduler_traits() -> list:
    """
    By number: name, description, order, whether every device's own NIC must work, and whether its plans are those of another scheduler, which HostPlan.chosen names.
    """

fallback_scheduler: int = 0

def table_words(topology: Sequence[int], scheduler: int) -> int:
    """int32 words of one device's stage table."""

def collecting() -> bool:
    """Whether statistics are collected."""

def collect(on: bool) -> None:
    """Says whether statistics are collected from now on."""

def site_reports() -> list:
    """
    Of every call site that has run while statistics were collected, in words.
    """

def reset_reports() -> None:
    """Forgets all statistics."""

def network_open(process: int, processes: int, secret: bytes, library: str, nics: Sequence[str], transports: str) -> bytes:
    """
    Opens this process's network over UCX; returns the addresses that other processes need.
    """

def network_add_peer(process: int, addresses: bytes) -> None:
    """Another process has joined, or joined again, with these addresses."""

def network_peer_lost(process: int, why: str) -> None:
    """Another process is gone for good."""

def network_close(seconds: float) -> bool:
    """
    Sends what is in flight, for so long at most, and closes; False if that had to be given up.
    """

def network_unfinished() -> int:
    """How many devices of this process are at an exchange."""

def network_count_launches_from(module: str, start: int) -> None:
    """
    Says from where XLA counts the launches of the executable of a module that was made last.
    """

def network_state() -> dict:
    """
    What is open and what has passed: open, library, version, nics, peers, messages, bytes, refused.
    """

def simulate(transfers: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], topology: Sequence[int], row_bytes: int, synchronization: int, balance_first: bool, pieces: int, oversubscription: float, efficiencies: Sequence[float], whole_senders: bool, resolution: float) -> object:
    """
    Simulates transfers flow by flow. What messages were and when, as packed records; the first and the last of each transfer, or -1; and one that has not come, since it waits for itself by way of others, or -1. Or why transfers are refused.
    """

class HostPlan:
    """Plans traffic on the host."""

    def __init__(self, traffic: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], topology: Sequence[int], scheduler: int, row_bytes: int) -> None: ...

    def plan_with(self, targets: Annotated[NDArray[numpy.int16], dict(shape=(None, None), order='C', device='cpu', writable=False)], weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Plans anew, with these matchings, if they cover the traffic."""

    @property
    def num_stages(self) -> int: ...

    @property
    def chosen(self) -> int:
        """Number of the scheduler, or of that which auto chose."""

    def transfers(self, transposed: bool = False) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """Every transfer, as packed records."""

    def table(self, device: int, transposed: bool = False) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """The stage table of one device."""

    def matchings(self) -> tuple:
        """Targets and weights of the matchings that stages were cut from."""

    def units(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """What servers send to each other, as stages count it."""

    @property
    def startup_units(self) -> int:
        """What a stage costs, as stages count."""

    def choices(self) -> list:
        """
        (scheduler, planned, stages, seconds of the exchange, of planning) of each that auto chose between.
        """

    def lower_bound(self) -> float: ...

    def predicted_time(self) -> float: ...

    def planning_time(self) -> float: ...
