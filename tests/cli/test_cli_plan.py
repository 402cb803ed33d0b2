"""The command line: plans."""

import functools
import sys

import numpy as np
import pytest
from commands import parsed, run_command, says_what_is_wrong, value, write_trace
from pythons import CPU, ended

from fastjax import Topology, make_plan, traffic
from fastjax.cli import main
from fastjax.cli import plan as plan_command
from fastjax.cli.shared import options, statistics, workloads
from fastjax.traffic import write_matrix

run = functools.partial(run_command, command="plan")


@pytest.mark.parametrize("name", workloads.SKEWS)
def test_everything_that_can_be_generated(name):
    arguments = "--devices 6 --rows 99 --seed 5 --exponent 1.5 --servers 2"
    source = options.load(parsed("plan", "--generate", name, arguments))
    skew = {} if name == "uniform" else {"exponent": 1.5, "seed": 5}
    matrix = getattr(traffic, name.replace("-", "_"))(6, 99, **skew)
    np.testing.assert_array_equal(source.matrix, matrix)
    assert source.name == f"{name} --devices 6 --rows 99 --exponent 1.5 --seed 5"
    assert (source.row_bytes, source.topology) == (4096, Topology(2, 3))


def test_figures_of_a_plan_done_by_hand():
    """Two servers of two: device 0 keeps 4 rows, sends 2 to 1 and 6 to 3; device 2 sends 2 to 0."""
    matrix = np.array([[4, 2, 0, 6], [0, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]])
    rates = {"scale_up_bandwidth": 1e9, "scale_out_bandwidth": 1e8}
    topology = Topology(2, 2, **rates, scale_up_latency=0, scale_out_latency=0)
    plan = make_plan(matrix, topology, scheduler="fast", row_bytes=1000)
    rows, predicted = plan_command.sections(plan, "here", {}).values()
    assert rows == {
        "source": "here",
        "devices": "4 in 2 x 2, servers x devices of each",
        "rows": "14 of 1000 B, 13.67 KiB in all",
        "busiest device": "3.429 x the mean device",  # 12 of 3.5
        "busiest server": "1.500 x the mean server, of rows between them",  # 6 of 4
        "Gini coefficient": f"{traffic.gini(matrix):.3f} of pairs, "
        f"{traffic.gini([6, 2, 0, 6]):.3f} of receivers",
    }
    busiest = 12 * 1000 / plan.predicted_time() / 1e9
    assert predicted["algbw"].startswith(f"{busiest:.2f} GB/s, ")


def test_bandwidths_by_hand():
    """The busiest of three devices receives 6 rows of 9, in half a second."""
    matrix = np.array([[0, 4, 1], [0, 0, 2], [0, 2, 0]])
    found = statistics.bandwidths(matrix, 10**9, 0.5)
    assert found == pytest.approx({"algbw": 12, "busbw": 8, "fast_algbw": 6})
    assert set(statistics.bandwidths(0 * matrix, 10**9, 0.5).values()) == {None}


def test_matrix_file(capsys, tmp_path):
    path = tmp_path / "matrix.txt"
    matrix = traffic.pair_zipf(8, 100)
    write_matrix(path, matrix, row_bytes=512)
    out = run(capsys, path, "--servers", 2, "--row-bytes", 512, "--devices", 8)
    assert value(out, "rows") == "800 of 512 B, 400 KiB in all"
    assert value(out, "source") == str(path)
    assert ", chosen by auto: " in out
    as_bytes = run(capsys, path, "--servers", 2)
    assert value(as_bytes, "rows") == "409600 of 1 B, 400 KiB in all"


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path / "trace")


@pytest.mark.parametrize(
    ("arguments", "source", "rows"),
    [
        ([], "step 1, decoder layer 4, the busiest of 4", 20),
        (["--trace-step", 0], "step 0, decoder layer 3, the busiest of 2", 4),
        (["--trace-layer", 3], "step 0, decoder layer 3, the busiest of 2", 4),
        (["--trace-layer", 3, "--trace-step", 1], "step 1, decoder layer 3", 4),
    ],
)
def test_trace_folder(capsys, trace, arguments, source, rows):
    out = run(capsys, trace, "--devices", 2, "--num-experts", 2, "--servers", 1, *arguments)
    assert value(out, "source") == f"{trace}, {source}"
    assert value(out, "rows").startswith(f"{rows} of 4 KiB, ")


def test_nothing_to_exchange(capsys):
    out = run(capsys, "--generate uniform --devices 2 --rows 0 --servers 1")
    assert value(out, "busiest server") == "- x the mean server, of rows between them"
    assert value(out, "busbw").startswith("-,")


