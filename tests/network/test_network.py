"""How processes join the network of a job: with a store, and a network, that only pretend."""

import contextlib
import logging
import re
import socket
import sys
import threading
import time
import types

import jax
import multiprocess
import numpy as np
import pytest
from fake_network import FakeClient, FakeCore
from refusals import refused

import fastjax
from fastjax import jax_compat, network
from fastjax.errors import OptionError, ThreadsWarning, UnsupportedError
from fastjax.network import bootstrap, gather
from fastjax.network.record import WIRE_VERSION, Record
from fastjax.network.store import Store

MY_HOST = socket.gethostname()
PREFIX = "fastjax/network/v1"


@pytest.fixture
def client():
    return FakeClient()


@pytest.fixture
def core(monkeypatch):
    """A network that notes what it is asked for."""
    core = FakeCore()
    for name in ("open", "add_peer", "peer_lost", "close", "unfinished", "state"):
        monkeypatch.setattr(fastjax._core, f"network_{name}", getattr(core, name), raising=False)
    return core


@pytest.fixture
def job(monkeypatch, client, core, tmp_path):
    """This is process 1 of 3, and has not joined."""
    found = tmp_path / "libucp.so.0"
    found.touch()
    for name in ("FASTJAX_UCX_NICS", "FASTJAX_UCX_TRANSPORTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FASTJAX_UCX_LIBRARY", str(found))
    monkeypatch.setattr(bootstrap, "_outcome", None)
    at_exit = []
    monkeypatch.setattr(bootstrap.atexit, "register", lambda *a: at_exit.append(a))
    job = jax_compat.Job(1, 3, client, "127.0.0.1:1234")
    monkeypatch.setattr(jax_compat, "job", lambda: job)
    yield types.SimpleNamespace(library=str(found), at_exit=at_exit)
    if isinstance(bootstrap._outcome, gather.Gatherer):
        bootstrap._outcome.stop(60)


def record(version=fastjax.__version__, wire=WIRE_VERSION, host="b", error="", addresses=b"a\nb"):
    return Record(version, wire, host, error, addresses).pack()


def until(condition):
    """Waits; the test's own time-out is the bound."""
    while not condition():
        time.sleep(0.001)


def test_joins_once_and_without_waiting(job, client, core):
    for _ in range(2):
        network.ensure_open()
    (opened,) = core.opened
    secret = client.values[f"{PREFIX}/secret"]
    assert len(secret) == 16
    assert opened == (1, 3, secret, job.library, [], "")
    mine = Record.unpack(client.values[f"{PREFIX}/process/1"])
    assert mine == Record(fastjax.__version__, WIRE_VERSION, MY_HOST, "", b"addresses of 1")
    assert core.added == core.lost == {}
    assert len(job.at_exit) == 1


@pytest.mark.parametrize(
    ("jaxlib", "threads", "warned"),
    [("0.11.2", None, True), ("0.11.2", "264", False), ("0.12.0", None, False)],
)
def test_too_few_threads_are_warned_of(job, monkeypatch, jaxlib, threads, warned):
    monkeypatch.setattr(bootstrap.jaxlib.version, "__version__", jaxlib)
    monkeypatch.delenv("NPROC", raising=False)
    if threads:
        monkeypatch.setenv("NPROC", threads)
    with pytest.warns(ThreadsWarning) if warned else contextlib.nullcontext():
        network.ensure_open()


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_leaves_the_network_open(job, core, monkeypatch):
    monkeypatch.setattr(bootstrap.jaxlib.version, "__version__", "0.11.2")
    monkeypatch.delenv("NPROC", raising=False)
    with pytest.raises(ThreadsWarning):
        network.ensure_open()
    network.ensure_open()
    assert len(core.opened) == len(job.at_exit) == 1


def test_the_secret_of_whoever_came_first_is_taken(job, client, core):
    client.values[f"{PREFIX}/secret"] = b"0123456789abcdef"
    network.ensure_open()
    assert core.opened[0][2] == b"0123456789abcdef"


@pytest.mark.parametrize("secret", [b"short", b""])
def test_a_secret_that_is_none_is_refused(job, client, core, secret):
    client.values[f"{PREFIX}/secret"] = secret
    refused(UnsupportedError, network.ensure_open, "the job's secret in jax")
    assert core.opened == []


def test_the_environment_reaches_the_network(job, core, monkeypatch):
    monkeypatch.setenv("FASTJAX_UCX_NICS", "eth0, mlx5_0:1")
    monkeypatch.setenv("FASTJAX_UCX_TRANSPORTS", "tcp,sm")
    network.ensure_open()
    assert core.opened[0][4:] == (["eth0", "mlx5_0:1"], "tcp,sm")


