"""Calibration files, and the topologies that are made from them."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from refusals import refused

from fastjax import Topology, calibration
from fastjax.calibration import Calibration, Machine, Source
from fastjax.cli.environment import report
from fastjax.devices import machine_of
from fastjax.errors import CalibrationWarning, OptionError
from fastjax.topology import rate_names

HERE = Machine("cpu", "cpu", 8)
RATES = {
    "scale_up_bandwidth": 3e9,
    "scale_out_bandwidth": 1e9,
    "scale_up_latency": 3e-5,
    "scale_out_latency": 7e-5,
}


def entry(machine=HERE, rates=RATES, **fields):
    fields = {"measured": "2025-01-31T12:00:00+00:00", "jax": "0.10.2", "fastjax": "0.1.0"} | fields
    return Calibration(machine, dict(rates), {"scale_up_bandwidth": (2e9, 4e9)}, **fields)


@pytest.fixture
def in_force(monkeypatch, tmp_path):
    """Makes a file the one in force; returns the function that does."""
    calibration._warn_once.cache_clear()

    def use(*entries, text=None, explicit=False):
        path = tmp_path / "fastjax" / "calibration.json"
        for each in entries:
            calibration.store(each, path)
        if text is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(calibration, "_environment", Source(path, explicit))
        return path

    return use


def mesh_of(shape=(8,), names=("x",)):
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))


def rates_of(topology, names=tuple(RATES)):
    return {name: getattr(topology, name) for name in names}


@pytest.mark.parametrize(
    ("environ", "path", "explicit"),
    [
        ({"FASTJAX_CALIBRATION": "off", "HOME": "/h"}, None, True),
        ({"FASTJAX_CALIBRATION": "/a/b.json", "XDG_CONFIG_HOME": "/c"}, "/a/b.json", True),
        ({"FASTJAX_CALIBRATION": "", "HOME": "/h"}, "/h/.config/fastjax/calibration.json", False),
        ({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}, "/c/fastjax/calibration.json", False),
        ({"XDG_CONFIG_HOME": "c", "HOME": "/h"}, "/h/.config/fastjax/calibration.json", False),
        ({"HOME": "/h"}, "/h/.config/fastjax/calibration.json", False),
    ],
)
def test_from_environment(environ, path, explicit):
    found = calibration.from_environment(environ)
    assert found == Source(None if path is None else Path(path), explicit)


def test_a_relative_file_stays_where_it_was(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = calibration.from_environment({"FASTJAX_CALIBRATION": "mine.json"})
    assert found == Source(tmp_path / "mine.json", explicit=True)


def test_without_a_home_folder(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    found = calibration.from_environment({})
    assert found == Source(None, explicit=False)
    assert str(found) == "no home folder; set FASTJAX_CALIBRATION"


def test_environment_is_read_once_at_import(tmp_path):
    program = (
        "import os, fastjax; os.environ['FASTJAX_CALIBRATION'] = 'off'; "
        "print(fastjax.calibration.source())"
    )
    path = tmp_path / "c.json"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "FASTJAX_CALIBRATION": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, check=False, capture_output=True, text=True
    )
    assert done.stdout == f"{path} (from FASTJAX_CALIBRATION)\n", done.stderr


words = st.text(st.characters(codec="utf-8"), max_size=20)
machines = st.builds(Machine, words, words, st.integers(0, 2**70))
numbers = st.floats(allow_nan=False, allow_infinity=False)
entries = st.builds(
    Calibration,
    machines,
    st.dictionaries(words, numbers, max_size=5),
    st.dictionaries(words, st.tuples(numbers, numbers), max_size=5),
    words,
    words,
    words,
    st.booleans(),
)


@hypothesis.given(st.lists(entries, min_size=1, max_size=4))
def test_what_is_stored_is_read(stored):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "folders" / "c.json"
        for each in stored:
            calibration.store(each, path)
        last_of_each = {each.machine: each for each in stored}
        assert {e.machine: e for e in calibration.read(path)} == last_of_each
        assert len(calibration.read(path)) == len(last_of_each)
        assert list(path.parent.iterdir()) == [path]


def test_no_file_has_no_entries(tmp_path):
    assert calibration.read(tmp_path / "none.json") == []


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "file.json")
    calibration.store(entry(), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert calibration.read(tmp_path / "file.json") == [entry()]


@pytest.mark.parametrize("method", ["write_text", "replace"])
def test_a_store_that_fails_leaves_the_old_file(method, monkeypatch, tmp_path):
    path = tmp_path / "c.json"
    calibration.store(entry(), path)
    before = path.read_text()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, method, fail)
    told = f"cannot write {path}: No space left on device."
    refused(OptionError, lambda: calibration.store(entry(rates={}), path), told)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "c.json"
    calibration.store(entry(), path)
    seen, failed, done = [], [], threading.Event()

    def look():
        while not done.is_set():
            try:
                seen.append(len(calibration.read(path)))
            except OptionError as error:
                failed.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    for size in range(40):
        calibration.store(entry(Machine("cpu", "x" * 1000, size)), path)
    done.set()
    reader.join()
    assert failed == []
    assert all(1 <= count <= 41 for count in seen)


ENTRY = entry().record()
BROKEN = {
    "": "is no JSON",
    "{": "is no JSON",
    "[" * 100_000: "is no JSON",
    "[]": "is no calibration of fastjax",
    "{}": "is no calibration of fastjax",
    '{"version": 1, "machines": {}}': "is no calibration of fastjax",
    '{"version": 2, "machines": []}': "has version 2, and this fastjax reads version 1",
    '{"machines": []}': "has version None, and this fastjax reads version 1",
    '{"version": 1, "machines": [3]}': "has an entry that cannot be read",
    '{"version": 1, "machines": [{}]}': "(KeyError: 'platform')",
} | {
    json.dumps({"version": 1, "machines": [ENTRY, {**ENTRY, **change}]}): message
    for change, message in [
        ({"platform": 1}, "1 should be text"),
        ({"measured": None}, "None should be text"),
        ({"devices_per_server": 2.5}, "2.5 should be a number of devices"),
        ({"devices_per_server": True}, "True should be a number of devices"),
        ({"rates": []}, "AttributeError"),
        ({"rates": {"scale_up_latency": "1"}}, "'1' should be a finite number"),
        ({"rates": {"scale_up_latency": True}}, "True should be a finite number"),
        ({"rates": {"scale_up_latency": float("nan")}}, "nan should be a finite number"),
        ({"rates": {"scale_up_latency": 10**400}}, "OverflowError"),
        ({"spread": {"scale_up_latency": [1]}}, "ValueError"),
        ({"spread": 7}, "AttributeError"),
    ]
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_broken_files(text, in_force):
    path = in_force(text=text)
    told = refused(OptionError, lambda: calibration.read(path), str(path), BROKEN[text])
    refused(OptionError, lambda: calibration.store(entry(), path), told)
    assert path.read_text() == text
    with pytest.warns(CalibrationWarning, match="Defaults are used instead") as warned:
        assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)
    assert str(warned[0].message) == f"{told} Defaults are used instead."
    # Only once: a second warning would be an error here.
    assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)


@hypothesis.given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        path.write_bytes(data)
        refused(OptionError, lambda: calibration.read(path), str(path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@hypothesis.given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(ENTRY, json_values)), st.booleans()
)
def test_any_entry_is_read_or_refused(change, whole):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        raw = change if whole else ENTRY | change
        path.write_text(json.dumps({"version": 1, "machines": [raw]}))
        try:
            found = calibration.read(path)
        except OptionError:
            found = []
        assert all(np.isfinite(rate) for e in found for rate in e.rates.values())


def test_a_folder_is_no_file(in_force, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "_environment", Source(tmp_path, explicit=True))
    message = f"cannot read {tmp_path}: Is a directory."
    refused(OptionError, lambda: calibration.read(tmp_path), message)
    refused(OptionError, lambda: calibration.store(entry(), tmp_path), message)
    with pytest.warns(CalibrationWarning, match=re.escape(message)):
        assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)


def test_a_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "c.json"
    refused(OptionError, lambda: calibration.store(entry(), path), "cannot ", str(path))


def test_from_mesh_finds_what_was_stored(in_force):
    in_force(entry(Machine("cpu", "cpu", 4), {"scale_up_latency": 1}), entry())
    assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8, **RATES)
    # The machine is the same, whichever axis is exchanged over.
    assert Topology.from_mesh(mesh_of((2, 4), ("a", "b")), "b") == Topology(1, 4, **RATES)


def test_given_rates_come_before_calibrated_and_those_before_defaults(in_force):
    in_force(entry(rates={n: RATES[n] for n in ("scale_up_bandwidth", "scale_up_latency")}))
    topology = Topology.from_mesh(mesh_of(), "x", scale_up_latency=1e-3, scale_out_latency=2e-3)
    assert topology == Topology(
        1, 8, scale_up_bandwidth=3e9, scale_up_latency=1e-3, scale_out_latency=2e-3
    )


def test_calibrations_can_be_left_out(in_force, monkeypatch):
    in_force(entry())
    assert Topology.from_mesh(mesh_of(), "x", calibrated=False) == Topology(1, 8)
    monkeypatch.setattr(calibration, "_environment", Source(None, explicit=True))
    assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)


def test_other_machines_have_defaults(in_force):
    in_force(entry(Machine("cpu", "cpu", 4)), entry(Machine("gpu", "cpu", 8)))
    assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)


def test_rates_of_other_names_are_kept_and_not_used(in_force):
    path = in_force(entry(rates={**RATES, "fly": 1.0, "servers": 3.0, "placement": 2.0}))
    assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8, **RATES)
    calibration.store(entry(Machine("cpu", "cpu", 4)), path)
    assert {"fly", "servers"} < set(calibration.read(path)[0].rates)


def test_every_rate_of_a_topology_can_be_calibrated(in_force):
    assert set(RATES) <= set(rate_names())
    assert not {"servers", "nic_bandwidths", "placement"} & set(rate_names())
    # Half the default, or something where the default is 0.
    wanted = {n: getattr(Topology(1, 1), n) / 2 or 0.25 for n in rate_names()}
    in_force(entry(rates=wanted))
    topology = Topology.from_mesh(mesh_of(), "x")
    assert rates_of(topology, rate_names()) == wanted


def test_impossible_rates_are_warned_of_once(in_force):
    path = in_force(entry(rates={**RATES, "scale_up_bandwidth": -1.0}))
    message = (
        f"{path} has rates for cpu (cpu), 8 a server that cannot be: scale_up_bandwidth must be "
        "bytes/s, at least 1 and below 2**62, got -1.0. Defaults are used instead."
    )
    with pytest.warns(CalibrationWarning, match=re.escape(message)):
        assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)
    assert Topology.from_mesh(mesh_of(), "x", scale_up_latency=1) == Topology(
        1, 8, scale_up_latency=1
    )


def test_nic_bandwidths_are_the_callers_word(in_force):
    in_force(entry())
    topology = Topology.from_mesh(mesh_of(), "x", nic_bandwidths=(50e9,) * 8)
    assert (topology.scale_out_bandwidth, topology.scale_up_bandwidth) == (50e9, 3e9)


def test_a_named_file_that_is_missing_is_warned_of(in_force):
    path = in_force(explicit=True)
    message = f"FASTJAX_CALIBRATION names {path}, which does not exist. Defaults are used instead."
    with pytest.warns(CalibrationWarning, match=re.escape(message)):
        assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)
    assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)


def test_no_file_where_none_was_named_is_no_reason_to_warn(in_force):
    in_force()
    assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)


def fake_devices(processes, kinds=("tpu v9",), slices=None):
    return np.array(
        [
            types.SimpleNamespace(
                id=i,
                process_index=process,
                platform="tpu",
                device_kind=kinds[i % len(kinds)],
                slice_index=None if slices is None else slices[i],
            )
            for i, process in enumerate(processes)
        ],
        dtype=object,
    )


@pytest.fixture
def backend(monkeypatch):
    """Makes JAX have other devices; returns the function that does."""

    def use(devices):
        def found(platform):
            if devices is None:
                raise RuntimeError(f"Unknown backend {platform}")
            assert platform == "tpu"
            return list(devices)

        monkeypatch.setattr(jax, "devices", found)
        return devices

    return use


def test_machine_of_real_devices():
    assert machine_of(np.array(jax.devices())) == HERE
    assert machine_of(np.array(jax.devices()[:2])) == HERE


def test_machine_counts_devices_outside_the_mesh(backend):
    devices = backend(fake_devices([0, 0, 0, 1, 1, 1]))
    assert machine_of(devices[[0, 3]]) == Machine("tpu", "tpu v9", 3)


def test_machine_has_slices_for_servers_where_there_are_several(backend):
    devices = backend(fake_devices([0, 1, 2, 3], slices=[0, 0, 1, 1]))
    assert machine_of(devices) == Machine("tpu", "tpu v9", 2)


def test_machines_that_differ(backend):
    assert machine_of(backend(fake_devices([0, 0], kinds=("a", "b")))) is None
    devices = backend(fake_devices([0, 0, 1]))
    assert machine_of(devices) is None
    assert machine_of(devices[:2]) == Machine("tpu", "tpu v9", 2)


def test_machine_of_devices_that_are_not_here(backend):
    """As of a topology that programs are compiled for ahead of time."""
    backend(None)
    assert machine_of(fake_devices([0, 0, 1, 1])) == Machine("tpu", "tpu v9", 2)


@pytest.mark.parametrize("explicit", [False, True])
def test_several_processes_need_a_file_that_was_named(explicit, in_force, backend):
    """Hosts' own files may differ, and the program must not."""
    in_force(entry(Machine("tpu", "tpu v9", 2)), explicit=explicit)
    devices = backend(fake_devices([0, 0, 1, 1]))
    mesh = types.SimpleNamespace(axis_names=("x",), devices=devices)
    expected = Topology(2, 2, **(RATES if explicit else {}))
    assert Topology.from_mesh(mesh, "x") == expected


