"""What the network of a job is made of: the library, variables, and the report."""

import sys
import types

import pytest
from fake_network import FakeCore
from refusals import refused

import fastjax
from fastjax import config, network
from fastjax.config import NetworkOptions
from fastjax.errors import UnsupportedError
from fastjax.network import library


def test_library_that_was_named(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "_of_the_wheel", lambda: pytest.fail("must not look"))
    assert library.find("/a/libucp.so.0", {}) == ("/a/libucp.so.0", "FASTJAX_UCX_LIBRARY")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with nothing but what a test puts on it."""
    here = types.SimpleNamespace(system=None, wheel=tmp_path / "libucx" / "lib" / "libucp.so.0")
    monkeypatch.setattr(library.ctypes.util, "find_library", lambda _: here.system)
    monkeypatch.delitem(sys.modules, "libucx", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    return here


def install(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_library_of_the_system(machine, tmp_path):
    machine.system = "libucp.so.0"
    install(machine.wheel)
    assert library.find("", {}) == ("libucp.so.0", "the system's")
    assert library.find("wheel", {}) == (str(machine.wheel), "the libucx wheel's")
    mine = tmp_path / "mine" / "libucp.so.0"
    install(mine)
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}::{mine.parent}"}
    assert library.find("", environ) == (str(mine), "the system's")


def test_library_of_the_wheel(machine):
    install(machine.wheel)
    assert library.find("", {}) == (str(machine.wheel), "the libucx wheel's")
    machine.system = "libucp.so.1"  # of a UCX that we do not know
    assert library.find("", {}) == (str(machine.wheel), "the libucx wheel's")


@pytest.mark.parametrize(
    ("wanted", "why"), [("", "there is no libucp.so.0"), ("wheel", "the libucx wheel is not")]
)
def test_no_library(machine, wanted, why):
    refused(UnsupportedError, lambda: library.find(wanted, {}), why, "pip install 'fastjax[ucx]'")


def test_network_from_environment(tmp_path):
    file = tmp_path / "libucp.so.0"
    file.touch()
    assert config.network_from_environment({}) == NetworkOptions("", (), "")
    environ = {
        "FASTJAX_UCX_LIBRARY": f" {file} ",
        "FASTJAX_UCX_NICS": " eth0.3, mlx5_0:1,eth0.3 ",
        "FASTJAX_UCX_TRANSPORTS": "^ud,rc_x",
    }
    expected = NetworkOptions(str(file), ("eth0.3", "mlx5_0:1", "eth0.3"), "^ud,rc_x")
    assert config.network_from_environment(environ) == expected
    for name in ("wheel", "libucp.so.0"):
        assert config.network_from_environment({"FASTJAX_UCX_LIBRARY": name}).library == name


def test_report(monkeypatch, machine):
    core = FakeCore()
    monkeypatch.setattr(fastjax._core, "network_state", core.state, raising=False)
    assert "pip install 'fastjax[ucx]'" in network.report({})["library"]
    assert "must be" in network.report({"FASTJAX_UCX_NICS": ","})["library"]
    install(machine.wheel)
    assert network.report({}) == {
        "library": f"{machine.wheel} (the libucx wheel's)",
        "NICs": "UCX's choice; set FASTJAX_UCX_NICS to change",
        "transports": "UCX's choice; set FASTJAX_UCX_TRANSPORTS to change",
        "state": "not open: the first exchange that spans processes opens it",
    }
    core.open(0, 2, b"", "", [], "")
    section = network.report({"FASTJAX_UCX_NICS": "a,b", "FASTJAX_UCX_TRANSPORTS": "tcp"})
    assert (section["NICs"], section["transports"]) == ("a, b", "tcp")
    assert (section["state"], section["  refused"]) == ("open", "0")
