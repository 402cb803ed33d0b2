"""The command line: what an exchange would cost."""

import functools
import re
import sys
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from commands import record, run_command, value, write_trace

import fastjax
from fastjax import Topology, make_plan, traffic
from fastjax.cli import main
from fastjax.simulation import INCAST, PRESETS, SYNCHRONIZATIONS
from fastjax.traffic import write_matrix

run = functools.partial(run_command, command="simulate")
ROOT = Path(__file__).parents[3]

# Rates at which numbers are round, and nothing but bytes takes time.
PLAIN = (
    "--scale-up-bandwidth 1e9 --scale-out-bandwidth 1e8 --scale-up-latency 0 "
    "--scale-out-latency 0 --transfer-overhead 0 --row-bytes 1000"
)


def lines_of(text):
    """The table's cells by scheduler."""
    lines = text.split("what limits it\n")[1].split("x today:")[0].splitlines()
    cells = [re.split(r"  +", line.strip()) for line in lines]
    return {name: rest for name, *rest in cells}


def sentences(text):
    """The verdict."""
    return text.split("\n\n")[-1].splitlines()


def test_one_flow_done_by_hand(capsys, tmp_path):
    """1000 rows of 1000 bytes over a NIC of 1e8 bytes/s take 10 ms."""
    path = tmp_path / "costs.json"
    matrix = np.zeros((2, 2), int)
    matrix[0, 1] = 1000
    write_matrix(tmp_path / "matrix", matrix, row_bytes=1000)
    out = run(capsys, tmp_path / "matrix", "--servers 2 --schedulers direct", PLAIN, "--json", path)
    (entry,) = record(path)["schedulers"]
    planning = entry["planning_us"]
    assert entry["time_us"] == pytest.approx(10_000)
    assert entry["by_bound"] == pytest.approx(1)
    assert entry["algbw"] == pytest.approx(1e6 / (1e-2 + planning / 1e6) / 1e9)
    assert entry["fast_algbw"] == pytest.approx(entry["algbw"] / 2)
    assert entry["limits_us"]["busy"] == pytest.approx(10_000)
    saved = record(path)["what_would_save"]
    assert saved == {
        "NICs twice as fast": pytest.approx(5_000 / (10_000 + planning)),
        "exchanges 4 times as large, per byte": pytest.approx(
            1 - (40_000 + planning) / 4 / (10_000 + planning)
        ),
    }
    assert lines_of(out)["direct"][-1] == "the busiest NIC 100%"
    assert record(path)["today_us"] == pytest.approx(10_000)
    best, gains, goes_to, helps, does_not = sentences(out)
    assert "direct, 10 ms with planning; without, 1.00 x the lower bound" in best
    assert gains.startswith("Planning gains nothing here")
    assert "the busiest NIC 100%" in goes_to
    assert "NICs twice as fast (50% less time)" in helps
    assert "exchanges 4 times as large" in does_not


def test_rates_in_place_of_the_preset_s(capsys, tmp_path):
    path = tmp_path / "costs.json"
    run(
        capsys,
        "--generate hot-receiver --devices 8 --rows 900 --preset mi300x --servers 4",
        "--scale-out-bandwidth 2e9 --scale-out-latency 0.001 --incast infiniband",
        "--synchronization barrier --oversubscription 2 --schedulers spreadout --json",
        path,
    )
    rates = PRESETS["mi300x"].rates | {"scale_out_bandwidth": 2e9, "scale_out_latency": 1e-3}
    plan = make_plan(
        traffic.hot_receiver(8, 900), Topology(4, 2, **rates), scheduler="spreadout", row_bytes=4096
    )
    timeline = fastjax.simulate(
        plan, synchronization="barrier", incast="infiniband", oversubscription=2
    )
    (entry,) = record(path)["schedulers"]
    assert entry["time_us"] == pytest.approx(timeline.completion_time * 1e6)
    fabric = record(path)["fabric"]
    assert fabric["preset"] == "mi300x"
    assert fabric["scale_up_bandwidth"] == 448e9
    assert fabric["scale_out_bandwidth"] == 2e9
    assert fabric["incast"]["name"] == "infiniband"


@pytest.mark.parametrize(("incast", "synchronization"), [*zip(INCAST, cycle(SYNCHRONIZATIONS))])
def test_what_is_supposed_is_said(capsys, incast, synchronization):
    arguments = "--generate uniform --devices 4 --rows 40 --servers 2 --schedulers fast --incast"
    out = run(capsys, arguments, incast, "--verbose --synchronization", synchronization)
    assert value(out, "incast") == str(INCAST[incast])
    assert value(out, "synchronization").startswith(f"{synchronization}: ")
    assert ("no loss where senders meet" in out) == (incast != "none")


