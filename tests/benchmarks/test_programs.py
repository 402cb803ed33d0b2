"""Each program of benchmarks/ once, as small as can be: it ends well, and its record has a page."""

import os
from pathlib import Path

import pytest
import records
import to_markdown
from emulated_cluster import system
from pythons import printed

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PATH = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
TINY = "--servers 2 --rails 1 --rate 1gbit"
LAYER = f"{TINY} --seconds 0.002 --rounds 1 --row-bytes 64"

PROGRAMS = {
    "schedules.py": "--tables bound flow --servers 2 4 --seeds 1",
    "deduplication.py": "--models gpt-oss-120b --servers 2 --seeds 1 --tokens 32",
    "processes.py": "--kib 32 --schedulers direct --rounds 1",
    "simulated_cluster.py": "",
    "emulated_cluster bench": f"{LAYER} --workloads pair-zipf --schedulers fast --delay 0.001",
}
LONG = {
    "moe_layer.py": "--tokens 16 --width 8 --inner 8 --rounds 1 --experts 8 --least 0",
    "balance.py": "--tokens 16 --experts 16",
    "emulated_cluster layer": f"{LAYER} --layers 4:2:0 --backward",
    "emulated_cluster overlap": f"{LAYER} --experts 4 --top-k 2 --chunks 1 2 --ratios 1 "
    "--timelines",
    "layer_memory.py": "--tokens 64 --width 64",
    "endurance.py": "--exchanges 100 --programs 3 --steps 0 --jobs 2",
    "fault_matrix.py": "--only wrong",
    "emulated_cluster train": f"{TINY} --steps 1 --rounds 1 --sequences 1 --width 16 "
    "--schedulers fast --ways once:1",
}


def run(program: str, arguments: str, record: Path) -> None:
    file, *command = program.split()
    words = [*command, *arguments.split(), "--json", str(record)]
    name = f"fjt{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    if command:
        reason = system.why_not()
        if reason:
            pytest.skip(f"no emulated cluster: {reason}")
        words += ["--name", name]
    printed(BENCHMARKS / file, *words, environment={"PYTHONPATH": PATH})
    if command:
        assert system.namespaces(f"{name}-") == []
    found = records.read(record)
    page = to_markdown.PAGES[found["schema"]](found, "a title")
    assert page.startswith("# a title\n")


@pytest.mark.parametrize("program", PROGRAMS)
def test_runs(program: str, tmp_path: Path) -> None:
    run(program, PROGRAMS[program], tmp_path / "new" / "record.json")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", LONG)
def test_runs_long(program: str, tmp_path: Path) -> None:
    run(program, LONG[program], tmp_path / "record.json")
