"""Calibration: what is timed, what is read off the times, and what the command does with it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import scipy.stats
from refusals import bounds, keywords, refusals, refused

import fastjax
from fastjax import Topology, calibration
from fastjax.calibration import Machine, Source
from fastjax.cli import main
from fastjax.cli.calibrate import command as calibrate
from fastjax.cli.calibrate import fit, probes
from fastjax.cli.shared.device_workload import make_mesh
from fastjax.cli.shared.measure import Timing
from fastjax.errors import OptionError, TopologyError
from fastjax.topology import rate_names

SIZES = calibrate.SIZES
LAUNCH = 2e-4


def noisy(seconds, rng, *, repetitions=60, noise=0.02, disturbed=0.0):
    """Repetitions of one thing: a little more than it takes, and some of them a lot more."""
    times = seconds * (1 + rng.exponential(noise, repetitions)) if noise else [seconds]
    times = np.array(times)
    hit = rng.random(times.size) < disturbed
    times[hit] *= rng.uniform(2, 30, hit.sum())
    return Timing(tuple(times.tolist()))


def line(bandwidth, latency, rng, **how):
    """Times of an exchange without rows, and of those of every size."""
    by_bytes = {s: noisy(LAUNCH + latency + s / bandwidth, rng, **how) for s in SIZES}
    return noisy(LAUNCH, rng, **how), by_bytes


@hypothesis.given(
    st.lists(st.integers(-1000, 1000), min_size=3, max_size=12, unique=True),
    st.integers(0, 2**32 - 1),
)
def test_theil_sen_is_that_of_scipy(x, seed):
    x = np.array(sorted(x), float)
    curves = np.random.default_rng(seed).normal(size=(4, x.size))
    slopes, intercepts = fit.theil_sen(x, curves)
    for curve, slope, intercept in zip(curves, slopes, intercepts, strict=True):
        want = scipy.stats.theilslopes(curve, x, method="joint")
        np.testing.assert_allclose((slope, intercept), (want.slope, want.intercept), atol=1e-12)


def test_fit_of_line():
    x = np.arange(9.0)
    assert fit.fit_of_line(x, 3 - 2 * x) == pytest.approx(1)
    assert fit.fit_of_line(x, 0 * x) == 0
    odd = 3 - 2 * x
    odd[4] = 1e6
    assert fit.fit_of_line(x, odd) == pytest.approx(1)
    assert fit.fit_of_line(x, np.array([1.0, 9, 2, 8, 1, 9, 2, 8, 1])) < 0.2


rates = st.floats(6, 11.5).map(lambda digits: 10**digits)
latencies = st.floats(-6, -3).map(lambda digits: 10**digits)


@hypothesis.given(rates, latencies)
def test_exact_times_give_the_rates(bandwidth, latency):
    idle, by_bytes = line(bandwidth, latency, np.random.default_rng(0), noise=0)
    found = fit.bandwidth_and_latency("scale_out", idle, by_bytes)
    assert [rate.name for rate in found] == ["scale_out_bandwidth", "scale_out_latency"]
    # As far as doubles can tell the slope of such a time.
    np.testing.assert_allclose(found[0].value, bandwidth, rtol=1e-5)
    np.testing.assert_allclose(found[1].value, latency, rtol=1e-5)
    for rate in found:
        assert rate.usable
        assert rate.fit == pytest.approx(1)
        np.testing.assert_allclose(rate.spread, rate.value)


@hypothesis.given(st.integers(0, 2**32 - 1), st.floats(3e8, 3e9))
@hypothesis.settings(max_examples=30)
def test_disturbed_times_give_the_rates(seed, bandwidth):
    """Two fifths of the repetitions take 2 to 30 times as long, and one whole size does."""
    rng = np.random.default_rng(seed)
    idle, by_bytes = line(bandwidth, 1e-4, rng, disturbed=0.4)
    odd = SIZES[rng.integers(len(SIZES))]
    by_bytes[odd] = Timing(tuple(3 * t for t in by_bytes[odd].seconds))
    found, _ = fit.bandwidth_and_latency("scale_up", idle, by_bytes)
    assert found.usable, found
    assert found.value == pytest.approx(bandwidth, rel=0.1)


def test_latency_through_noise():
    errors = []
    for seed in range(20):
        idle, by_bytes = line(1e9, 2e-4, np.random.default_rng(seed), disturbed=0.3)
        _, latency = fit.bandwidth_and_latency("scale_up", idle, by_bytes)
        assert latency.usable
        errors.append(abs(latency.value / 2e-4 - 1))
    assert max(errors) < 0.1


def test_spread_holds_what_other_measurements_give():
    """It is of 90 %; resampling few repetitions tells a little less."""
    draws = [line(1e9, 1e-4, np.random.default_rng(seed), noise=0.1) for seed in range(60)]
    found = [fit.bandwidth_and_latency("scale_up", *each) for each in draws]
    for of_rate in zip(*found, strict=True):
        middle = np.median([rate.value for rate in of_rate])
        inside = [rate.spread[0] <= middle <= rate.spread[1] for rate in of_rate]
        assert 0.7 < np.mean(inside) < 1


@pytest.mark.parametrize("slope", [-1e-9, 0.0])
def test_times_that_do_not_grow_are_nonsense(slope):
    rng = np.random.default_rng(0)
    by_bytes = {s: noisy(1e-2 + slope * s, rng) for s in SIZES}
    found, _ = fit.bandwidth_and_latency("scale_up", noisy(LAUNCH, rng), by_bytes)
    assert found.nonsense
    assert found.value is None
    assert found.problem.startswith("time does not grow with size, but by ")
    assert found.problem.endswith(" s for each TB")
    assert not found.usable


def test_times_on_no_line_are_nonsense():
    times = (3, 1, 8, 2, 6, 9, 5)  # on the whole they grow
    by_bytes = {2**16 * (i + 1): Timing((t * 1e-3,) * 9) for i, t in enumerate(times)}
    found, _ = fit.bandwidth_and_latency("scale_up", Timing((1e-4,) * 9), by_bytes)
    assert found.nonsense
    assert re.fullmatch(r"times are on no line: fit -?\d\.\d\d, below 0\.9", found.problem)


def test_latency_below_the_noise_is_not_known():
    found = []
    for seed in range(20):
        idle, by_bytes = line(1e9, 0.0, np.random.default_rng(seed), noise=0.1)
        bandwidth, latency = fit.bandwidth_and_latency("scale_up", idle, by_bytes)
        assert bandwidth.usable
        assert not latency.nonsense
        found.append(latency)
    unknown = [rate for rate in found if rate.problem == "not above the noise"]
    assert len(unknown) > 15
    assert all(rate.spread[0] <= 0 and not rate.usable for rate in unknown)


def test_transfer_overhead():
    by_partners = {k: Timing((1e-4 + k * 3e-6,) * 5) for k in (1, 2, 4)}
    found = fit.transfer_overhead(by_partners)
    assert found.name == "transfer_overhead"
    assert found.usable
    assert found.value == pytest.approx(3e-6)
    less = fit.transfer_overhead({k: Timing((1e-4 - k * 3e-6,) * 5) for k in (1, 2, 4)})
    assert less.problem == "not above the noise"
    assert not less.usable


@hypothesis.given(st.integers(1, 4), st.integers(1, 5), st.booleans(), st.data())
def test_shifts(servers, per_server, across, data):
    size = servers * per_server
    ranks = data.draw(st.permutations(range(size)))
    topology = Topology(servers, per_server, placement=tuple(ranks))
    partners = data.draw(st.integers(0, (servers if across else per_server) - 1))
    traffic = probes.shifts(topology, 7, partners, across=across)
    assert set(traffic.flat) <= {0, 7}
    assert (traffic.sum(axis=0) == 7 * partners).all()
    assert (traffic.sum(axis=1) == 7 * partners).all()
    for src, dst in np.argwhere(traffic):
        (server, local), (other, there) = (divmod(ranks[p], per_server) for p in (src, dst))
        assert (server != other, local == there) == (across, across)


@pytest.mark.parametrize(
    ("servers", "per_server", "kinds", "partners"),
    [
        (1, 8, ["idle", "scale_up"], [1, 2, 4]),
        (2, 4, ["idle", "scale_up", "scale_out"], [1, 2]),
        (1, 2, ["idle", "scale_up"], []),
        (2, 2, ["idle", "scale_up", "scale_out"], []),
        (5, 2, ["idle", "scale_up", "scale_out"], [1, 2, 4]),
        (9, 1, ["idle", "scale_out"], [1, 2, 4, 8]),
    ],
)
def test_what_is_timed(servers, per_server, kinds, partners):
    planned = probes.plan_probes(Topology(servers, per_server), SIZES)
    of = {kind: [p for p in planned if p.kind == kind] for kind in (*kinds, "partners")}
    assert sum(map(len, of.values())) == len(planned) == len({p.key for p in planned})
    assert [p.amount for p in of["partners"]] == partners
    assert of["idle"][0].traffic.sum() == 0
    for kind in kinds[1:]:
        assert [p.amount for p in of[kind]] == list(SIZES)
        for probe in of[kind]:
            assert set(probe.traffic.sum(axis=1) * probes.ROW_BYTES) == {probe.amount}
            assert (np.count_nonzero(probe.traffic, axis=1) == 1).all()
    assert len({p.traffic.sum() for p in of["partners"]}) <= 1
    for probe in of["partners"]:
        assert (np.count_nonzero(probe.traffic, axis=1) == probe.amount).all()


@pytest.mark.parametrize("servers", [1, 2, 8])
def test_measuring_on_devices(servers):
    mesh, topology = make_mesh(8), Topology(servers, 8 // servers)
    planned = probes.plan_probes(topology, (1024, 4096, 16384))
    timings, wrong = probes.measure(mesh, topology, planned, 3)
    assert wrong == 0
    assert {key: len(t.seconds) for key, t in timings.items()} == {p.key: 3 for p in planned}
    names = {rate.name for rate in probes.rates(planned, timings)}
    up, out = (
        {"scale_up_bandwidth", "scale_up_latency"},
        {
            "scale_out_bandwidth",
            "scale_out_latency",
        },
    )
    assert names == {"transfer_overhead"} | (up if servers < 8 else set()) | (
        out if servers > 1 else set()
    )


def test_wrong_rows_are_counted(monkeypatch):
    """An exchange that moves nothing gets every row wrong."""
    monkeypatch.setattr(fastjax, "fast_ragged_all_to_all", lambda *operands, **_: operands[1])
    topology = Topology(1, 8)
    probe = probes.Probe("scale_up", 4096, probes.shifts(topology, 4, 1, across=False))
    assert probes.measure(make_mesh(8), topology, [probe], 1)[1] == 8 * 4


TRUE = {
    "scale_up": (4e9, 1e-4),
    "scale_out": (5e8, 3e-4),
}


def model(planned, **true):
    """What `probes.measure` would find on a fabric that is known."""
    rng = np.random.default_rng(0)
    timings = {}
    for probe in planned:
        seconds = LAUNCH
        if probe.kind in TRUE:
            bandwidth, latency = {**TRUE, **true}[probe.kind]
            seconds += latency + probe.amount / bandwidth
        elif probe.kind == probes.PARTNERS:
            seconds += 1e-5 + 4e-5 * probe.amount
        timings[probe.key] = noisy(seconds, rng, disturbed=0.2)
    return timings


@pytest.fixture
def fabric(monkeypatch):
    """Makes the command find known times; returns the function that changes what it finds."""

    def use(wrong=0, **true):
        def measure(mesh, topology, planned, rounds):
            return model(planned, **true), wrong

        monkeypatch.setattr(probes, "measure", measure)

    use()
    return use


@pytest.fixture
def in_force(monkeypatch, tmp_path):
    """The file in force."""
    path = tmp_path / "in force" / "calibration.json"
    monkeypatch.setattr(calibration, "_environment", Source(path, explicit=False))
    return path


def table(capsys):
    """The cells of each rate."""
    lines = capsys.readouterr().out.splitlines()
    cells = [re.split(r"  +", text) for text in lines if re.match(r"scale_|transfer_", text)]
    return {name: rest for name, *rest in cells}


def test_what_was_measured_is_found(fabric, in_force, capsys):
    assert main(["calibrate"]) == 0
    (stored,) = calibration.read(in_force)
    assert stored.machine == Machine("cpu", "cpu", 8)
    assert stored.jax == jax.__version__
    assert stored.fastjax == fastjax.__version__
    assert not stored.pretended
    want = {"scale_up_bandwidth": 4e9, "scale_up_latency": 1e-4, "transfer_overhead": 4e-5}
    assert stored.rates == pytest.approx(want, rel=0.1)
    for name, rate in stored.rates.items():
        assert stored.spread[name][0] <= rate <= stored.spread[name][1]
        assert rate == float(f"{rate:.3g}")
    topology = Topology.from_mesh(make_mesh(8), "x")
    known = {name: rate for name, rate in stored.rates.items() if name in rate_names()}
    assert topology == Topology(1, 8, **known)
    text = capsys.readouterr().out
    assert "The devices are all in one: what there is between servers, give with --set." in text
    assert f"Stored in {in_force}, where Topology.from_mesh finds it." in text


def test_table(fabric, in_force, capsys):
    main(["calibrate", "--dry-run", "--set", "scale_out_latency=2e-5"])
    cells = table(capsys)
    rate, spread, quality, default, stored = cells["scale_up_bandwidth"]
    assert (default, stored) == ("450 GB/s", rate)
    assert re.fullmatch(r"[34](\.\d+)? GB/s", rate)
    assert re.fullmatch(r"[34](\.\d+)? GB/s to [34](\.\d+)? GB/s", spread)
    assert 0.9 < float(quality) <= 1
    assert cells["scale_out_bandwidth"] == ["-", "-", "-", "50 GB/s", "-", "not measured"]
    assert cells["scale_out_latency"] == ["-", "-", "-", "10 µs", "20 µs", "given"]
    assert not in_force.exists()


def test_dry_run_says_so(fabric, in_force, capsys):
    assert main(["calibrate", "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("\nNothing is stored.\n")
    assert not in_force.exists()


def test_pretended_servers(fabric, in_force, capsys, tmp_path):
    assert main(["calibrate", "--servers", "2"]) == 0
    text = capsys.readouterr().out
    assert "cpu (cpu), 4 a server, 2 servers. The servers are pretended: all devices share" in text
    assert text.endswith("\nNothing is stored. Pretended servers need --output.\n")
    assert not in_force.exists()
    path = tmp_path / "named.json"
    assert main(["calibrate", "--servers", "2", "--output", str(path)]) == 0
    assert f"Stored in {path}; set FASTJAX_CALIBRATION to it" in capsys.readouterr().out
    assert not in_force.exists()
    (stored,) = calibration.read(path)
    assert stored.pretended
    assert stored.machine == Machine("cpu", "cpu", 4)
    assert stored.rates["scale_up_bandwidth"] == pytest.approx(4e9, rel=0.1)
    assert stored.rates["scale_out_bandwidth"] == pytest.approx(5e8, rel=0.1)
    assert stored.rates["scale_up_latency"] == pytest.approx(1e-4, rel=0.2)
    assert stored.rates["scale_out_latency"] == pytest.approx(3e-4, rel=0.1)


def test_as_many_servers_as_there_are_is_no_pretence(fabric, in_force):
    assert main(["calibrate", "--servers", "1"]) == 0
    assert not calibration.read(in_force)[0].pretended


def test_one_device_a_server_has_no_scale_up(fabric, tmp_path, capsys):
    path = tmp_path / "c.json"
    assert main(["calibrate", "--servers", "8", "--output", str(path)]) == 0
    assert table(capsys)["scale_up_bandwidth"][-1] == "not measured"
    assert "scale_up_bandwidth" not in calibration.read(path)[0].rates


def test_what_cannot_be_measured_stays_as_it_was(fabric, in_force, capsys):
    others = Machine("gpu", "H", 8)
    before = {"scale_out_bandwidth": 7e9, "scale_up_bandwidth": 1.0}
    calibration.store(calibration.Calibration(others, before), in_force)
    calibration.store(calibration.Calibration(Machine("cpu", "cpu", 8), before), in_force)
    assert main(["calibrate"]) == 0
    assert table(capsys)["scale_out_bandwidth"][-2:] == ["7 GB/s", "not measured; as before"]
    found = {entry.machine: entry.rates for entry in calibration.read(in_force)}
    assert found[others] == before
    mine = found[Machine("cpu", "cpu", 8)]
    assert mine["scale_out_bandwidth"] == 7e9
    assert mine["scale_up_bandwidth"] == pytest.approx(4e9, rel=0.1)


def test_what_was_pretended_does_not_stay(fabric, in_force):
    machine = Machine("cpu", "cpu", 8)
    pretended = calibration.Calibration(machine, {"scale_out_bandwidth": 7e9}, pretended=True)
    calibration.store(pretended, in_force)
    assert main(["calibrate"]) == 0
    assert "scale_out_bandwidth" not in calibration.read(in_force)[0].rates


def test_given_rates_are_stored_as_they_are(fabric, in_force):
    given = ["--set", "scale_out_bandwidth=25e9", "--set", "scale_up_latency=0"]
    assert main(["calibrate", *given]) == 0
    rates = calibration.read(in_force)[0].rates
    assert (rates["scale_out_bandwidth"], rates["scale_up_latency"]) == (25e9, 0)
    assert rates["scale_up_bandwidth"] == pytest.approx(4e9, rel=0.1)


def test_nonsense_is_not_stored(fabric, in_force, capsys):
    fabric(scale_up=(-1e9, 2e-2))
    assert main(["calibrate"]) == 1
    done = capsys.readouterr()
    assert re.fullmatch(
        r"Nothing is stored: scale_up_bandwidth: time does not grow with size, but by \S+ s for "
        r"each TB\. Try again with more --repetitions or larger --sizes\.\n",
        done.err,
    )
    assert done.out.endswith("\nNothing is stored.\n")
    assert not in_force.exists()
    # Where the user knows it, what the times say does not matter.
    assert main(["calibrate", "--set", "scale_up_bandwidth=1e9"]) == 0
    assert calibration.read(in_force)[0].rates["scale_up_bandwidth"] == 1e9


def test_wrong_rows_are_not_stored(fabric, in_force, capsys):
    fabric(wrong=3)
    assert main(["calibrate"]) == 1
    assert capsys.readouterr().err == "Nothing is stored: 3 rows are wrong.\n"
    assert not in_force.exists()


def test_no_rate_is_not_stored():
    row = {"name": "scale_up_bandwidth", "store": None, "nonsense": False}
    assert calibrate.why_not({"wrong": 0, "rates": [row]}) == "no rate was found."


def test_json(fabric, in_force, capsys):
    assert main(["calibrate", "--json", "--repetitions", "7"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == calibrate.SCHEMA
    assert record["stored"] == str(in_force)
    assert record["repetitions"] == 7
    assert record["times"]["idle 0"]["runs"] == 60
    assert record["versions"]["fastjax"] == fastjax.__version__
    assert record["computer"]["usable_cores"] >= 1
    assert {row["name"] for row in record["rates"]} == {*rate_names(), "transfer_overhead"}
    (row,) = (row for row in record["rates"] if row["name"] == "scale_up_bandwidth")
    assert row["default"] == Topology(1, 1).scale_up_bandwidth
    assert row["store"] == float(f"{row['value']:.3g}")


@pytest.fixture
def unmeasured(monkeypatch):
    """Fails where anything is measured."""
    monkeypatch.setattr(probes, "measure", lambda *_, **__: pytest.fail("must not measure"))


def test_a_file_that_is_no_calibration_is_left_alone(unmeasured, in_force, capsys):
    in_force.parent.mkdir()
    in_force.write_text("mine")
    assert main(["calibrate"]) == 2
    assert "is no JSON" in capsys.readouterr().err
    assert in_force.read_text() == "mine"


def test_where_calibrations_are_off(unmeasured, capsys):
    assert main(["calibrate"]) == 2
    assert capsys.readouterr().err == (
        "the calibration file is off, by FASTJAX_CALIBRATION; say where to store with --output, or "
        "store nothing with --dry-run.\n"
    )


def test_a_file_that_cannot_be_written(fabric, tmp_path, capsys):
    (tmp_path / "c.json").symlink_to(tmp_path / "c.json")
    assert main(["calibrate", "--output", str(tmp_path / "c.json")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_devices_that_are_not_alike(unmeasured, monkeypatch, capsys):
    monkeypatch.setattr(calibrate, "machine_of", lambda _: None)
    assert main(["calibrate", "--dry-run"]) == 2
    assert "there is no one rate" in capsys.readouterr().err


def test_more_devices_than_there_are(unmeasured, capsys):
    assert main(["calibrate", "--dry-run", "--devices", "64"]) == 2
    assert "needs 64 cpu devices, but JAX has started with 8" in capsys.readouterr().err


Options = calibrate.CalibrateOptions


def given(*texts):
    return lambda: Options(given=texts)


def of_sizes(*sizes):
    return (lambda: Options(sizes=sizes)), "multiples of 1024", f"got {' '.join(map(str, sizes))}"


test_bounds_of_options = bounds(
    OptionError,
    *keywords(Options, devices=([1, 0, -8], [2]), repetitions=([2], [3])),
)

test_refused_options = refusals(
    OptionError,
    (lambda: Options(servers=3), "--servers 3 does not divide 8 devices"),
    (lambda: Options(servers=0), "--servers 0 does not divide 8 devices"),
    of_sizes(1024, 2048),
    of_sizes(1024, 2048, 2048),
    of_sizes(1024, 2048, 3000),
    of_sizes(0, 1024, 2048),
    (given("scale_up_latency"), "--set wants NAME=NUMBER, got 'scale_up_latency'"),
    (given("scale_up_latency=x"), "--set wants NAME=NUMBER, got 'scale_up_latency=x'"),
    (given("servers=2"), "--set servers=2: the rates are scale_up_bandwidth, "),
)


def test_rates_that_cannot_be():
    refused(TopologyError, given("scale_up_latency=-1"), "scale_up_latency must be seconds")


def test_options_of_the_command_line():
    assert calibrate.parse([]) == calibrate.CalibrateOptions()
    arguments = [
        "--devices",
        "4",
        "--servers",
        "2",
        "--sizes",
        "1024",
        "2048",
        "4096",
        "--repetitions",
        "9",
        "--set",
    ]
    arguments += ["scale_up_latency=1", "--output", "a.json", "--dry-run", "--json"]
    assert calibrate.parse(arguments) == calibrate.CalibrateOptions(
        4, 2, (1024, 2048, 4096), 9, ("scale_up_latency=1",), Path("a.json"), True, True
    )


def test_unknown_options(capsys):
    assert refused(SystemExit, lambda: main(["calibrate", "--fly"])) == "2"
    assert "--fly" in capsys.readouterr().err


def test_in_a_process_of_its_own(tmp_path):
    """From the command to a topology, on real times. They may be nonsense: status 1 says so."""
    path = tmp_path / "c.json"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "FASTJAX_CALIBRATION": str(path)}
    command = [sys.executable, "-m", "fastjax"]
    sizes = ["--sizes", "1024", "65536", "1048576", "--repetitions", "20", "--devices", "4"]
    done = subprocess.run(
        [*command, "calibrate", "--json", *sizes],
        env=environ,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(done.stdout)
    assert record["wrong"] == 0
    assert record["machine"] == {"platform": "cpu", "device_kind": "cpu", "devices_per_server": 4}
    assert (record["stored"] == str(path)) == (done.returncode == 0) == path.exists()
    if path.exists():
        report = subprocess.run(
            command, env=environ, check=True, capture_output=True, text=True
        ).stdout
        assert f"{path} (from FASTJAX_CALIBRATION)" in report
        assert "but for cpu (cpu), 4 a server" in report