@pytest.mark.parametrize(("incast", "share"), [("roce", 1), ("roce-literal", 0.97)])
def test_incast_is_counted_as_it_is_asked_for(capsys, tmp_path, incast, share):
    """Eight devices send to eight others at once: one sender's worth at each, or eight senders."""
    path = tmp_path / "costs.json"
    matrix = np.zeros((16, 16), int)
    matrix[:8, 8:] = 1000
    write_matrix(tmp_path / "matrix", matrix, row_bytes=1000)
    run(
        capsys, tmp_path / "matrix", "--servers 16 --schedulers direct --incast", incast, PLAIN,
        "--json", path,
    )  # fmt: skip
    (entry,) = record(path)["schedulers"]
    assert entry["time_us"] == pytest.approx(8e6 / 1e8 / share * 1e6)
    assert record(path)["fabric"]["incast"]["count"] == INCAST[incast].count


def test_incast_and_its_cure_by_hand(capsys, tmp_path):
    """32 devices send to one at once, which gets 60 % of its NIC's rate until they end together."""
    path = tmp_path / "costs.json"
    matrix = np.zeros((33, 33), int)
    matrix[:32, 32] = 1000
    write_matrix(tmp_path / "matrix", matrix, row_bytes=1000)
    out = run(
        capsys, tmp_path / "matrix", "--servers 33 --schedulers direct --incast roce", PLAIN,
        "--json", path,
    )  # fmt: skip
    (entry,) = record(path)["schedulers"]
    bytes_at_rate = 32e6 / 1e8
    assert entry["time_us"] == pytest.approx(bytes_at_rate / 0.6 * 1e6)
    total = bytes_at_rate / 0.6 + entry["planning_us"] / 1e6
    saved = record(path)["what_would_save"]["no loss where senders meet"]
    assert saved == pytest.approx(bytes_at_rate * (1 / 0.6 - 1) / total)
    assert "no loss where senders meet (40% less time)" in out


def test_a_narrow_core_by_hand(capsys, tmp_path):
    """Each NIC sends 500 rows, 5 ms at its rate, and the core carries an eighth of them all."""
    path = tmp_path / "costs.json"
    arguments = "--generate uniform --devices 4 --rows 1000 --servers 2 --schedulers direct"
    out = run(capsys, arguments, PLAIN, "--oversubscription 8 --json", path)
    (entry,) = record(path)["schedulers"]
    assert entry["limits_us"]["core"] == pytest.approx(40_000)
    assert entry["time_us"] == pytest.approx(40_000)
    assert sum(entry["limits_us"].values()) == pytest.approx(entry["time_with_planning_us"])
    assert "core oversubscribed 8 times" in value(out, "fabric")
    assert lines_of(out)["direct"][-1] == "the core between servers 100%"
    saved = record(path)["what_would_save"]
    assert saved["a core that is never short"] > 0.5
    narrow = run(capsys, arguments, PLAIN, "--oversubscription 1.01 --json", path)
    assert lines_of(narrow)["direct"][-1] == "the core between servers 100%"


def test_failed_nics(capsys, tmp_path):
    path = tmp_path / "costs.json"
    arguments = "--generate uniform --devices 8 --rows 800 --servers 2 --oversubscription 3 --json"
    out = run(capsys, arguments, path, "--failed-nics 1 6", PLAIN)
    assert value(out, "failed NICs") == "of devices 1, 6"
    found = record(path)
    assert found["today_us"] is None
    tried = {entry["asked"] for entry in found["schedulers"]}
    assert tried >= {"fast", "rails", "auto"}
    assert not tried & {"spreadout", "direct", "optimal"}
    # 1600 rows leave each server, and six NICs of 1e5 rows/s share a third of their rate.
    assert found["schedulers"][0]["limits_us"]["core"] == pytest.approx(3200 / 2e5 * 1e6)
    assert found["what_would_save"]["NICs twice as fast"] > 0.4


def test_trace_on_a_preset_that_is_told_its_servers(capsys, tmp_path):
    trace = write_trace(tmp_path / "trace")
    out = run(capsys, trace, "--devices 2 --num-experts 2 --servers 2 --preset h200")
    assert value(out, "source") == f"{trace}, step 1, decoder layer 4, the busiest of 4"
    assert value(out, "devices") == "2 in 2 x 1, servers x devices of each"


def test_one_server(capsys):
    out = run(capsys, "--generate uniform --devices 4 --servers 1 --schedulers direct auto")
    why = lines_of(out)["direct"][-1]
    assert re.fullmatch(r"the busiest link \(1\.\d\d x the bound\) \d\d%", why)
    assert "links inside servers twice as fast" in out
    assert "NICs twice" not in out
    assert sentences(out)[0].startswith("Best: direct, ")
    assert re.fullmatch(r"auto takes \w+, which is as good as any\.", sentences(out)[2])


