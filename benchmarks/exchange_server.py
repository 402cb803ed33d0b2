"""Takes times of exchanges in a process of a job, as another process asks for them.

`serve` runs in every process of a job (tests/support/multiprocess.py). What is prepared can be run
again, so that several jobs on one machine can be timed in turn.
"""

import time
from multiprocessing import connection
from typing import Any

import jax
import numpy as np
from emulated_cluster.worker import Arrays, exchange_by, mesh_of_all

import fastjax
from fastjax import _core


class Server:
    """What `serve` does at request, by the names of its methods."""

    def prepare(
        self, traffic: np.ndarray, row_bytes: int, scheduler: str, topology: tuple[int, int]
    ) -> int:
        """Compiles an exchange on all devices of the job, and forgets the one before.

        Args:
          traffic: rows that each device sends to each.
          row_bytes: of a row, a multiple of 4.
          scheduler: how it is planned.
          topology: servers and devices of each that the planner is told of.

        Returns:
          Rows of the devices here that differ from numpy's.
        """
        vars(self).clear()  # its memory is needed
        self._arrays = Arrays(mesh_of_all(), traffic, row_bytes)
        self._program = self._arrays.compile(exchange_by(scheduler, fastjax.Topology(*topology)))
        self.run(2)
        return self._arrays.wrong(self._program)

    def run(self, times: int) -> float:
        """Runs it so often, one after the other; returns the seconds of all."""
        start = time.perf_counter()
        for _ in range(times):
            self._arrays.run(self._program)
        return time.perf_counter() - start

    def network(self) -> Any:
        """State of the connections."""
        return _core.network_state()


def serve(address: str, key: str) -> dict[str, Any]:
    """Does what the process at the other end of the socket asks for, until it says "end"."""
    server = Server()
    with connection.Client(address, "AF_UNIX", authkey=bytes.fromhex(key)) as asking:
        asking.send(jax.process_index())
        while True:
            what, *arguments = asking.recv()
            if what == "end":
                return {}
            asking.send(getattr(server, what)(*arguments))