@pytest.mark.parametrize("explicit", [False, True])
def test_a_mesh_of_one_process_in_a_job_of_several(explicit, in_force, monkeypatch):
    in_force(entry(), explicit=explicit)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    expected = Topology(1, 8, **(RATES if explicit else {}))
    assert Topology.from_mesh(mesh_of(), "x") == expected
    if not explicit:
        why = "none: 2 processes must agree; name a file for all with FASTJAX_CALIBRATION"
        assert calibration.look_up(HERE, 2) == (None, why)


@pytest.mark.parametrize(
    ("stored", "machine", "why"),
    [
        ([], HERE, "none; python -m fastjax calibrate measures cpu (cpu), 8 a server"),
        ([], None, "none: the devices, or the servers, are not alike"),
        (
            [Machine("gpu", "H", 8), Machine("cpu", "cpu", 4)],
            HERE,
            "none for cpu (cpu), 8 a server, but for H (gpu), 8 a server; cpu (cpu), 4 a server",
        ),
    ],
)
def test_why_there_is_none(stored, machine, why, in_force):
    in_force(*map(entry, stored))
    assert calibration.look_up(machine, 1) == (None, why)


def test_which_is_in_force(in_force):
    in_force(entry(), entry(Machine("cpu", "cpu", 4), pretended=True))
    found, why = calibration.look_up(HERE, 1)
    assert found == entry()
    assert why == "2025-01-31T12:00:00+00:00, jax 0.10.2, for cpu (cpu), 8 a server"
    assert calibration.look_up(Machine("cpu", "cpu", 4), 1)[1].endswith(", servers pretended")


def test_report(in_force):
    path = in_force(entry(rates={**RATES, "incast": 0.25}))
    assert report.collect()["calibration"] == {
        "file": f"{path} (default; set FASTJAX_CALIBRATION to change)",
        "in force": "2025-01-31T12:00:00+00:00, jax 0.10.2, for cpu (cpu), 8 a server",
        "scale_up_bandwidth": "3 GB/s",
        "scale_out_bandwidth": "1 GB/s",
        "scale_up_latency": "30 µs",
        "scale_out_latency": "70 µs",
        "incast": "0.25",
    }


def test_report_without_calibration():
    off = "off, by FASTJAX_CALIBRATION"
    assert report.collect()["calibration"] == {"file": off, "in force": f"none: {off}"}


def test_report_warns_of_a_broken_file(in_force):
    path = in_force(text="?")
    with pytest.warns(CalibrationWarning):
        section = report.collect()["calibration"]
    assert section["in force"].startswith(f"none: {path} is no JSON (")


def test_warnings_can_be_silenced(in_force):
    in_force(text="?")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        assert Topology.from_mesh(mesh_of(), "x") == Topology(1, 8)
