"""Options: their scopes, the environment, and that programs are traced anew under others."""

import functools
import os
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fastjax
from fastjax import Options, Topology, config
from fastjax.errors import OptionError
from fastjax.scheduling import check_scheduler

NAMES = "auto, fast, balanced, relay, rails, spreadout, direct, optimal"


def test_schedulers():
    assert fastjax.schedulers() == tuple(NAMES.split(", "))


def test_check_scheduler():
    for name in fastjax.schedulers():
        check_scheduler(name, "scheduler")
    for name in ("", "FAST", "best", None, 0, ["fast"]):
        message = f"scheduler must be one of {NAMES}; got {name!r}."
        with pytest.raises(OptionError, match=re.escape(message)):
            check_scheduler(name, "scheduler")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "soon", None, (), 2e9])
def test_refuses_timeouts(timeout):
    message = f"timeout must be seconds, above 0 and at most 1e9, got {timeout!r}."
    with pytest.raises(OptionError, match=re.escape(message)):
        Options(timeout=timeout)


def test_refuses_what_is_no_topology():
    message = "topology must be a fastjax.Topology, got (2, 4)."
    with pytest.raises(OptionError, match=re.escape(message)):
        Options(topology=(2, 4))


@pytest.mark.parametrize(
    ("timeout", "ms"), [(60, 60000), ("2.5", 2500), (0.0015, 2), (1e-9, 1), (1e9, 10**12)]
)
def test_timeout_in_milliseconds(timeout, ms):
    assert Options(timeout=timeout).timeout_ms == ms


def test_scopes_nest():
    before = config.current()
    topology = Topology(2, 4)
    with fastjax.options(scheduler="fast", timeout=5) as outer:
        assert config.current() == outer == Options("fast", before.topology, 5.0)
        with fastjax.options(scheduler="direct", topology=topology) as inner:
            assert config.current() == inner == Options("direct", topology, 5.0)
            with fastjax.options() as same:
                assert same == inner
        assert config.current() == outer
    assert config.current() == before


def test_scope_ends_with_an_exception():
    before = config.current()
    with pytest.raises(KeyError), fastjax.options(timeout=1):
        raise KeyError
    assert config.current() == before


def test_scope_is_a_decorator():
    @fastjax.options(scheduler="spreadout")
    def scheduler():
        return config.current().scheduler

    before = config.current().scheduler
    assert [scheduler(), scheduler()] == ["spreadout"] * 2
    assert config.current().scheduler == before != "spreadout"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scheduler": "slow"}, f"scheduler must be one of {NAMES}; got 'slow'."),
        ({"topology": 8}, "topology must be a fastjax.Topology, got 8."),
        ({"timeout": 0}, "timeout must be seconds, above 0 and at most 1e9, got 0."),
        ({"check_overlaps": 1}, "check_overlaps must be True or False, got 1."),
    ],
)
def test_scope_refuses(arguments, message):
    before = config.current()
    with pytest.raises(OptionError, match=re.escape(message)):
        fastjax.options(**arguments)  # before any scope opens
    assert config.current() == before


def test_scope_is_of_its_thread():
    seen = []
    before = config.current()
    with fastjax.options(timeout=3):
        thread = threading.Thread(target=lambda: seen.append(config.current()))
        thread.start()
        thread.join()
    assert seen == [before]


def counted():
    """A jitted function, and the options that it was traced under, each time."""
    traced = []

    @jax.jit
    def identity(x):
        traced.append(config.current())
        return x

    return identity, traced


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"scheduler": "fast"}, {"scheduler": "direct"}),
        ({"timeout": 1}, {"timeout": 2}),
        ({"check_overlaps": True}, {"timeout": 2}),
        ({"topology": Topology(1, 8)}, {"topology": Topology(2, 4)}),
        ({"topology": Topology(2, 4)}, {"topology": Topology(2, 4, scale_up_latency=0)}),
        ({"topology": Topology(2, 2)}, {"topology": Topology(2, 2, placement=(0, 2, 1, 3))}),
    ],
)
def test_options_are_part_of_the_jit_cache_key(one, other):
    identity, traced = counted()
    with fastjax.options(**one) as first:
        identity(1)
        identity(1)
    with fastjax.options(**other) as second:
        identity(1)
    identity(1)
    expected = [first, second, config.current()]
    assert traced == expected
    for again in (other, one, {}):
        with fastjax.options(**again):
            identity(1)
    assert traced == expected


def test_what_is_in_force_counts_and_not_how_it_came_about():
    identity, traced = counted()
    with fastjax.options(scheduler="fast", topology=Topology(2, 4)):
        identity(1)
    with (
        fastjax.options(scheduler="direct"),
        fastjax.options(topology=Topology(2, 4)),
        fastjax.options(scheduler="fast"),
    ):
        identity(1)
    assert len(traced) == 1