def test_drawing(capsys, tmp_path):
    path = tmp_path / "new" / "plan.png"
    run(capsys, "--generate pair-zipf --devices 4 --servers 2 --draw", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_drawing_without_matplotlib(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.collections", None)
    arguments = ["--devices", "2", "--servers", "1", "--draw", str(tmp_path / "plan.png")]
    assert main(["plan", "--generate", "uniform", *arguments]) == 2
    done = capsys.readouterr()
    assert "pip install 'fastjax[plot]'" in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--servers 2", "want a file with traffic, or --generate with a name: one of the two"),
        ("FILE --generate uniform --servers 2", "one of the two"),
        ("FILE", "want --servers, or a --preset, which says how large servers are"),
        ("FILE --servers 3", "--servers 3 does not divide 4 devices"),
        ("FILE --servers 2 --devices 8", "--devices 8, but .* is of 4 devices"),
        ("FILE --servers 2 --row-bytes 3", "column 1: 10 bytes are no whole number of rows of 3"),
        ("FILE --servers 2 --row-bytes 0", "row_bytes must be an integer"),
        ("FILE --servers 2 --scale-out-bandwidth 0", "scale_out_bandwidth must be bytes/s"),
        ("FILE --servers 2 --draw plan.doc", r"plan\.doc: "),
        ("none.txt --servers 2", "No such file or directory: 'none.txt'"),
        ("EMPTY --servers 2", "want a matrix of bytes"),
        ("TRACE --servers 1 --num-experts 2", "a trace needs --devices"),
        ("TRACE --servers 1 --devices 2", "a trace needs --num-experts"),
        ("TRACE --servers 1 --devices 2 --num-experts 3", "3 experts do not divide over 2 devices"),
        ("TRACE --servers 1 --devices 1 --num-experts 2", "a record is of rank 1; want 0 to 0"),
        ("TRACE --servers 1 --devices 4 --num-experts 4", "there is no record of rank"),
        (
            "TRACE --servers 1 --devices 2 --num-experts 2 --trace-step 7",
            "no record of that step and layer",
        ),
        ("--generate uniform --servers 2", "--generate needs --devices"),
        (
            "--generate uniform --devices 2 --servers 2 --seed -1",
            "argument --seed: must be 0 or more, got -1",
        ),
        ("--generate uniform --servers 2 --devices 0", "--devices: must be 1 or more, got 0"),
        ("--generate uniform --servers 1 --devices 2 --rows -1", "rows must be an integer"),
        ("--generate pair-zipf --servers 1 --devices 2 --exponent 21", "exponent must be a number"),
        ("FILE --servers 2 --failed-nics 4", "--failed-nics 4: there are devices 0 to 3"),
        ("FILE --servers 2 --failed-nics 0 1", "no working NIC in nic_bandwidths"),
        ("FILE --servers 2 --failed-nics 0 --scheduler direct", "that of device 0 has failed"),
    ],
)
def test_what_is_wrong_is_said(capsys, monkeypatch, tmp_path, trace, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix").write_text("10 20 30 40\n" * 4)
    (tmp_path / "empty").write_text("")
    names = {"FILE": "matrix", "EMPTY": "empty", "TRACE": str(trace)}
    given = (names.get(word, word) for word in arguments.split())
    says_what_is_wrong(capsys, "plan", *given, told=message)


def test_rates_of_a_preset(capsys):
    arguments = "--generate uniform --devices 144 --preset gb200 --scale-out-latency 0.001"
    found = options.load(parsed("plan", arguments)).topology
    assert (found.servers, found.devices_per_server) == (2, 72)
    assert (found.scale_up_bandwidth, found.scale_out_latency) == (900e9, 1e-3)
    assert "guessed: " in value(run(capsys, arguments), "preset")


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_planning_needs_no_extras(command):
    """All is imported before it is found that 3 servers do not divide 4 devices."""
    arguments = [command, "--generate", "uniform", "--devices", "4", "--servers", "3"]
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        f"from fastjax.cli import main; sys.exit(main({arguments}))"
    )
    done = ended("-c", code, environment=CPU)
    told = "--servers 3 does not divide 4 devices; --servers 2 does"
    assert (done.returncode, done.stderr) == (2, f"{told}.\n")


def test_wrong_commands_end_without_a_traceback(tmp_path):
    words = "plan", "nothing.txt", "--servers", "2"
    done = ended("-m", "fastjax", *words, environment=CPU, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "[Errno 2] No such file or directory: 'nothing.txt'\n"
