"""What the processes of a job do that is hurt while it runs; fault_scene.py hurts it.

Exchange after exchange, each when it is told to, so that there is no need to guess how far a
process has come. What each one brought is left in the folder that the processes share.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import multiprocess
import numpy as np
import reference
from exchange_checks.backends import spread
from jax.sharding import PartitionSpec as P
from spmd import mesh_of

import fastjax
from fastjax import moe
from fastjax.network import bootstrap

# What errors begin with.
CALLS = "(?:fast_ragged_all_to_all|plan_ragged_all_to_all|gather_counts)"
_ROW = 512  # float32: messages are larger than what a network sends unasked


def traffic(devices: int) -> np.ndarray:
    """Rows from each device to each: skewed, so that it takes balance and several stages."""
    sizes = np.random.default_rng(0).integers(1, 40, (devices, devices))
    sizes[:2, 2:4] *= 4
    sizes[2:4, 4:] *= 2
    return sizes


class Program:
    """A program of all devices, compiled, and what it must return.

    Args:
      local: what each device does with its part of the operands; returns a list.
      mesh: of all devices.
      operands: of all devices.
      expected: the results.
    """

    def __init__(
        self,
        local: Callable[..., list[jax.Array]],
        mesh: jax.sharding.Mesh,
        operands: Sequence[np.ndarray],
        expected: Sequence[np.ndarray],
    ) -> None:
        program = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
        self._operand, self._expected = operands[0], expected
        self._args = spread(mesh, tuple(operands))
        self._run = program.lower(*self._args).compile()

    def __call__(self) -> dict[str, Any]:
        """Runs it: when it began and ended, the error or "", and whether all rows are right."""
        began = time.monotonic()
        error, right, results = "", False, []
        try:
            results = jax.block_until_ready(self._run(*self._args))
        except jax.errors.JaxRuntimeError as raised:
            error = shortened(str(raised))
        ended = time.monotonic()
        if not error:
            right = all(map(_same, results, self._expected))
        intact = _same(self._args[0], self._operand)
        return {"began": began, "ended": ended, "error": error, "right": right, "intact": intact}


def layer(*, balance: bool) -> Program:
    """A layer of experts: counts, plan, and exchanges there and back.

    Tokens cross once; or, where experts are levelled, once for each choice. There all are one
    server, so that weights, too, go through the network to the copies of experts.
    """
    size, servers = jax.device_count(), 1 if balance else 3
    rng = np.random.default_rng(2)
    # Whole numbers, whose sums are the same in any order.
    x = rng.integers(-9, 9, (size, 40, _ROW)).astype(np.float32)
    experts = 3 * size  # as many on a device as choices: nothing can be dropped
    ids = rng.permuted(np.tile(np.arange(experts, dtype=np.int32), (size, 40, 1)), axis=2)[..., :3]
    if balance:  # all choose those of the first device
        ids = rng.permuted(np.tile(np.arange(3, dtype=np.int32), (size, 40, 1)), axis=2)
    factors = np.arange(1, experts + 1, dtype=np.float32)

    def local(x: jax.Array, ids: jax.Array, factors: jax.Array) -> list[jax.Array]:
        tokens, stats = moe.layer(
            x[0],
            ids[0],
            None,
            factors,
            expert_fn=lambda rows, factors: rows * factors,
            num_experts=experts,
            axis_name="x",
            topology=fastjax.Topology(servers, size // servers),
            scheduler="fast",
            deduplicate=not balance,
            balance=balance,
            return_stats=True,
        )
        return [tokens[None], stats.copies[None] > 0]

    expected = x * factors[ids].sum(-1, keepdims=True)
    copied = (np.arange(size) > 0) & balance
    operands = x, ids, np.tile(factors[:, None], _ROW)
    return Program(local, mesh_of((size,)), operands, [expected, copied])


class Exchange(Program):
    """One exchange over all devices, compiled; or several at once.

    Args:
      servers: of the topology.
      scheduler: by which it is planned.
      width: float32 of a row.
      name: of the program; by default one for each topology.
      at_once: how many the program has, none of which depends on another.
    """

    def __init__(
        self,
        servers: int,
        scheduler: str = "fast",
        width: int = _ROW,
        name: str = "",
        at_once: int = 1,
    ) -> None:
        size = jax.device_count()
        mesh = mesh_of((size,))
        meta = reference.packed(traffic(size))
        operand, output = reference.data(np.random.default_rng(1), meta, (width,))
        topology = fastjax.Topology(servers, size // servers)

        def local(*args: Any) -> Any:
            operand, *others = jax.tree.map(lambda x: x[0], args)
            return [
                fastjax.fast_ragged_all_to_all(
                    operand + i if i else operand,
                    *others,
                    axis_name="x",
                    scheduler=scheduler,
                    topology=topology,
                )[None]
                for i in range(at_once)
            ]

        several = f"_{at_once}_at_once" if at_once > 1 else ""
        local.__name__ = name or f"servers_{servers}{several}"
        expected = [reference.exchange(operand + i, output, meta) for i in range(at_once)]
        super().__init__(local, mesh, (operand, output, *meta.arrays()), expected)


def _same(array: jax.Array, expected: np.ndarray) -> bool:
    return all(np.array_equal(s.data, expected[s.index]) for s in array.addressable_shards)


def shortened(text: str) -> str:
    """An error's code and its words about the exchange, without what JAX puts around them."""
    found = re.search(rf"([A-Z_]{{5,}}): .*?({CALLS} over axis.*)", text)
    return f"{found[1]}: {found[2]}" if found else text