def test_where_it_does_not_matter(capsys):
    arguments = "--generate uniform --devices 2 --rows 100000 --servers 2"
    words = sentences(run(capsys, arguments, "--schedulers fast spreadout"))
    assert words[1].startswith("Planning gains nothing here: direct, ")
    assert words[2].startswith("All are within 2% of it")


def test_where_it_matters_to_some(capsys, tmp_path):
    """Direct leaves NICs idle; the others spread what there is."""
    path = tmp_path / "costs.json"
    arguments = "--generate pair-zipf --devices 32 --rows 400000 --servers 4 --json"
    out = run(capsys, arguments, path, "--schedulers fast balanced direct")
    words = sentences(out)
    found = {entry["asked"]: entry for entry in record(path)["schedulers"]}
    by = {name: entry["by_best"] for name, entry in found.items()}
    today = record(path)["today_us"]
    assert today == found["direct"]["time_us"]
    best = found[record(path)["best"]]
    assert best["by_today"] == pytest.approx(best["time_with_planning_us"] / today)
    alike = [name for name, ratio in by.items() if 1 < ratio <= 1.02]
    assert by["direct"] > 2
    assert len(alike) == 1
    assert words[1].endswith(f", {1 / best['by_today']:.2f} x as long.")
    assert words[2] == f"As good, within 2%: {alike[0]}."
    # It is compared with what people have also where that is not asked for.
    run(capsys, arguments, path, "--schedulers fast balanced")
    assert record(path)["today_us"] == today


def test_where_auto_is_wrong(capsys, tmp_path):
    """It is told that nothing is lost where senders meet, and much is."""
    path = tmp_path / "costs.json"
    arguments = "--generate hot-receiver --devices 64 --rows 400000 --servers 64 --incast roce"
    out = run(capsys, arguments, "--incast-loss 0 --schedulers spreadout auto --json", path)
    best, auto = record(path)["schedulers"]
    assert best["by_best"] == 1
    chosen, more = auto["scheduler"], auto["by_best"] - 1
    assert more > 0.02
    assert f"auto takes {chosen}, which takes {more:.0%} more: its cost model sees it" in out
    assert lines_of(out).keys() == {"spreadout", f"auto ({chosen})"}


def test_where_nothing_helps(capsys, tmp_path):
    """Starting is all that takes time, and rows cannot be larger."""
    path = tmp_path / "costs.json"
    write_matrix(tmp_path / "matrix", np.array([[0, 1], [0, 0]]), row_bytes=2**39)
    out = run(
        capsys, tmp_path / "matrix", "--servers 2 --scale-out-bandwidth 2e18 --row-bytes",
        2**39, "--scale-out-latency 1 --schedulers direct --json", path,
    )  # fmt: skip
    assert list(record(path)["what_would_save"]) == ["NICs twice as fast"]
    assert sentences(out)[-1] == "Nothing that was tried would save 5%."
    assert lines_of(out)["direct"][-1] == "before the NICs 100%"


def test_rates_that_cannot_double(capsys, tmp_path):
    path = tmp_path / "costs.json"
    run(
        capsys, "--generate uniform --devices 4 --servers 2 --scale-out-bandwidth 4e18",
        "--scale-up-bandwidth 4e18 --schedulers direct --json", path,
    )  # fmt: skip
    assert list(record(path)["what_would_save"]) == ["exchanges 4 times as large, per byte"]


def test_nothing_to_exchange(capsys):
    out = run(capsys, "--generate uniform --devices 2 --rows 0 --servers 2 --incast roce")
    shown = lines_of(out)
    assert shown["direct"][1] == shown["direct"][2] == "-"
    assert {cells[-1] for cells in shown.values()} == {"nothing moves"}
    assert sentences(out) == ["There is nothing to move."]


def test_picture_and_trace_are_of_the_best(capsys, tmp_path):
    names = ("new/a.svg", "newer/a.json", "newest/costs.json")
    picture, trace, path = (tmp_path / name for name in names)
    arguments = "--generate single-flow --devices 4 --rows 4000 --servers 2 --schedulers direct"
    out = run(capsys, arguments, "rails --draw", picture, "--perfetto", trace, "--json", path)
    direct, rails = record(path)["schedulers"]
    assert record(path)["best"] == "rails"
    assert sentences(out)[0].startswith("Best: rails")
    assert "<svg" in picture.read_text()
    ends = [e["ts"] + e["dur"] for e in record(trace)["traceEvents"] if e["ph"] == "X"]
    assert max(ends) == pytest.approx(rails["time_us"], abs=1e-3)
    assert rails["time_us"] < 0.7 * direct["time_us"]