@functools.cache
def mesh():
    return jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


def planned(**arguments):
    """The spec and the timeout of a planning traced here."""

    @functools.partial(jax.shard_map, mesh=mesh(), in_specs=P("x"), out_specs=P("x"))
    def table(sizes):
        return fastjax.plan_ragged_all_to_all(sizes, axis_name="x", **arguments).table

    (outer,) = jax.make_jaxpr(table)(jnp.ones(64, int)).eqns
    inner = [e for e in outer.params["jaxpr"].eqns if "spec" in e.params]
    (params,) = (e.params for e in inner)
    return params["spec"], params["timeout_ms"]


def test_calls_use_the_options_unless_they_say_otherwise():
    topology = Topology(2, 4, scale_out_bandwidth=1e9)
    with fastjax.options(scheduler="spreadout", topology=topology, timeout=1.5):
        spec, timeout_ms = planned()
        assert (spec.scheduler, spec.topology, timeout_ms) == ("spreadout", topology, 1500)
        spec, _ = planned(scheduler="fast", topology=Topology(4, 2))
        assert (spec.scheduler, spec.topology) == ("fast", Topology(4, 2))
        spec, _ = planned(scheduler="auto")  # chosen when there is traffic
        assert spec.scheduler == "auto"
    spec, timeout_ms = planned()
    assert (spec.scheduler, spec.topology) == ("direct", Topology(1, 8))
    assert timeout_ms == config.current().timeout_ms


def test_calls_refuse_what_is_no_scheduler():
    message = f"scheduler must be one of {NAMES}; got 'slow'."
    with pytest.raises(OptionError, match=re.escape(message)):
        planned(scheduler="slow")


def test_from_environment():
    assert config.from_environment({}) == Options("auto", None, 60.0)
    assert config.from_environment({"FASTJAX_SCHEDULER": "", "FASTJAX_TIMEOUT": ""}) == Options()
    found = config.from_environment({"FASTJAX_SCHEDULER": "fast", "FASTJAX_TIMEOUT": "1e-2"})
    assert found == Options("fast", None, 0.01)
    found = config.from_environment({"FASTJAX_CHECK_OVERLAPS": "1"})
    assert found == Options(check_overlaps=True)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"FASTJAX_TIMEOUT": "abc"},
            "(FASTJAX_TIMEOUT='abc'): timeout must be seconds, above 0 and at most 1e9, got 'abc'.",
        ),
        (
            {"FASTJAX_SCHEDULER": "slow"},
            f"(FASTJAX_SCHEDULER='slow'): scheduler must be one of {NAMES}; got 'slow'.",
        ),
        (
            {"FASTJAX_SCHEDULER": "fast", "FASTJAX_TIMEOUT": "-1"},
            "(FASTJAX_SCHEDULER='fast', FASTJAX_TIMEOUT='-1'): timeout must be seconds",
        ),
    ],
)
def test_from_environment_refuses(environ, message):
    with pytest.raises(OptionError, match=re.escape(f"environment {message}")):
        config.from_environment(environ)


def test_from_environment_refuses_what_is_no_switch():
    message = "FASTJAX_CHECK_OVERLAPS must be 0 or 1, got 'yes'."
    with pytest.raises(OptionError, match=re.escape(message)):
        config.from_environment({"FASTJAX_CHECK_OVERLAPS": "yes"})


def child(program, **environ):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FASTJAX_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "JAX_PLATFORMS": "cpu", **environ},
        check=False,
        capture_output=True,
        text=True,
    )


def test_import_refuses_an_environment_that_means_nothing():
    done = child("import fastjax", FASTJAX_TIMEOUT="abc")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "fastjax.errors.OptionError: environment (FASTJAX_TIMEOUT='abc'): "
        "timeout must be seconds, above 0 and at most 1e9, got 'abc'."
    )


def test_environment_is_read_once_at_import():
    program = (
        "import os, fastjax; "
        "os.environ['FASTJAX_SCHEDULER'] = 'direct'; "
        "print(fastjax.config.current()); "
        "print(fastjax.options(timeout=1).__enter__())"
    )
    done = child(program, FASTJAX_SCHEDULER="spreadout", FASTJAX_TIMEOUT="7")
    assert done.stdout.splitlines() == [
        "Options(scheduler='spreadout', topology=None, timeout=7.0, check_overlaps=False)",
        "Options(scheduler='spreadout', topology=None, timeout=1.0, check_overlaps=False)",
    ], done.stderr