def test_meets_others_as_they_come(job, client, core):
    client.values[f"{PREFIX}/process/2"] = record()
    network.ensure_open()
    until(lambda: core.added)
    assert core.added == {2: b"a\nb"}
    client.values[f"{PREFIX}/process/0"] = record(addresses=b"\0\n\n{}")
    until(lambda: len(core.added) == 2)
    assert core.added[0] == b"\0\n\n{}"
    assert core.lost == {}
    until(lambda: not bootstrap._outcome._thread.is_alive())


def test_a_process_that_comes_alone_is_met_at_once(core):
    """The pause between looks at all processes grows; the first that is missing ends it."""
    client = FakeClient()
    gatherer = gather.Gatherer(Store(client), 0, 2, Record(fastjax.__version__, WIRE_VERSION, "a"))
    gatherer._longest_pause = 1e9
    gatherer.start()
    until(lambda: client.gets > 3)
    client.values[f"{PREFIX}/process/1"] = record()
    until(lambda: core.added)
    assert not gatherer._missing


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (
            record(version="0.0.9"),
            f"on host b runs fastjax 0.0.9 (wire {WIRE_VERSION}), this one on host {MY_HOST} ",
        ),
        (
            record(wire=WIRE_VERSION + 1),
            f"on host b runs fastjax {fastjax.__version__} (wire {WIRE_VERSION + 1})",
        ),
        (record(error="no UCX here"), "on host b has no network: no UCX here"),
        (record(addresses=b"refuse me"), "has addresses that cannot be used: not addresses"),
        (b"garbage", "has addresses that cannot be used: "),
        (b"{}\nabc", "has addresses that cannot be used: not a process's record: b'{}'"),
        (b"[1]", "has addresses that cannot be used: not a process's record: b'[1]'"),
    ],
)
def test_a_process_that_cannot_be_talked_to_is_lost(job, client, core, data, why):
    client.values |= {f"{PREFIX}/process/0": record(), f"{PREFIX}/process/2": data}
    network.ensure_open()
    until(lambda: core.lost and core.added)
    assert core.lost[2].startswith(f"process 2 {why}")
    assert list(core.added) == [0]


def test_a_restarted_process_is_refused(job, client, core):
    client.values[f"{PREFIX}/process/1"] = record()
    refused(UnsupportedError, network.ensure_open, "process 1 has joined this job's exchanges")
    assert core.closed == [0.0]
    assert client.values[f"{PREFIX}/process/1"] == record()
    assert job.at_exit == []


def test_without_a_job(job, core, monkeypatch):
    monkeypatch.setattr(jax_compat, "job", lambda: None)
    refused(UnsupportedError, network.ensure_open, "call jax.distributed.initialize() first")
    assert core.opened == []


def test_a_network_that_does_not_open_is_reported_to_all(job, client, core, monkeypatch):
    monkeypatch.setenv("FASTJAX_UCX_NICS", "broken")
    told = "cannot be opened: no device broken", f"is {job.library} (", "FASTJAX_UCX_NICS: broken"
    text = refused(UnsupportedError, network.ensure_open, *told)
    assert refused(UnsupportedError, network.ensure_open) == text
    assert len(core.opened) == 1  # what failed is not tried again
    assert Record.unpack(client.values[f"{PREFIX}/process/1"]).error == text
    assert job.at_exit == []


def test_a_wrong_environment_is_reported_to_all(job, client, core, monkeypatch):
    monkeypatch.setenv("FASTJAX_UCX_NICS", "a,,b")
    text = refused(OptionError, network.ensure_open, "FASTJAX_UCX_NICS must be", "got 'a,,b'")
    assert Record.unpack(client.values[f"{PREFIX}/process/1"]).error == text
    assert core.opened == []


@pytest.mark.parametrize("fails_at", ["secret", "process/1"])
def test_a_coordinator_that_fails(job, client, core, fails_at):
    client.broken = f"{PREFIX}/{fails_at}"
    told = "coordinator 127.0.0.1:1234 failed: UNAVAILABLE: gone"
    refused(UnsupportedError, network.ensure_open, told)
    assert len(core.opened) == len(core.closed) == (fails_at == "process/1")


def test_a_coordinator_that_fails_later(job, client, core):
    client.values[f"{PREFIX}/process/0"] = record()
    network.ensure_open()
    until(lambda: core.added)
    client.broken = f"{PREFIX}/process/"
    until(lambda: core.lost)
    assert re.match(r"process 2: the job's coordinator cannot be asked.*UNAVAILABLE", core.lost[2])
    assert list(core.lost) == [2]


