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
import deduplication_tables
import endurance
import fault_matrix
import gpu_compile
import layer_memory
import moe_layer
import plan_time
import processes
import records
import schedule_tables
import simulated_cluster
from emulated_cluster import bench as emulated_bench
from emulated_cluster import layer as emulated_layer
from emulated_cluster import overlap as emulated_overlap
from emulated_cluster import training
from gpu_check import report as gpu_report
from records import table

from fastjax.cli.bench import tables

BENCH_SCHEMA = "fastjax-bench-1"


def conditions(record: dict[str, Any]) -> str:
    return f"{records.conditions(record)}\n\n{tables.workload(record)}"


def page(record: dict[str, Any], title: str) -> str:
    parts = [f"# {title}", conditions(record), "## Exchanges", table(*tables.exchanges(record))]
    parts += ["## Plans", table(*tables.plans(record))]
    if record["latency"]:
        parts += ["## Latency", table(*tables.latency(record))]
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


PAGES: dict[str, Callable[[dict[str, Any], str], str]] = {
    BENCH_SCHEMA: page,
    deduplication_tables.SCHEMA: deduplication_tables.page,
    emulated_bench.SCHEMA: emulated_bench.page,
    endurance.SCHEMA: endurance.page,
    fault_matrix.SCHEMA: fault_matrix.page,
    gpu_compile.SCHEMA: gpu_compile.page,
    gpu_report.SCHEMA: gpu_report.page,
    balance.SCHEMA: balance.page,
    layer_memory.SCHEMA: layer_memory.page,
    moe_layer.SCHEMA: moe_layer.page,
    schedule_tables.SCHEMA: schedule_tables.page,
    emulated_layer.SCHEMA: emulated_layer.page,
    emulated_overlap.SCHEMA: emulated_overlap.page,
    training.SCHEMA: training.page,
    plan_time.SCHEMA: plan_time.page,
    processes.SCHEMA: processes.page,
    simulated_cluster.SCHEMA: simulated_cluster.page,
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
