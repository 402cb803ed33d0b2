"""Takes times of exchanges in a process of a job, as another process asks for them.

`serve` runs in every process of a job (tests/support/multiprocess.py). Cases stay prepared, so that
several jobs on one machine can be timed in turn.
"""

import time
from multiprocessing import connection
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import fastjax
from fastjax import _core


class Case:
    """One exchange, on all devices of the job.

    Args:
      traffic: rows that each device sends to each.
      elements: of a row, float32.
      scheduler: how it is planned; "" for a program of the same arguments without an exchange.
      topology: servers and devices of each that the planner is told of.
    """

    def __init__(
        self, traffic: np.ndarray, elements: int, scheduler: str, topology: tuple[int, int]
    ) -> None:
        devices = len(traffic)
        mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        self._sharding = jax.NamedSharding(mesh, P("x"))
        self._rows = max(1, int(traffic.sum(axis=1).max()))
        self._landing = max(1, int(traffic.sum(axis=0).max()))
        first = np.arange(devices)[:, None] * self._rows
        self._sent_from = first + np.cumsum(traffic, axis=1) - traffic
        self._traffic = traffic
        # Up to 2^24 rows have numbers of their own.
        numbers = np.arange(devices * self._rows, dtype=np.float32)
        self._operand = self._put(devices * self._rows, elements, numbers)
        self._output = self._put(devices * self._landing, elements, None)
        arrays = (
            np.cumsum(traffic, axis=1) - traffic,
            traffic,
            np.cumsum(traffic, axis=0) - traffic,
            traffic.T,
        )
        self._metadata = [
            jax.make_array_from_callback(
                (devices * devices,),
                self._sharding,
                lambda at, a=a: np.ravel(a).astype(np.int32)[at],
            )
            for a in arrays
        ]
        plan = {"scheduler": scheduler, "topology": fastjax.Topology(*topology)}

        def exchange(operand: Any, output: Any, *metadata: Any) -> Any:
            if not scheduler:
                return output.at[0, 0].add(
                    metadata[0][0] + metadata[1][0] + metadata[2][0] + metadata[3][0]
                )
            return fastjax.fast_ragged_all_to_all(operand, output, *metadata, axis_name="x", **plan)

        self._program = jax.jit(
            jax.shard_map(exchange, mesh=mesh, in_specs=P("x"), out_specs=P("x")), donate_argnums=1
        )

    def _put(self, rows: int, elements: int, values: np.ndarray | None) -> jax.Array:
        def part(at: Any) -> np.ndarray:
            chosen = np.zeros(rows, np.float32)[at[0]] if values is None else values[at[0]]
            return np.repeat(chosen[:, None], elements, axis=1)

        return jax.make_array_from_callback((rows, elements), self._sharding, part)

    def run(self, times: int) -> float:
        """Runs it so often, one after the other; returns the seconds of all."""
        start = time.perf_counter()
        for _ in range(times):
            self._output = self._program(self._operand, self._output, *self._metadata)
            jax.block_until_ready(self._output)
        return time.perf_counter() - start

    def wrong_rows(self) -> int:
        """Of those that should have arrived on the devices here."""
        wrong = 0
        for shard in self._output.addressable_shards:
            device = (shard.index[0].start or 0) // self._landing
            parts = [
                start + np.arange(rows)
                for start, rows in zip(
                    self._sent_from[:, device], self._traffic[:, device], strict=True
                )
            ]
            expected = np.concatenate(parts).astype(np.float32)
            got = np.asarray(shard.data)[: len(expected)]
            wrong += int((got != expected[:, None]).any(axis=1).sum())
        return wrong


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