def test_store_passes_on_what_it_does_not_know(client):
    store = Store(client)
    assert store.get("a", 1e-9) is None
    client.broken = f"{PREFIX}/a"
    for use in (lambda: store.put("a", b""), lambda: store.get("a", 1)):
        refused(jax.errors.JaxRuntimeError, use, "UNAVAILABLE")


def leave(job):
    ((close, *arguments),) = job.at_exit
    close(*arguments)


def test_leaves_the_network_at_exit(job, client, core, monkeypatch):
    monkeypatch.delattr(sys, "last_value", raising=False)
    network.ensure_open()
    array = jax.jit(lambda x: x @ x)(np.ones((300, 300)))
    leave(job)
    assert array.is_ready()
    assert core.closed == [2.0]
    # The thread is gone, so that nobody is met anymore.
    client.values[f"{PREFIX}/process/0"] = record()
    assert not bootstrap._outcome._thread.is_alive()
    assert core.added == {}


def test_exchanges_whose_results_nobody_kept_are_waited_for(job, core, monkeypatch):
    monkeypatch.delattr(sys, "last_value", raising=False)
    monkeypatch.setattr(jax, "live_arrays", lambda _: [])
    core.at_exchange = [0, 2, 2, 1, 0, 1]  # one came a moment after it was launched
    network.ensure_open()
    leave(job)
    assert core.at_exchange == []
    assert core.closed == [2.0]


def test_an_exchange_that_never_ends_does_not_keep_the_process(job, core, monkeypatch, caplog):
    monkeypatch.delattr(sys, "last_value", raising=False)
    monkeypatch.setattr(jax, "live_arrays", lambda _: [])
    core.at_exchange = [1] * 1_000_000
    network.ensure_open()
    with fastjax.options(timeout=1e-3):
        leave(job)
    assert core.closed == [2.0]
    assert "leaving the job with unfinished programs, after 0.001 s" in caplog.text


def unfinished(monkeypatch):
    """An array that is never there."""
    array = types.SimpleNamespace(is_deleted=lambda: False, is_ready=lambda: False)
    monkeypatch.setattr(jax, "live_arrays", lambda _: [array])


def test_after_an_exception_nothing_is_waited_for(job, core, monkeypatch, caplog):
    unfinished(monkeypatch)
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    network.ensure_open()
    leave(job)
    assert core.closed == [2.0]
    assert caplog.text == ""


def test_a_network_that_does_not_close_is_warned_of(job, core, monkeypatch, caplog):
    network.ensure_open()
    core.closes = False
    with caplog.at_level(logging.WARNING):
        leave(job)
    assert "fastjax's network did not close within 2 s" in caplog.text


def joined_for_real():
    """Runs in a job, with jax.distributed's own store: the second comes when the first is in."""
    core = FakeCore()
    for name in ("open", "add_peer", "peer_lost", "close", "unfinished", "state"):
        setattr(fastjax._core, f"network_{name}", getattr(core, name))
    folder = multiprocess.folder()
    me, other = jax.process_index(), 1 - jax.process_index()
    if me:
        until((folder / "first is in").exists)
    network.ensure_open()
    (folder / "first is in").touch()
    until(lambda: other in core.added)
    path = folder / f"{me} closed"

    def close(seconds):
        # At exit: JAX must not have left the job yet.
        path.write_text(repr((seconds, jax.distributed.is_initialized())))
        return True

    fastjax._core.network_close = close
    threads = [t.name for t in threading.enumerate()]
    return {
        "opened": core.opened[0][:2],
        "secret": core.opened[0][2].hex(),
        "threads": threads,
        "added": {p: a.decode() for p, a in core.added.items()},
        "lost": core.lost,
    }


def test_a_job_joins_and_leaves(tmp_path):
    fake_library = tmp_path / "libucp.so.0"
    fake_library.touch()
    with multiprocess.Job(
        __file__,
        "joined_for_real",
        processes=2,
        devices=1,
        environment={"FASTJAX_UCX_LIBRARY": str(fake_library)},
    ) as job:
        ended = job.wait()
        assert [one.status for one in ended] == [0, 0], "\n".join(map(str, ended))
        for process in range(2):
            assert (job.folder / f"{process} closed").read_text() == "(2.0, True)"
    results = [one.result for one in ended]
    assert [r["opened"] for r in results] == [[0, 2], [1, 2]]
    assert results[0]["secret"] == results[1]["secret"] != ""
    assert [r["added"] for r in results] == [{"1": "addresses of 1"}, {"0": "addresses of 0"}]
    assert [r["lost"] for r in results] == [{}, {}]
