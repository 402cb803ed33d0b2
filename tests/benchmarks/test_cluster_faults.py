"""Faults on demand in an emulated cluster: each does what it says, and ends."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated_cluster import fabric, faults, jobs, system
from emulated_cluster.fabric import TRUNK, Fabric


@pytest.fixture(scope="module")
def cluster() -> Iterator[Fabric]:
    reason = system.why_not()
    if reason:
        pytest.skip(f"no emulated cluster: {reason}")
    name = f"fjf{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    with fabric.cluster(Fabric(servers=3, rails=2, rate=1_000_000_000, name=name)) as made:
        yield made


def during(
    cluster: Fabric, fault: Callable[[], object], end: Callable[[], object], rail: int
) -> list[bytes]:
    """What server 1 hears of server 0, who speaks before, during and after a fault.

    Messages cannot overtake each other: once the last is there, one that is missing is lost.
    """
    with (
        system.inside(cluster.namespace(1)),
        socket.socket(type=socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind((cluster.address(1, rail), 0))
        with (
            system.inside(cluster.namespace(0)),
            socket.socket(type=socket.SOCK_DGRAM) as sender,
        ):
            sender.bind((cluster.address(0, rail), 0))
            receiver.settimeout(0.5)
            heard = []
            for moment in (b"before", b"during", b"after"):
                if moment == b"during":
                    fault()
                if moment == b"after":
                    end()
                sender.sendto(moment, receiver.getsockname())
                while moment != b"during" and moment not in heard:
                    try:
                        heard.append(receiver.recv(100))
                    except TimeoutError:  # a link that has just come up may lose some
                        sender.sendto(moment, receiver.getsockname())
    return list(dict.fromkeys(heard))


@pytest.mark.parametrize("server", [0, 1])
def test_link(cluster: Fabric, server: int) -> None:
    heard = during(
        cluster,
        lambda: faults.link(cluster, server, 1, up=False),
        lambda: faults.link(cluster, server, 1, up=True),
        rail=1,
    )
    assert heard == [b"before", b"after"]


def test_link_of_another_rail(cluster: Fabric) -> None:
    heard = during(
        cluster,
        lambda: faults.link(cluster, 1, 0, up=False),
        lambda: faults.link(cluster, 1, 0, up=True),
        rail=1,
    )
    assert heard == [b"before", b"during", b"after"]


@pytest.mark.parametrize(
    ("side", "trunk", "rail", "parted"),
    [
        ([0], True, 0, True),
        ([1, 2], True, 1, True),
        ([2], True, 0, False),
        ([0, 1], True, 0, False),
        ([0], True, TRUNK, True),
        ([0], False, TRUNK, False),
        ([0], False, 1, True),
    ],
)
def test_partition(cluster: Fabric, side: list[int], trunk: bool, rail: int, parted: bool) -> None:
    heard = during(
        cluster,
        lambda: faults.partition(cluster, side, trunk=trunk),
        lambda: faults.heal(cluster, trunk=trunk),
        rail=rail,
    )
    assert (b"during" not in heard) == parted


def rates(namespace: str) -> dict[str, int]:
    queues = json.loads(system.run(["tc", "-n", namespace, "-j", "qdisc", "show"]))
    return {q["dev"]: q["options"]["rate"] * 8 for q in queues if q["kind"] == "tbf"}


def test_slow_receiver(cluster: Fabric) -> None:
    before = rates(cluster.switch)
    faults.slow_receiver(cluster, 1)
    during = rates(cluster.switch)
    assert {port for port in during if during[port] != before[port]} == {"p1-0", "p1-1"}
    assert during["p1-0"] == during["p1-1"] == cluster.rate // 10
    faults.slow_receiver(cluster, 1, 1)
    assert rates(cluster.switch) == before


def test_slow_sender(cluster: Fabric) -> None:
    before = rates(cluster.namespace(2))
    faults.slow_sender(cluster, 2, 4)
    assert rates(cluster.namespace(2)) == before | {"nic0": cluster.rate // 4, "nic1": 250_000_000}
    faults.slow_sender(cluster, 2, 1)
    assert rates(cluster.namespace(2)) == before


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_stop_and_kill(cluster: Fabric) -> None:
    spaces = [cluster.namespace(server) for server in range(3)]
    running = [subprocess.Popen([*jobs.prefix(space), "sleep", "1000"]) for space in spaces]
    try:
        pids = [process.pid for process in running]
        while [list(faults.processes(cluster, s)) for s in range(3)] != [[pid] for pid in pids]:
            pass
        faults.stop(cluster, 1)
        while state(pids[1]) != "T":
            pass
        assert state(pids[0]) != "T"
        faults.go_on(cluster, 1)
        while state(pids[1]) == "T":
            pass
        faults.stop(cluster, 1)
        faults.kill(cluster, 1)  # stopped ones as well
        assert running[1].wait() == -signal.SIGKILL
        assert running[0].poll() is None
        assert not faults.processes(cluster, 1)
        faults.kill(cluster, 1)  # where nothing runs
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_namespaces_of_others_are_left_alone(cluster: Fabric) -> None:
    other = f"{cluster.name}-other"
    subprocess.run(["ip", "netns", "add", other], check=True)
    try:
        fabric.down(cluster.name + "x")
        fabric.down(cluster.name[:-1])
        assert cluster.switch in system.namespaces(cluster.name)
        faults.kill(cluster, 0)
        assert other in system.namespaces(cluster.name)
    finally:
        system.delete_namespace(other)
