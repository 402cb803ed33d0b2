"""Takes times of exchanges in a process of a job, as another process asks for them.

`serve` runs in every process of a job (tests/support/multiprocess.py). Cases stay prepared, so that
several jobs on one machine can be timed in turn.
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


class Case:
    """One exchange, on all devices of the job.

    Args:
      traffic: rows that each device sends to each.
      elements: of a row, of 4 bytes.
      scheduler: how it is planned; "" for a program of the same arguments without an exchange.
      topology: servers and devices of each that the planner is told of.
    """

    def __init__(
        self, traffic: np.ndarray, elements: int, scheduler: str, topology: tuple[int, int]
    ) -> None:
        self._arrays = Arrays(mesh_of_all(), traffic, 4 * elements)
        exchange = exchange_by(scheduler, fastjax.Topology(*topology)) if scheduler else _nothing
        self._program = self._arrays.compile(exchange)

    def run(self, times: int) -> float:
        """Runs it so often, one after the other; returns the seconds of all."""
        start = time.perf_counter()
        for _ in range(times):
            self._arrays.run(self._program)
        return time.perf_counter() - start

    def wrong_rows(self) -> int:
        """Rows of the devices here that differ from numpy's."""
        return self._arrays.wrong(self._program)


def _nothing(operand: jax.Array, output: jax.Array, *metadata: jax.Array) -> jax.Array:
    """Uses the sizes and offsets, and moves no row."""
    del operand
    return output.at[0, 0].add(jnp.sum(jnp.stack([m[0] for m in metadata])).astype(output.dtype))


def serve(address: str, key: str) -> dict[str, Any]:
    """Does what the process at the other end of the socket asks for, until it says "end"."""
    cases: dict[str, Case] = {}
    with connection.Client(address, "AF_UNIX", authkey=bytes.fromhex(key)) as asking:
        asking.send((jax.process_count(), jax.process_index()))
        while True:
            what, name, *arguments = asking.recv()
            if what == "end":
                return {}
            if what == "prepare":
                cases[name] = Case(*arguments)
                cases[name].run(2)
                wrong = cases[name].wrong_rows() if arguments[2] else 0
                asking.send(wrong)
            elif what == "run":
                asking.send(cases[name].run(*arguments))
            elif what == "forget":
                del cases[name]
                asking.send(None)
            elif what == "network":
                asking.send(_core.network_state())


__all__ = ["Case", "serve"]
