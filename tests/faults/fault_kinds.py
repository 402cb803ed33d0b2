"""Faults: what can be done to a process of a job while it stands still, and where its jobs run."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from emulated_cluster import fabric as fabrics
from emulated_cluster import faults as cluster_faults
from emulated_cluster import launch, system
from emulated_cluster.fabric import Fabric
from fault_scene import PROCESSES, VICTIM, Scene, SceneError


@dataclasses.dataclass
class World:
    """Where jobs run: on this machine, or on the servers of an emulated cluster."""

    fabric: Fabric | None = None

    def scene(self, rounds: list[dict[str, Any]], **play: Any) -> Scene:
        """A job."""
        if self.fabric is None:
            return Scene(rounds, **play)
        there = launch.job_in(self.fabric)
        return Scene(
            rounds,
            environment=launch.environment(self.fabric),
            **{name: there[name] for name in ("prefix", "coordinator")},
            **play,
        )

    @property
    def name(self) -> str:
        """For people."""
        return "one host" if self.fabric is None else "three hosts, TCP"


@contextlib.contextmanager
def three_hosts(name: str) -> Iterator[World]:
    """A world of three servers of two NICs, to which links belong that can be cut."""
    with fabrics.cluster(Fabric(servers=PROCESSES, rails=2, rate=_RATE, name=name)) as fabric:
        yield World(fabric)


# bit/s of a NIC. With a tenth of it an exchange takes a second or two.
_RATE = 20_000_000
# For the names of what can be run on three hosts, whether or not there are any.
ANY_HOSTS = World(Fabric(servers=PROCESSES, rails=2))


def no_hosts() -> str | None:
    """Why there can be no three hosts here; None if there can be."""
    return system.why_not()


# ruff: noqa: ARG002  # faults have one signature


class Fault:
    """Something that happens to the victim while it stands still at a place."""

    name = "stop (SIGSTOP), then go on (SIGCONT)"
    # Whether the victim stands still until `undo`.
    stands = True
    # Whether exchanges may fail.
    fails = True
    needs_hosts = False
    # float32 of a row.
    width = 512

    def strike(self, scene: Scene, world: World) -> None:
        """Happens."""

    def undo(self, scene: Scene, world: World) -> None:
        """Is over."""
        scene.signal(signal.SIGCONT)


class Slow(Fault):
    """A tenth of its time is its own, and it has much to do."""

    name = "10 x slower receiver"
    stands = False
    fails = False
    width = 8192

    def strike(self, scene: Scene, world: World) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._slow, args=(scene,))
        self._thread.start()

    def _slow(self, scene: Scene) -> None:
        while not self._over.is_set():
            began, had = time.monotonic(), scene.processor_time()
            scene.signal(signal.SIGCONT)
            # On a busy machine it gets a processor only after a while.
            while scene.processor_time() - had < 0.002 and time.monotonic() - began < 0.01:
                self._over.wait(0.001)
            scene.signal(signal.SIGSTOP)
            self._over.wait(9 * (time.monotonic() - began))
        scene.signal(signal.SIGCONT)

    def undo(self, scene: Scene, world: World) -> None:
        self._over.set()
        self._thread.join()


class SlowLink(Fault):
    """The ports towards its NICs have a tenth of the rate."""

    name = "10 x slower link"
    stands = False
    fails = False
    needs_hosts = True

    def strike(self, scene: Scene, world: World) -> None:
        assert world.fabric
        cluster_faults.slow_receiver(world.fabric, VICTIM)
        scene.signal(signal.SIGCONT)

    def undo(self, scene: Scene, world: World) -> None:
        assert world.fabric
        cluster_faults.slow_receiver(world.fabric, VICTIM, 1)


class Link(Fault):
    """One of its two cables is pulled out."""

    name = "link down"
    stands = False
    needs_hosts = True

    def strike(self, scene: Scene, world: World) -> None:
        self._link(world, up=False)
        scene.signal(signal.SIGCONT)

    def undo(self, scene: Scene, world: World) -> None:
        self._link(world, up=True)

    @staticmethod
    def _link(world: World, *, up: bool) -> None:
        assert world.fabric
        cluster_faults.link(world.fabric, VICTIM, 1, up=up)


class Partition(Fault):
    """Nothing comes through between it and the others, jax.distributed included."""

    name = "partition"
    stands = False
    needs_hosts = True

    def strike(self, scene: Scene, world: World) -> None:
        assert world.fabric
        cluster_faults.partition(world.fabric, [VICTIM])
        scene.signal(signal.SIGCONT)

    def undo(self, scene: Scene, world: World) -> None:
        assert world.fabric
        cluster_faults.heal(world.fabric)


class Stranger(Fault):
    """Somebody connects to all ports of all processes, and sends what they do not understand."""

    name = "stranger sends garbage"
    stands = False
    fails = False

    def strike(self, scene: Scene, world: World) -> None:
        self._open: list[socket.socket] = []
        for port in sorted({port for ports in scene.ports.values() for port in ports}):
            for words in garbage():
                # Some of it ends the connection before all of it is sent.
                with contextlib.suppress(OSError):
                    connection = socket.create_connection(("127.0.0.1", port), 5)
                    self._open.append(connection)
                    connection.sendall(words)
        if not self._open:
            raise SceneError("no process listens: there is no port to connect to")
        scene.signal(signal.SIGCONT)

    def undo(self, scene: Scene, world: World) -> None:
        for connection in self._open:
            connection.close()


def garbage() -> Iterator[bytes]:
    """What a stranger sends: also what begins as UCX's own connections do."""
    noise = random.Random(0)
    yield b""
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield noise.randbytes(4096)
    yield bytes(65536)
    magic = (0xCAFEBABE12345678).to_bytes(8, "little")
    yield magic
    for _ in range(4):
        yield magic + noise.randbytes(512)


STOP = Fault()
LIVING = (STOP, Slow(), Stranger(), Link(), Partition(), SlowLink())
