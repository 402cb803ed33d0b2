"""benchmarks/emulated_cluster: the network it makes, the job it runs there, what it leaves behind.

Correctness only: no rate is asserted, and of times only that cables take theirs.
"""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from emulated_cluster import (
    bench,
    delays,
    fabric,
    faults,
    jobs,
    options,
    probe,
    report,
    system,
    work,
)
from emulated_cluster.fabric import TRUNK, Fabric
from emulated_cluster.system import ClusterError
from refusals import bounds, keywords, refusals

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def name() -> str:
    """Of clusters made here: each of pytest's workers has its own."""
    reason = system.why_not()
    if reason:
        pytest.skip(f"no emulated cluster: {reason}")
    return f"fjt{os.environ.get('PYTEST_XDIST_WORKER', '')}"


@pytest.fixture
def small(name: str) -> Fabric:
    return Fabric(servers=2, rails=2, rate=1_000_000_000, name=name)


@pytest.fixture
def cluster(small: Fabric) -> Iterator[Fabric]:
    with fabric.cluster(small):
        yield small


def leftovers(name: str) -> list[object]:
    """What there is of a cluster: namespaces and files."""
    return [*system.namespaces(f"{name}-"), *fabric.ETC.glob(f"{name}-*")]


def counter(cluster: Fabric, server: int, nic: str, which: str) -> int:
    text = system.run(["ip", "-n", cluster.namespace(server), "-s", "-j", "link", "show", nic])
    return json.loads(text)[0]["stats64"][which]["bytes"]


def spaces(cluster: Fabric) -> list[str]:
    return [cluster.namespace(server) for server in range(cluster.servers)]


def gone(pid: int) -> bool:
    try:
        # The state follows the name, which is in parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until_gone(pids: list[int]) -> None:
    """Returns when all have ended; the test's own time limit ends it if they do not."""
    while not all(gone(pid) for pid in pids):
        time.sleep(0.01)


def test_leaves_nothing_behind(small: Fabric) -> None:
    with fabric.cluster(small):
        assert len(leftovers(small.name)) == 1 + 2 + 2  # switch, servers, hosts files
    assert leftovers(small.name) == []
    fabric.down(small.name)  # where there is none


def test_leaves_nothing_behind_when_it_cannot_be_made(small: Fabric) -> None:
    with (
        pytest.raises(
            ClusterError, match=r"Unknown tcp congestion algorithm[^$]*: route add .* nosuch"
        ),
        fabric.cluster(dataclasses.replace(small, congestion_control="nosuch")),
    ):
        pass
    assert leftovers(small.name) == []


def test_every_end_of_a_cable_has_the_rate(cluster: Fabric) -> None:
    found = {}
    for space in (cluster.switch, *spaces(cluster)):
        queues = json.loads(system.run(["tc", "-n", space, "-j", "qdisc", "show"]))
        tbf = [queue for queue in queues if queue["kind"] == "tbf"]
        found |= {(space, queue["dev"]): queue["options"]["rate"] for queue in tbf}
    rate = cluster.rate // 8
    ends = {(cluster.nics[k], f"p{{}}-{k}", rate) for k in range(2)}
    ends |= {("trunk", "p{}-trunk", 2 * rate)}
    want = {}
    for nic, port, value in ends:
        for server in range(2):
            want[cluster.namespace(server), nic] = value
            want[cluster.switch, port.format(server)] = value
    assert found == want


def test_the_trunk_can_be_as_wide_as_one_nic(cluster: Fabric) -> None:
    def rates() -> dict[str, int]:
        found = {}
        for space in (cluster.namespace(1), cluster.switch):
            queues = json.loads(system.run(["tc", "-n", space, "-j", "qdisc", "show"]))
            found |= {q["dev"]: q["options"]["rate"] * 8 for q in queues if q["kind"] == "tbf"}
        return found

    before = rates()
    assert (before["trunk"], before["p1-trunk"]) == (2 * cluster.rate, 2 * cluster.rate)
    cluster.widen_trunk(1, 1)
    assert rates() == before | {"trunk": cluster.rate, "p1-trunk": cluster.rate}
    cluster.widen_trunk(1, 2)
    assert rates() == before