# What the victim calls instead of the exchange of three servers.
DIFFERENT = {
    "scheduler": {"servers": 3, "scheduler": "direct"},
    "topology": {"servers": 2, "name": "servers_3"},
    "row": {"servers": 3, "width": _ROW + 1},
    "program": {"servers": 3, "name": "something_else"},
}


class Kind(NamedTuple):
    """What a round runs: an exchange, or several at once, or a layer."""

    servers: int
    width: int = _ROW
    at_once: int = 1
    layer: str = ""

    @classmethod
    def of(cls, one: dict[str, Any]) -> Kind:
        return cls(**{name: one[name] for name in cls._fields if name in one})


def play(
    rounds: list[dict[str, Any]],
    victim: int,
    bootstrap_stop: str = "",
    exit_stop: bool = False,
    wrong_secret: bool = False,
) -> dict[str, Any]:
    """Runs in a job.

    Args:
      rounds: what to exchange: "servers" of the topology, "width" of rows, if it is another,
        and how many exchanges "at_once", if more than one; or a "layer", which may be "balanced";
        and in "calls" what the victim calls instead.
      victim: the process that is hurt.
      bootstrap_stop: "before" or "after": it stops around telling the others its addresses.
      exit_stop: whether it stops before it leaves the job.
      wrong_secret: whether it has another secret than the others.
    """
    hurt = jax.process_index() == victim
    first_life = not (multiprocess.folder() / "struck").exists()
    # Whatever is registered first runs last: after fastjax has left the job, before JAX does.
    atexit.register(_last_words)
    ports = listening()
    if hurt and first_life and bootstrap_stop == "before":
        _stop_before_opening()
    if hurt and wrong_secret:
        bootstrap._secret = lambda _: secrets.token_bytes(16)
    try:
        kinds = sorted({Kind.of(one) for one in rounds})
        programs = {
            kind: layer(balance=kind.layer == "balanced")
            if kind.layer
            else Exchange(kind.servers, width=kind.width, at_once=kind.at_once)
            for kind in kinds
        }
    except fastjax.errors.FastjaxError as error:
        _report("ready", {"error": str(error)})
        _leave_at_once()
    if hurt and first_life and bootstrap_stop == "after":
        signal.raise_signal(signal.SIGSTOP)
    _report("ready", {"error": "", "ports": sorted(listening() - ports)})
    different = None
    for number, one in enumerate(rounds):
        _until_told(f"go {number}")
        outcome = (different or programs[Kind.of(one)])()
        calls = rounds[number + 1].get("calls") if hurt and rounds[number + 1 :] else None
        different = Exchange(**DIFFERENT[calls]) if calls else None
        refused = fastjax._core.network_state().get("refused")
        _report(f"round {number}", outcome | {"refused": refused})
    if hurt and exit_stop:
        signal.raise_signal(signal.SIGSTOP)
    if _until_told("end") == "at once":
        _leave_at_once()
    return {}


def _stop_before_opening() -> None:
    opening = fastjax._core.network_open

    def stop_and_open(*arguments: Any) -> bytes:
        signal.raise_signal(signal.SIGSTOP)
        return opening(*arguments)

    fastjax._core.network_open = stop_and_open


def _leave_at_once() -> None:
    """Where others are dead, JAX would wait for them, and end this process with an error."""
    sys.stdout.flush()
    os._exit(0)


def _last_words() -> None:
    _report("closed", {"at": time.monotonic()})
    if _until_told("leave") == "at once":
        _leave_at_once()


def _report(name: str, what: dict[str, Any]) -> None:
    path = multiprocess.folder() / f"{jax.process_index()} {name}.json"
    path.with_suffix(".partial").write_text(json.dumps(what))
    path.with_suffix(".partial").rename(path)


def _until_told(name: str) -> str:
    path = multiprocess.folder() / name
    while not path.exists():
        time.sleep(0.01)
    return path.read_text()


def listening(process: str = "self") -> set[int]:
    """TCP ports that a process listens on."""
    sockets = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            sockets.add(str(descriptor.readlink()))
        except OSError:  # closed meanwhile
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{process}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found
