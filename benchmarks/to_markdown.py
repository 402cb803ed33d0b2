"""Makes tables of the records in `results/`, which the benchmarks wrote.

Each record gets a page beside it; the READMEs get the figures of `python -m fastjax bench` between
their `results` marks.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from emulated_cluster import layer as emulated_layer
from emulated_cluster import overlap as emulated_overlap
from emulated_cluster import report as emulated_cluster
from emulated_cluster import training
from gpu_check import report as gpu_report
from records import table

from fastjax.cli.bench import tables

SHOWN = "cpu_8_devices_jax_0_10_2"
BENCH_SCHEMA = "fastjax-bench-1"


def conditions(record: dict[str, Any]) -> str:
    return f"{records.conditions(record)}\n\n{tables.workload(record)}"


def excerpt(record: dict[str, Any]) -> str:
    """The few lines that the README shows."""
    chosen = [("direct", "1x8"), ("fast", "2x4"), ("fast", "4x2")]
    chosen += [(s, "-") for s in ("dense exact", "dense worst", "all_gather", "copy")]
    by_key = {(e["scheme"], e["servers"]): e for e in record["schemes"]}
    small = {e["name"]: e for e in record["latency"]}["plan + exchange 1x8"]
    figures = table(
        ["scheme", "servers", "median ms", "quartiles", "algbw GB/s", "vs dense", "vs copy"],
        [
            [
                key[0],
                key[1],
                f"{e['median_ms']:.1f}",
                f"{e['p25_ms']:.1f} to {e['p75_ms']:.1f}",
                f"{e['algbw']:.2f}",
                tables.ratio(e["dense_by_this"]),
                tables.ratio(e["this_by_copy"]),
            ]
            for key in chosen
            for e in [by_key[key]]
        ],
    )
    return (
        f"{figures}\n\nAn exchange of one row for each peer, planning included: "
        f"{small['median_ms'] * 1e3:.0f} µs, {small['by_empty']:.1f} times an FFI call on the same "
        "devices that does nothing."
    )


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
    emulated_cluster.SCHEMA: emulated_cluster.page,
    endurance.SCHEMA: endurance.page,
    fault_matrix.SCHEMA: fault_matrix.page,
    gpu_compile.SCHEMA: gpu_compile.page,
    gpu_report.SCHEMA: gpu_report.page,
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
    """What every generated file must hold: all pages of results, the READMEs, records in short."""
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
    shown = found[SHOWN]
    benches = {k: record for k, record in found.items() if record["schema"] == BENCH_SCHEMA}
    # `python -m fastjax bench` gives every figure a line.
    result |= {
        root / f"benchmarks/results/{stem}.json": records.text(record)
        for stem, record in benches.items()
    }
    marked = {
        root / "README.md": f"{excerpt(shown)}\n\n{conditions(shown)}",
        root / "benchmarks/README.md": summary(benches),
    }
    for path, text in marked.items():
        fresh = f"<!-- results -->\n{text}\n<!-- /results -->"
        old = path.read_text()
        result[path] = re.sub(
            r"<!-- results -->.*<!-- /results -->", lambda _, t=fresh: t, old, flags=re.DOTALL
        )
    return result


if __name__ == "__main__":
    for path, text in pages(Path(__file__).parents[1]).items():
        path.write_text(text)