@pytest.mark.parametrize("sender", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("rail", [0, 1])
def test_rows_go_by_the_nics_they_are_sent_from_and_to(
    cluster: Fabric, sender: tuple[int, int], rail: int
) -> None:
    receiver, size = (1 - sender[0], rail), 1 << 20
    probe.completion(cluster, [probe.Flow(sender, receiver, size)])
    for server, used, which in ((sender[0], sender[1], "tx"), (receiver[0], rail, "rx")):
        for number, nic in enumerate(cluster.nics):
            assert (counter(cluster, server, nic, which) > size) == (number == used)
        assert counter(cluster, server, "trunk", which) < size


def test_long_cables_carry_all_and_take_their_time(small: Fabric) -> None:
    far = dataclasses.replace(small, delay=0.01)
    with fabric.cluster(far):
        probe.completion(far, [probe.Flow((0, 0), (1, 1), 1 << 20), probe.Flow((1, 0), (0, 0), 1)])
        assert counter(far, 0, "nic0", "tx") > 1 << 20
        assert counter(far, 1, "nic1", "rx") > 1 << 20
        with system.inside(far.namespace(1)), socket.socket(type=socket.SOCK_DGRAM) as receiver:
            receiver.bind((far.address(1, 0), 0))
            with system.inside(far.namespace(0)), socket.socket(type=socket.SOCK_DGRAM) as sender:
                sender.bind((far.address(0, 0), 0))
                begin = time.monotonic()
                sender.sendto(b"x", receiver.getsockname())
                receiver.recv(1)
                assert time.monotonic() - begin >= far.delay
        pids = system.processes_in(far.switch)
        assert pids
    wait_until_gone(pids)
    assert leftovers(small.name) == []


def test_long_cables_survive_a_port_that_is_down(small: Fabric) -> None:
    far = dataclasses.replace(small, delay=0.001)
    with fabric.cluster(far):
        faults.link(far, 1, 0, up=False)
        probe.completion(far, [probe.Flow((0, 0), (1, 1), 1 << 16)])
        faults.link(far, 1, 0, up=True)
        probe.completion(far, [probe.Flow((0, 0), (1, 0), 1 << 16)])
        with pytest.raises(ClusterError, match="only a cluster without delay can be parted"):
            faults.partition(far, [0])


def test_cables_that_are_not_there_are_not_made_longer(cluster: Fabric) -> None:
    with pytest.raises(ClusterError, match=r"(?s)cables cannot be made longer: .*No such device"):
        delays.start(cluster.switch, 0.01, 1, {"nowhere": "02:00:00:00:00:01"})


def test_flows_meet_at_one_port(cluster: Fabric) -> None:
    assert probe.incast(cluster, 2, 0.01) > 0
    with pytest.raises(ClusterError, match="fan_in must be from 1 to 2 here, got 3"):
        probe.incast(cluster, 3, 0.01)


def test_a_flow_that_breaks_is_an_error(cluster: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: probe._Connection) -> None:
        connection.close_sender()

    monkeypatch.setattr(probe._Connection, "send", fail)
    with pytest.raises(ClusterError, match=r"Flow\(.*did not get through"):
        probe.completion(cluster, [probe.Flow((0, 0), (1, 0), 100)])


def test_a_server_has_a_name_of_its_own(cluster: Fabric) -> None:
    look = "import socket as s; n = s.gethostname(); print(n, s.gethostbyname(n))"
    for server, space in enumerate(spaces(cluster)):
        printed = system.run([*jobs.prefix(space), sys.executable, "-c", look])
        assert printed.split() == [space, cluster.address(server, TRUNK)]
        assert socket.gethostname() != space


def settings(name: str, **others: Any) -> options.BenchOptions:
    return options.BenchOptions(
        servers=2,
        rails=2,
        rate="1gbit",
        name=name,
        workloads=("pair-zipf",),
        seconds=0.002,
        rounds=1,
        baseline_rounds=1,
        row_bytes=64,
        **others,
    )


def test_every_scheme_is_right(name: str) -> None:
    delay = 0.001
    chosen = settings(name, delay=delay)
    record = bench.run(chosen)
    assert leftovers(name) == []
    schemes = {s["scheme"]: s for s in record["workloads"][0]["schemes"]}
    baselines = {"dense padded", "dense padded, 1 NIC", "all_gather"}
    assert set(schemes) == {*chosen.schedulers, *baselines}
    for scheme in schemes.values():
        if scheme["scheme"] in chosen.schedulers and "skipped" in scheme:
            assert "processes" in scheme["skipped"]
            continue
        assert (scheme["wrong"], scheme["runs"]) == (0, 1), scheme
        assert scheme["sent_by_load"] > 1
    # Counts come first. Then the flow is offered, asked for, and sent.
    assert min(record["start"]["nothing"]) >= delay
    assert min(record["start"]["flow"]) >= 4 * delay
    assert record["start"]["wrong"] == 0
    assert record["topology"]["scale_out_latency"] == pytest.approx(5e-4 + 3 * delay)
    json.dumps(record)
    assert "dense padded" in report.page(record, "a title")


def workers_in(space: str) -> list[int]:
    """Processes of the job in a namespace, which need not be there yet."""

    def works(pid: int) -> bool:
        return b"multiprocess.py" in Path(f"/proc/{pid}/cmdline").read_bytes()

    try:
        return [pid for pid in system.processes_in(space) if works(pid)]
    except (ClusterError, OSError):
        return []


def test_a_job_whose_process_is_killed_leaves_nothing_behind(name: str) -> None:
    def kill() -> None:
        while not (pids := workers_in(f"{name}-1")):
            pass
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ClusterError, match=r"processes \[1\] failed and \[0\] hung"):
        bench.run(settings(name, timeout=5.0))
    killer.join()
    assert leftovers(name) == []


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(BENCHMARKS / "emulated_cluster"), *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_command_line_says_what_is_wrong() -> None:
    done = command_line("bench", "--rate", "fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--rate must be like 100kbit, 100mbit, 100gbit; got 'fast'.\n"


def test_command_line_probes_and_takes_down(name: str) -> None:
    arguments = ["--name", name, "--servers", "2", "--rails", "1", "--rate", "1gbit"]
    done = command_line("probe", *arguments, "--seconds", "0.01", "--rounds", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(" |")[0] for line in done.stdout.splitlines()[2:]] == ["| 1:1"]
    assert leftovers(name) == []
    Fabric(servers=2, rails=1, name=name).up()
    done = command_line("down", "--name", name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert leftovers(name) == []


# Makes a cluster with a job in it, says that it is there, and waits.
RUNS = """
import signal, subprocess, sys
from emulated_cluster import fabric, jobs
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
with fabric.cluster(fabric.Fabric(servers=2, name=sys.argv[1])) as made:
    command = ["sh", "-c", "sleep 1000 & echo up; wait"]
    job = [
        subprocess.Popen([*jobs.prefix(made.namespace(s)), *command], stdout=subprocess.PIPE)
        for s in range(2)
    ]
    for process in job:
        process.stdout.readline()
    print("ready", *[process.pid for process in job], flush=True)
    job[0].wait()
"""


@pytest.fixture
def running(name: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has a cluster with a job in it."""
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    command = [sys.executable, "-c", RUNS, name]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            yield program
        finally:
            program.kill()
    fabric.down(name)


def started(program: subprocess.Popen[str]) -> list[int]:
    """Process ids of its job, once that runs; not those that the job's processes have started."""
    assert program.stdout is not None
    ready, *pids = program.stdout.readline().split()
    assert ready == "ready"
    return [int(pid) for pid in pids]


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_is_asked_to_end_takes_all_down(
    running: subprocess.Popen[str], name: str, which: signal.Signals
) -> None:
    assert len(started(running)) == 2
    pids = system.processes_in(f"{name}-0")
    assert len(pids) == 2
    running.send_signal(which)
    assert running.wait() != 0
    wait_until_gone(pids)
    assert leftovers(name) == []


def test_the_next_one_cleans_up_after_one_that_was_killed(
    running: subprocess.Popen[str], name: str
) -> None:
    started(running)
    pids = system.processes_in(f"{name}-0") + system.processes_in(f"{name}-1")
    running.kill()
    running.wait()
    assert len(leftovers(name)) == 5
    with fabric.cluster(Fabric(servers=2, rails=1, name=name)):
        wait_until_gone(pids)
    assert leftovers(name) == []


def test_a_job_dies_with_its_program(running: subprocess.Popen[str]) -> None:
    pids = started(running)
    assert len(pids) == 2
    running.kill()
    wait_until_gone(pids)


def test_one_cluster_of_a_name_at_a_time(running: subprocess.Popen[str], name: str) -> None:
    started(running)
    with (
        pytest.raises(ClusterError, match=f"Process {running.pid} has a cluster named {name}"),
        fabric.cluster(Fabric(name=name)),
    ):
        pass
    assert running.poll() is None
    assert len(leftovers(name)) == 5


def test_a_user_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert system.why_not() == "network namespaces are made by root, and this user is not"
    with pytest.raises(ClusterError, match=r"No cluster can be made here: .* root"):
        Fabric().up()


def test_missing_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    assert "ip (package iproute2)" in (system.why_not() or "")


def test_another_system_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert system.why_not() == "network namespaces are Linux's, and this is darwin"


def test_no_such_namespace() -> None:
    with (
        pytest.raises(ClusterError, match="cannot enter namespace fjt-nowhere"),
        system.inside("fjt-nowhere"),
    ):
        pass


BUFFER = [9013, 2**30 + 1], [9014, 2**30]

test_bounds_of_a_fabric = bounds(
    ClusterError,
    *keywords(
        Fabric,
        servers=([1, 201], [2, 200]),
        rails=([0, 101], [1, 100]),
        rate=([999_999, 10**11 + 1], [10**6, 10**11]),
        mtu=([575, 65001], [576, 65000]),
        port_buffer=BUFFER,
        nic_buffer=BUFFER,
        delay=([-0.001, 0.2], [0, 0.1]),
    ),
)


def named(name: str) -> Callable[[], object]:
    return lambda: Fabric(name=name)


def benchmark(**settings: Any) -> Callable[[], object]:
    return lambda: options.BenchOptions(**settings).fabric()


def layered(**settings: Any) -> Callable[[], object]:
    return lambda: options.LayerOptions(**settings)


def overlapping(**settings: Any) -> Callable[[], object]:
    return lambda: options.OverlapOptions(**settings)


test_refused_options = refusals(
    ClusterError,
    *(
        (named(name), "name must be one to eight of a-z and 0-9")
        for name in ("", "a-b", "A", "toolongname", "../x")
    ),
    (benchmark(rate="fast"), "--rate must be like 100kbit, 100mbit, 100gbit; got 'fast'"),
    (benchmark(port_buffer="1.5m"), "--port-buffer must be like 100, 100k, 100m; got '1.5m'"),
    (benchmark(workloads=("all",)), "--workloads all: there are pair-zipf, expert, balanced"),
    (benchmark(schedulers=("best",)), "--schedulers best: there are auto"),
    (benchmark(row_bytes=6), "--row-bytes must be a multiple of 4, got 6"),
    (benchmark(rounds=0), "--rounds must be above 0"),
    (benchmark(baseline_rounds=0), "--baseline-rounds must be above 0"),
    (benchmark(seconds=0.0), "--seconds must be above 0"),
    (benchmark(timeout=0.0), "--timeout must be above 0"),
    *(
        refused
        for of in (layered, overlapping)
        for refused in (
            (of(rounds=0), "--rounds must be above 0"),
            (of(seconds=0.0), "--seconds must be above 0"),
            (of(timeout=-1.0), "--timeout must be above 0"),
            (of(row_bytes=6), "--row-bytes must be a multiple of 4, got 6"),
            (of(servers=1), "--servers must be 2 or more"),
        )
    ),
    (layered(layers=("64",)), "--layers 64: want experts:choices:exponent"),
    (layered(layers=("9:2:0",)), "--layers 9:2:0: want experts that divide over 8 devices"),
    (overlapping(experts=9), "--experts 9 --top-k 8: want experts that divide over 8 devices"),
    (overlapping(top_k=65), "--experts 64 --top-k 65: want experts"),
    (overlapping(chunks=(0,)), "--chunks must be 1 or more each"),
    (overlapping(ratios=()), "and --ratios above 0"),
)


@pytest.mark.parametrize("workload", sorted(work.WORKLOADS))
def test_traffic_has_the_limit_that_is_asked_for(workload: str) -> None:
    servers, rails, row_bytes, rate = 4, 2, 64, 10**8
    traffic = work.draw(workload, servers, rails, row_bytes, rate, 1.0, 3)
    leaving, entering = [0] * servers, [0] * servers
    nics = {"out": [0] * 8, "in": [0] * 8}
    for (src, dst), rows in np.ndenumerate(traffic):
        if src // rails != dst // rails:
            leaving[src // rails] += rows * row_bytes
            entering[dst // rails] += rows * row_bytes
            nics["out"][src] += rows * row_bytes
            nics["in"][dst] += rows * row_bytes
    load = work.load(traffic, rails, row_bytes)
    assert load.server == max(leaving + entering)
    assert load.nic == max(nics["out"] + nics["in"])
    assert load.pair == traffic.max() * row_bytes
    assert load.total == sum(leaving)
    assert load.seconds(rails, rate) == pytest.approx(1.0, rel=0.01)


def test_rows_tell_where_they_are_from(rng: np.random.Generator) -> None:
    traffic, width = rng.integers(0, 5, (4, 4)), 3
    most, room = int(traffic.sum(axis=1).max()), int(traffic.sum(axis=0).max()) + 2
    operand = np.stack([work.rows_of(device, 0, most, width) for device in range(4)])
    assert len(np.unique(operand.reshape(-1, width), axis=0)) == 4 * most
    assert operand.any(axis=2).all()
    want = reference.exchange(
        operand, np.zeros((4, room, width), np.uint32), reference.packed(traffic)
    )
    for device in range(4):
        np.testing.assert_array_equal(work.expected(traffic, device, room, width), want[device])


def test_skipped_busy_and_wrong_are_said() -> None:
    scheme = {"wrong": 2, "machine_busy": 0.71}
    odd = {"scheme": "fast", "skipped": "not yet"}
    schemes = [scheme | {"scheme": "direct"}, odd]
    record: dict[str, Any] = {"start": {"wrong": 1}}
    record["workloads"] = [{"workload": w, "schemes": schemes} for w in ("a", "b")]
    assert report.wrong(record) == 5
    assert report.skipped(record) == ["Not run: fast: not yet"]
    assert report.warnings(record) == [
        "More than 70% of the CPU was busy: direct on a (71%), direct on b (71%)."
    ]
    scheme["machine_busy"] = 0.7
    record = {"workloads": [{"workload": "a", "schemes": [scheme | {"scheme": "direct"}]}]}
    assert report.warnings(record) == []
