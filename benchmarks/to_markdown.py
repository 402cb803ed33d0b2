"""Makes tables of the records in `results/`, which the benchmarks wrote.

Each record gets a page beside it; the README here gets the figures of `python -m fastjax bench`
between its `results` marks.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import balance
import deduplication
import endurance
import fault_matrix
import gpu_compile
import layer_memory
import moe_layer
import plan_time
import processes
import records
import schedules
import simulated_cluster
from emulated_cluster import bench, layer, overlap, training
from gpu_check import report
from records import table

from fastjax.cli.bench import tables
from fastjax.cli.shared.text import cells

BENCH_SCHEMA = "fastjax-bench-1"


def conditions(record: dict[str, Any]) -> str:
    return f"{records.conditions(record)}\n\n{tables.workload(record)}"


def page(record: dict[str, Any], title: str) -> str:
    parts = [
        f"# {title}",
        conditions(record),
        "## Exchanges",
        table(*cells(tables.EXCHANGES, record["schemes"])),
    ]
    parts += ["## Latency", table(*cells(tables.LATENCY, record["latency"]))]
    return "\n\n".join(parts) + "\n"


def summary(found: dict[str, dict[str, Any]]) -> str:
    """One line for each record, for the README of this folder."""
    header = ["record", "GLIBC_TUNABLES", "`direct` 1x8 ms", "`fast` 2x4", "dense exact"]
    header += ["dense worst", "all_gather", "copy", "plan + exchange of one row, vs empty"]
    keys = [("direct", "1x8"), ("fast", "2x4")]
    keys += [(scheme, "-") for scheme in ("dense exact", "dense worst", "all_gather", "copy")]
    lines = []
    for stem, record in found.items():
        times = {(e["scheme"], e["servers"]): e["median_ms"] for e in record["schemes"]}
        small = {e["name"]: e for e in record["latency"]}["plan + exchange 1x8"]
        lines.append(
            [
                f"[{stem}](results/{stem}.md)",
                record["machine"]["glibc_tunables"] or "-",
                *(f"{times[key]:.1f}" for key in keys),
                f"{small['by_empty']:.2f}",
            ]
        )
    return table(header, lines)


PROGRAMS = (balance, deduplication, endurance, fault_matrix, gpu_compile, layer_memory, moe_layer)
PROGRAMS += (plan_time, processes, schedules, simulated_cluster)
PROGRAMS += (bench, layer, overlap, training, report)
PAGES: dict[str, Callable[[dict[str, Any], str], str]] = {
    BENCH_SCHEMA: page,
    **{program.SCHEMA: program.page for program in PROGRAMS},
}


def pages(root: Path) -> dict[Path, str]:
    """What every generated file must hold: pages of results, the README here, records in short."""
    found = {
        path.stem: json.loads(path.read_text())
        for path in sorted((root / "benchmarks/results").glob("*.json"))
    }
    result = {
        root / f"benchmarks/results/{stem}.md": PAGES[record["schema"]](
            record, stem.replace("_", " ")
        )
        for stem, record in found.items()
    }
    benches = {k: record for k, record in found.items() if record["schema"] == BENCH_SCHEMA}
    # `python -m fastjax bench` gives every figure a line.
    result |= {
        root / f"benchmarks/results/{stem}.json": records.text(record)
        for stem, record in benches.items()
    }
    path = root / "benchmarks/README.md"
    fresh = f"<!-- results -->\n{summary(benches)}\n<!-- /results -->"
    result[path] = re.sub(
        r"<!-- results -->.*<!-- /results -->",
        lambda _: fresh,
        path.read_text(),
        flags=re.DOTALL,
    )
    return result


if __name__ == "__main__":
    for path, text in pages(Path(__file__).parents[1]).items():
        path.write_text(text)
