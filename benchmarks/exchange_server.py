"""Takes times of exchanges in a process of a job, as another process asks for them.

`serve` runs in every process of a job (tests/support/multiprocess.py). What is prepared can be run
again, so that several jobs on one machine can be timed in turn.
"""

import time
from multiprocessing import connection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from emulated_cluster.worker import Arrays, exchange_by, mesh_of_all

import fastjax
from fastjax import _core


def _nothing(operand: jax.Array, output: jax.Array, *metadata: jax.Array) -> jax.Array:
    """Uses the sizes and offsets, and moves no row."""
    del operand
    return output.at[0, 0].add(jnp.sum(jnp.stack([m[0] for m in metadata])).astype(output.dtype))


class Server:
    """What `serve` does at request, by the names of its methods."""

    def prepare(
        self, traffic: np.ndarray, elements: int, scheduler: str, topology: tuple[int, int]
    ) -> int:
        """Compiles an exchange on all devices of the job, and forgets the one before.

        Args:
          traffic: rows that each device sends to each.
          elements: of a row, of 4 bytes.
          scheduler: how it is planned; "" for a program of the same arguments without an exchange.
          topology: servers and devices of each that the planner is told of.

        Returns:
          Rows of the devices here that differ from numpy's.
        """
        vars(self).clear()  # its memory is needed
        self._arrays = Arrays(mesh_of_all(), traffic, 4 * elements)
        exchange = exchange_by(scheduler, fastjax.Topology(*topology)) if scheduler else _nothing
        self._program = self._arrays.compile(exchange)
        self.run(2)
        return self._arrays.wrong(self._program) if scheduler else 0

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
        asking.send((jax.process_count(), jax.process_index()))
        while True:
            what, *arguments = asking.recv()
            if what == "end":
                return {}
            asking.send(getattr(server, what)(*arguments))