def test_auto_that_takes_the_best_pays_for_looking(capsys):
    arguments = "--generate pair-zipf --devices 32 --rows 800 --servers 4 --preset h200"
    said = [line for line in sentences(run(capsys, arguments)) if line.startswith("auto takes")]
    (found,) = [re.fullmatch(r"auto takes (\w+), which is as good as any; (.*)", s) for s in said]
    assert re.fullmatch(r"looking at the others takes \d+% more\.", found[2])


def test_drawing_without_matplotlib(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.collections", None)
    arguments = ["--devices", "2", "--servers", "2", "--draw", str(tmp_path / "a.png")]
    assert main(["simulate", "--generate", "uniform", *arguments]) == 2
    done = capsys.readouterr()
    assert "pip install 'fastjax[plot]'" in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--servers 2", "want a file with traffic, or --generate with a name: one of the two"),
        ("FILE --generate uniform --servers 2", "one of the two"),
        ("FILE", "want --servers, or a --preset, which says how large servers are"),
        ("FILE --preset h200", "4 devices are no whole number of servers of 8; give --servers"),
        ("--generate uniform --devices 9 --preset h200", "9 devices are no whole number"),
        ("FILE --servers 3", "--servers 3 does not divide 4 devices"),
        ("FILE --servers 2 --preset h300", "invalid choice: 'h300'"),
        ("FILE --servers 2 --schedulers fast fastest", "invalid choice: 'fastest'"),
        ("FILE --servers 2 --schedulers", "--schedulers: expected at least one argument"),
        ("FILE --servers 2 --synchronization none", "invalid choice: 'none'"),
        ("FILE --servers 2 --incast all", "invalid choice: 'all'"),
        ("FILE --servers 2 --oversubscription 0.5", "oversubscription must be a number from 1 to"),
        ("FILE --servers 2 --oversubscription inf", "oversubscription must be a number from 1 to"),
        ("FILE --servers 2 --scale-out-bandwidth 0", "scale_out_bandwidth must be bytes/s"),
        ("FILE --servers 2 --scale-out-bandwidth 400", "scale_out_bandwidth is 400 bytes/s, which"),
        ("FILE --servers 2 --incast-loss 2", "incast_loss must be from 0 to 1"),
        ("FILE --servers 2 --failed-nics 4", "--failed-nics 4: there are devices 0 to 3"),
        ("FILE --servers 2 --failed-nics 0 --schedulers direct", "that of device 0 has failed"),
        ("FILE --servers 2 --json FOLDER", "Is a directory"),
        ("FILE --servers 2 --perfetto FOLDER", "Is a directory"),
        ("FILE --servers 2 --draw FILE/a.png", "File exists"),
        ("FILE --servers 2 --draw a.doc", r"a\.doc: "),
        ("none.txt --servers 2", "No such file or directory: 'none.txt'"),
        ("TRACE --servers 1 --devices 2", "a trace needs --num-experts"),
    ],
)
def test_what_is_wrong_is_said(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix").write_text("10 20 30 40\n" * 4)
    trace = str(write_trace(tmp_path / "trace"))
    names = {"FILE": "matrix", "TRACE": trace, "FOLDER": str(tmp_path)}
    assert main(["simulate", *_with(names, arguments)]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert re.search(message, done.err), done.err


def _with(names, arguments):
    return (re.sub("[A-Z]{4,}", lambda name: names[name[0]], word) for word in arguments.split())


@pytest.mark.parametrize(("page", "count"), [("simulate", 2), ("balance_experts", 1)])
def test_the_guide_shows_what_is_printed(capsys, monkeypatch, page, count):
    monkeypatch.chdir(ROOT)
    guide = Path(f"docs/how_to/{page}.md").read_text()
    examples = re.findall(
        r"^    \$ python -m fastjax simulate ((?:.*\\\n)*.*)\n((?:    .*\n|\n)+)",
        guide,
        re.MULTILINE,
    )
    assert len(examples) == count
    for command, shown in examples:
        lines = run(capsys, command.replace("\\\n", "")).splitlines()
        printed = "".join(f"    {line}".rstrip() + "\n" for line in lines)
        # Three dots stand for what is left out.
        parts = map(re.escape, (shown.rstrip() + "\n").split("    ...\n"))
        assert re.fullmatch("(?s:.*)".join(parts), printed.rstrip() + "\n")


def test_help(capsys):
    assert main(["simulate", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name, preset in PRESETS.items():
        assert f"{name}: {' '.join(str(preset).split())}" in out
    for name in fastjax.schedulers():
        assert name in out
    assert main(["--help"]) == 0
    assert "python -m fastjax simulate" in capsys.readouterr().out
