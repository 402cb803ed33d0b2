"""fastjax's planner and its handlers for XLA."""

from typing import Annotated

import numpy
from numpy.typing import NDArray


ffi_api_version: tuple = (0, 3)

def registrations() -> dict:
    """The CPU handlers, by custom-call target, as jax.ffi registers them."""

def plans_made() -> int:
    """How many plans traced programs have made in this process."""

def copy_threads() -> int:
    """Threads that move rows between the devices of this process."""

def scheduler_names() -> list[str]:
    """The schedulers, in the order of their numbers."""

def table_words(topology: tuple[int, int, int, int, int, int], scheduler: int) -> int:
    """int32 words of one device's stage table."""

def check_table(words: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], devices: int, device: int) -> str:
    """What is wrong with a stage table; empty if nothing."""

class HostPlan:
    """A plan made on the host."""

    def __init__(self, traffic: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], topology: tuple[int, int, int, int, int, int], scheduler: int, row_bytes: int) -> None: ...

    @property
    def num_stages(self) -> int: ...

    def transfers(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """Every transfer, as packed records."""

    def table(self, device: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """The stage table of one device."""

    def staging_rows(self, device: int) -> int: ...

    def lower_bound(self) -> float: ...

    def predicted_time(self) -> float: ...
