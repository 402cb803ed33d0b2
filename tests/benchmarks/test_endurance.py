"""Endurance, in short: `make endurance` is the same for longer."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import endurance
import enduring
import numpy as np
import pytest


def test_exchanges_on_and_on():
    run = endurance.exchange(exchanges=100, programs=6, seed=1)
    assert run["grown"] == []
    assert run["refused"] == 0
    assert [sample[-1]["done"] for sample in run["samples"]] == [100] * 4
    assert run["moved"] > 0


def test_steps_of_layers_on_and_on():
    run = endurance.step(steps=24, chunks=4, seed=1)  # XLA still starts threads
    assert run["refused"] == 0
    assert [sample[-1]["done"] for sample in run["samples"]] == [24] * 4


def samples(**last):
    """Of a process that had as much of all at all times, but for the later half."""
    usual = {"allocated": 200 << 20, "rss": 300 << 20, "descriptors": 30, "threads": 100}
    later = usual | last
    return [{"done": 100 * i} | (later if i >= 6 else usual) for i in range(8)]


def test_what_grows_is_noticed():
    assert endurance.grown(samples()) == []
    assert (
        endurance.grown(
            samples(rss=310 << 20, allocated=(200 << 20) + (1 << 18), threads=102, descriptors=31)
        )
        == []
    )
    assert endurance.grown(samples(rss=317 << 20)) == ["rss: 314572800, later 332398592"]
    assert endurance.grown(samples(allocated=201 << 20)) == [
        "allocated: 209715200, later 210763776"
    ]
    assert endurance.grown(samples(descriptors=32)) == ["descriptors: 30, later 32"]
    assert endurance.grown(samples(threads=103)) == ["threads: 100, later 103"]


def test_a_wrong_result_is_noticed():
    program = enduring.Program(np.random.default_rng(0), 4, 2)
    exchange = program.launch(np.random.default_rng(1))
    exchange.check()
    exchange.operand[...] += np.ones((), exchange.operand.dtype)
    with pytest.raises(AssertionError):
        exchange.check()


@pytest.mark.nightly
def test_jobs_leave_nothing_behind():
    found = endurance.run_jobs(2)
    assert [job["how"] for job in found["jobs"]] == ["well"] * 2
    assert found["hung"] == []
    assert found["left"] == []


def test_what_is_left_is_noticed(tmp_path):
    before = enduring.Traces.now()
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    shared = Path(f"/dev/shm/fastjax-test-{os.getpid()}")
    try:
        assert enduring.left_behind(before, [], tmp_path) == []
        shared.touch()
        (tmp_path / "something").touch()
        found = enduring.left_behind(before, [child.pid], tmp_path)
        assert f"process {child.pid}" in found
        assert "file something" in found
        assert f"/dev/shm/{shared.name}" in found
        with socket.socket() as listening:  # held by a process that is seen
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            assert not any("socket" in what for what in enduring.left_behind(before, [], tmp_path))
    finally:
        shared.unlink(missing_ok=True)
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.mark.nightly
@pytest.mark.parametrize("how", enduring.ENDINGS)
def test_nobody_hangs_when_a_process_ends(how):
    with enduring.ending_job(how, processes=3) as job:
        ended = job.wait()
    said = "\n".join(map(str, ended))
    assert not any(one.hung for one in ended), said
    for process in (0, 2):
        # Told by us of the end of process 1, or by jax.distributed.
        if how == "without_waiting":
            assert ended[process].result == {}, said
        elif (
            how in enduring.WAITED_FOR
        ):  # nobody holds the result any more that would have to be waited for
            assert ended[process].result == {} or "UNAVAILABLE" in ended[process].output, said
        else:
            assert "error" in (ended[process].result or {}) or ended[process].status != 0, said
            assert "UNAVAILABLE" in ended[process].output, said
