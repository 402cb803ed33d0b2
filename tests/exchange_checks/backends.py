"""What a check knows of a backend: which devices there are, and how a program runs on them.

A program is a function of an `exchange` and of arrays. `exchange` takes what
`fast_ragged_all_to_all` takes, but for the axis. Arrays have a leading dimension of devices when
they are handed over, and when they come back.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import emulated_jax
import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from spmd import PLATFORM, mesh_of, spmd

import fastjax
from fastjax.loopback import loopback_ragged_all_to_all

Program = Callable[..., Any]
SCHEDULERS = tuple(name for name in fastjax.schedulers() if name != "optimal")


@dataclasses.dataclass(frozen=True)
class Backend(abc.ABC):
    """Devices that exchange rows.

    Attributes:
      servers: how many, if there are any.
      per_server: devices of each.
      platform: of the devices.
    """

    servers: int
    per_server: int
    platform: str = PLATFORM

    @property
    def size(self) -> int:
        return self.servers * self.per_server

    @property
    def topology(self) -> fastjax.Topology:
        """Servers are what is far from each other, where anything is."""
        return fastjax.Topology(self.servers, self.per_server)

    def topologies(self) -> list[fastjax.Topology]:
        """Also those that are not how the devices lie: planned less well, but right."""
        servers = [n for n in range(1, self.size + 1) if self.size % n == 0]
        return [fastjax.Topology(n, self.size // n) for n in servers]

    def some_topologies(self) -> list[fastjax.Topology]:
        """For what takes long to compile; processes compile each for itself."""
        return self.topologies()[:3] if self.processes == 1 else [self.topology]

    @property
    def processes(self) -> int:
        return 1

    @property
    def partitions(self) -> int:
        """Devices that XLA divides a program over."""
        return self.size

    @property
    def mixes_rows(self) -> bool:
        """Whether two that are written to one place may be there in part each."""
        return False

    def installed(self) -> contextlib.AbstractContextManager[None]:
        """Checks run inside."""
        return contextlib.nullcontext()

    def mesh(
        self,
        shape: tuple[int, ...] = (),
        names: tuple[str, ...] = ("x",),
        order: list[int] | None = None,
    ) -> jax.sharding.Mesh:
        """Of all devices, or of those with these numbers."""
        shape = shape or (len(order or range(self.size)),)
        return mesh_of(shape, names, order=order, platform=self.platform)

    @abc.abstractmethod
    def compiled(
        self,
        program: Program,
        mesh: jax.sharding.Mesh | None = None,
        *,
        check_vma: bool = True,
    ) -> Program:
        """The program as every device runs it, of its part of the arrays."""


class Devices(Backend):
    """Devices of a mesh, each of which runs the program."""

    def compiled(
        self,
        program: Program,
        mesh: jax.sharding.Mesh | None = None,
        *,
        check_vma: bool = True,
    ) -> Program:
        mesh = mesh or self.mesh()
        name = mesh.axis_names if len(mesh.axis_names) > 1 else mesh.axis_names[0]
        exchange = functools.partial(fastjax.fast_ragged_all_to_all, axis_name=name)
        local = functools.partial(program, exchange)
        mapped = spmd(local, mesh, check_vma=check_vma).mapped  # pyright: ignore[reportFunctionMemberAccess]
        return lambda *args: mapped(*spread(mesh, args))


class InJax(Devices):
    """Those that get operations of JAX, as on platforms without a backend of ours."""

    def installed(self) -> contextlib.AbstractContextManager[None]:
        return emulated_jax.in_place_of_ours()


class Processes(Devices):
    """Those of a job, whose processes are the servers."""

    @property
    def processes(self) -> int:
        return self.servers


class Loopback(Backend):
    """Ranks that one device executes. Between servers, it has messages; inside one, memory."""

    @property
    def partitions(self) -> int:
        return 1

    @property
    def mixes_rows(self) -> bool:
        """All messages are moved at once, in words that do not begin where rows do."""
        return True

    @property
    def device(self) -> jax.Device:
        return jax.devices(self.platform)[0]

    def mesh(
        self,
        shape: tuple[int, ...] = (),
        names: tuple[str, ...] = ("x",),
        order: list[int] | None = None,
    ) -> jax.sharding.Mesh:
        """There is none, as numpy will say: one device is no mesh of several."""
        shape = shape or (len(order or range(self.size)),)
        return jax.sharding.Mesh(np.array([self.device]).reshape(shape), names)

    def compiled(
        self,
        program: Program,
        mesh: jax.sharding.Mesh | None = None,
        *,
        check_vma: bool = True,
    ) -> Program:
        assert mesh is None
        del check_vma  # without a mesh there is nothing to vary over
        exchange = functools.partial(loopback_ragged_all_to_all, topology=self.topology)
        run = jax.jit(functools.partial(program, exchange))
        return lambda *args: run(*jax.device_put(args, self.device))


def spread(mesh: jax.sharding.Mesh, values: Any) -> Any:
    """Arrays with a leading dimension of devices, each process holding its own part."""
    sharding = NamedSharding(mesh, P(mesh.axis_names))
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, sharding, lambda at: np.asarray(x[at])),
        values,
    )


def parts(result: Any, expected: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of an array, what is here, and what it should be."""
    assert (result.shape, result.dtype) == (np.shape(expected), expected.dtype)
    return [
        (np.asarray(shard.data), np.asarray(expected)[shard.index])
        for shard in result.addressable_shards
    ]


def same(result: Any, expected: Any) -> None:
    """Compares the parts that are here; small numbers, of any type."""
    for got, wanted in parts(result, expected):
        if got.dtype.isbuiltin == 1:
            np.testing.assert_array_equal(got, wanted)
        else:  # types that numpy does not know
            np.testing.assert_array_equal(got.astype("c16"), wanted.astype("c16"))


def close(result: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Compares the parts that are here, by what is large in the whole."""
    scale = float(np.abs(expected).max(initial=0)) or 1.0
    for got, wanted in parts(result, np.asarray(expected)):
        np.testing.assert_allclose(got / scale, wanted / scale, rtol=0, atol=tolerance)
