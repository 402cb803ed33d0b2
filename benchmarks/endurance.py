"""Does nothing go wrong, and does nothing pile up: very many exchanges in one job, and many jobs.

    python benchmarks/endurance.py --json endurance.json

runs 10,000 exchanges of random kinds and sizes over 4 processes of 2 devices, and 10,000 steps of a
layer in 4 chunks, each checked in every process. Then it starts and ends 100 jobs. The exit status
is 1 where memory, descriptors or threads grow, or jobs leave anything behind.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import records

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "tests/support")]

import enduring
import enduring_layers
import leftovers
import multiprocess

SCHEMA = "fastjax-endurance-2"
PROCESSES, DEVICES, CHUNKS = 4, 2, 4
# Of the last quarter of the samples against the one before, by medians. What malloc has given out
# is what a leak would be in: 256 bytes an exchange or a step show. What is kept for reuse grows to
# the largest exchange so far, more and more seldom. Resident memory goes up and down by several MiB
# with the holes that are left in the arenas of some 170 threads.
MORE_ALLOCATED, MORE_ALLOCATED_EACH = 512 << 10, 256
MORE_RESIDENT = 16 << 20
# An exchange may be between two of its tasks at the moment of a sample.
MORE = {"descriptors": 1, "threads": 2}
ENDS = ("well", *enduring.ENDINGS)


def grown(samples: Sequence[dict[str, int]]) -> list[str]:
    """What a process had more of in the last quarter of its samples than in the one before."""
    quarter = len(samples) // 4
    parts = samples[-2 * quarter : -quarter], samples[-quarter:]
    median = {
        name: [float(np.median([one[name] for one in part])) for part in parts]
        for name in ("allocated", "rss", *MORE)
    }
    apart = samples[-1]["done"] - samples[-1 - quarter]["done"]
    most = {"rss": MORE_RESIDENT, "allocated": MORE_ALLOCATED + apart * MORE_ALLOCATED_EACH} | MORE
    return [
        f"{name}: {before:.0f}, later {after:.0f}"
        for name, (before, after) in median.items()
        if after > before + most[name]
    ]


def shown(sample: dict[str, int], name: str) -> str:
    bytes_of = ("allocated", "rss")
    return f"{sample[name] / 2**20:.1f}" if name in bytes_of else str(sample[name])


def exchange(exchanges: int, programs: int, seed: int) -> dict[str, Any]:
    """One job of many exchanges."""
    how = {"exchanges": exchanges, "programs": programs, "seed": seed}
    results = _run(enduring.__file__, "exchange_on_and_on", how)
    return how | {"moved": results[0]["moved"]} | _held(results)


def step(steps: int, chunks: int, seed: int) -> dict[str, Any]:
    """One job of many steps of a layer in chunks."""
    how = {"steps": steps, "chunks": chunks, "seed": seed}
    results = _run(enduring_layers.__file__, "step_on_and_on", how)
    return how | {"copies": sum(result["copies"] for result in results)} | _held(results)


def _run(file: str, function: str, how: dict[str, Any]) -> list[dict[str, Any]]:
    return multiprocess.run(
        file,
        function,
        processes=PROCESSES,
        devices=DEVICES,
        seconds=3600,
        arguments=how | {"samples": 24},
    )


def _held(results: list[dict[str, Any]]) -> dict[str, Any]:
    samples = [result["samples"] for result in results]
    return {
        "seconds": samples[0][-1]["seconds"],
        "samples": samples,
        "grown": [f"process {p}: {what}" for p, s in enumerate(samples) for what in grown(s)],
        "refused": sum(result["refused"] for result in results),
    }


def run_jobs(jobs: int) -> dict[str, Any]:
    """Jobs one after the other, most of which end well; what they left."""
    rows, hung, left = [], [], []
    before = leftovers.Leftovers()
    for number in range(jobs):
        how = "well" if number % 3 else ENDS[number // 3 % len(ENDS)]
        with tempfile.TemporaryDirectory(prefix="fastjax-endurance-") as folder:
            start = time.monotonic()
            with enduring.ending_job(how, processes=2, TMPDIR=folder) as job:
                ended = job.wait()
            seconds = time.monotonic() - start
            files = (f"file {path.name}" for path in sorted(Path(folder).iterdir()))
            left += [f"job {number} ({how}): {trace}" for trace in (*files, *before.after(5))]
        hung += [f"job {number} ({how}): {one}" for one in ended if one.hung]
        status = [one.status for one in ended]
        if how == "well" and any(status):
            hung += [f"job {number}: {one}" for one in ended]
        rows.append({"how": how, "status": status, "seconds": round(seconds, 1)})
        print(f"job {number}: {rows[-1]}", flush=True)
    return {"jobs": rows, "hung": hung, "left": left}


def samples_of(run: dict[str, Any], what: str) -> list[str]:
    """What the processes of a job held, first and last, and in between."""
    first, last = ([each[at] for each in run["samples"]] for at in (0, -1))
    columns = {name: name for name in (*MORE, "maps")}
    columns |= {"allocated": "allocated MiB", "rss": "resident MiB"}
    header = ["process", *(part for name in columns.values() for part in (name, "later"))]
    rows = [
        [str(process), *(shown(one, name) for name in columns for one in pair)]
        for process, pair in enumerate(zip(first, last, strict=True))
    ]
    when = f"after {first[0]['done']} {what}, when every program had run once, and after all"
    parts = [f"Of each process {when}:", records.table(header, rows, texts=1)]
    return [*parts, "Grew: " + ("; ".join(run["grown"]) or "nothing") + "."]


def page(record: dict[str, Any], title: str) -> str:
    parts = [f"# {title}"]
    if record["exchanges"]:
        run = record["exchanges"][0]
        parts.append(
            f"{run['exchanges']} exchanges by {run['programs']} programs of random kinds (groups, "
            "orders of devices, schedulers, types, shapes), sizes random in each, over "
            f"{PROCESSES} processes of {DEVICES} devices; seed {run['seed']}. Every result was "
            "compared with numpy's in every process, and none was wrong. "
            f"{run['moved'] / 2**20:.0f} MiB were sent in {run['seconds']:.0f} s."
        )
        parts += samples_of(run, "exchanges")
    if record["steps"]:
        run = record["steps"][0]
        parts.append(
            f"{run['steps']} steps of four layers in {run['chunks']} chunks, in turn, forward and "
            f"backward, over {PROCESSES} processes of {DEVICES} devices. Two send a token once to "
            "each server, the others once for each choice; one of either kind levels the experts "
            f"of a server, which had {run['copies']} copies in all, and popularity drifts; tokens "
            f"and experts differ in each step; seed {run['seed']}. Every result and gradient was "
            "compared with numpy's in every process, and none was wrong. They took "
            f"{run['seconds']:.0f} s."
        )
        parts += samples_of(run, "steps")
    if record["starts"]:
        jobs = record["starts"][0]
        parts.append(
            f"{len(jobs['jobs'])} jobs of 2 processes of 2 devices, one after the other, of which "
            "a third ended as process 1 should not. Processes that had to be killed, since they "
            "did not end, or failed where all was well: "
            + (f"{len(jobs['hung'])}, see below" if jobs["hung"] else "none")
            + ". Left behind in processes, shared memory (files, System V segments) and "
            "temporary files: " + ("; ".join(jobs["left"]) or "nothing") + "."
        )
        rows = []
        for how in dict.fromkeys(job["how"] for job in jobs["jobs"]):
            these = [job for job in jobs["jobs"] if job["how"] == how]
            statuses = sorted({str(job["status"]) for job in these})
            median = np.median([job["seconds"] for job in these])
            rows.append(
                [how.replace("_", " "), "; ".join(statuses), str(len(these)), f"{median:.1f}"]
            )
        parts.append(records.table(["process 1 ends", "statuses", "jobs", "median s"], rows))
        parts += jobs["hung"]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--exchanges", type=int, default=10_000, help="0: none")
    parser.add_argument("--programs", type=int, default=72, help="compiled exchanges")
    parser.add_argument("--steps", type=int, default=10_000, help="of a layer; 0: none")
    parser.add_argument("--jobs", type=int, default=100, help="0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if options.exchanges and not 1 <= options.programs <= options.exchanges // 8:
        parser.error("--programs must be from 1 to an eighth of --exchanges.")
    os.environ.setdefault("FASTJAX_TIMEOUT", "120")
    record = records.stamp(SCHEMA)
    record["exchanges"] = (
        [exchange(options.exchanges, options.programs, options.seed)] if options.exchanges else []
    )
    record["steps"] = [step(options.steps, CHUNKS, options.seed)] if options.steps else []
    record["starts"] = [run_jobs(options.jobs)] if options.jobs else []
    records.publish(page(record, "Endurance"), record, options.json)
    bad = [run["grown"] for run in record["exchanges"] + record["steps"]] + [
        s["hung"] + s["left"] for s in record["starts"]
    ]
    return 1 if any(bad) else 0


if __name__ == "__main__":
    sys.exit(main())
