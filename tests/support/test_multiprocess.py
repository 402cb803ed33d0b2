"""The launcher of multi-process jobs: it says who hangs and where, and leaves nobody."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import multiprocess

HERE = Path(__file__)


def fail(process, how):
    """Runs in a job."""
    if jax.process_index() != process:
        return
    if how == "raise":
        raise ValueError("as asked")
    written = multiprocess.folder() / "written"
    written.write_text(str(os.getpid()))
    written.rename(written.with_name("alive"))  # never seen without the number in it
    while True:
        signal.pause()


def launched(function, how, **arguments):
    # One that is left does not wait long for one that failed, but as long as it takes for one that
    # hangs: when it gives up, jax.distributed aborts the other, wherever that is.
    seconds = 1 if how == "raise" else 300
    return {
        "file": HERE,
        "function": function,
        "processes": 2,
        "devices": 2,
        "arguments": {"how": how, **arguments},
        "initialize": {"shutdown_timeout_seconds": seconds, "heartbeat_timeout_seconds": 10},
    }


def test_a_process_that_hangs_is_named_and_says_where():
    with multiprocess.Job(**launched("fail", process=0, how="hang")) as job:
        until((job.folder / "alive").exists)
        ended = job.wait(0.1)
    assert (ended[0].hung, ended[0].status) == (True, -signal.SIGKILL)
    assert ended[0].result is None
    assert re.search(r'test_multiprocess.py", line \d+ in fail', ended[0].output)
    assert str(ended[0]).startswith("--- process 0 hung and was killed, without a result:")


def test_nobody_outlives_who_started_them(tmp_path):
    """Not even where that one had no time to tidy up."""
    program = f"""
import sys; sys.path.insert(0, {str(HERE.parent)!r})
import multiprocess, test_multiprocess as t
with multiprocess.Job(**t.launched("fail", process=0, how="hang")) as job:
    print(job.folder, flush=True)
    job.wait()
"""
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        alive = Path(starter.stdout.readline().strip()) / "alive"
        until(alive.exists)
        pid = int(alive.read_text())
    finally:
        starter.kill()
        starter.communicate()
    until(lambda: not Path(f"/proc/{pid}").exists() or "zombie" in status_of(pid))


def status_of(pid):
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def until(condition):
    """Waits; the test's own time-out is the bound."""
    while not condition():
        time.sleep(0.01)
