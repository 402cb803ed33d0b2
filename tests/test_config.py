"""Options: their scopes, the environment, and that programs are traced anew under others."""

import math
import threading
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from pythons import CPU, ended
from refusals import bounds, keywords, refused
from spmd import mesh_of

import fastjax
from fastjax import Options, Topology, config
from fastjax.errors import OptionError, OptionWarning

NAMES = "auto, fast, balanced, relay, rails, spreadout, direct, optimal"


def test_schedulers():
    assert fastjax.schedulers() == tuple(NAMES.split(", "))


test_bounds_of_options = bounds(
    OptionError,
    *keywords(
        Options,
        scheduler=(["", "FAST", "best", None, 0, ["fast"]], fastjax.schedulers()),
        timeout=(
            [0, -1, math.nextafter(1e9, math.inf), math.nan, math.inf, "soon", None, ()],
            [math.nextafter(0, 1), 1e9],
        ),
        topology=([(2, 4), 8], [None]),
        check_overlaps=([1, "yes"], [True, False]),
        overflow=(["", "Drop", None], ["error", "drop"]),
        fallback=(["", "JAX", True], ["jax", "error", "never"]),
    ),
)


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


def test_scope_is_a_decorator():
    @fastjax.options(scheduler="spreadout")
    def scheduler():
        return config.current().scheduler

    before = config.current().scheduler
    assert [scheduler(), scheduler()] == ["spreadout"] * 2
    assert config.current().scheduler == before != "spreadout"


def test_a_scope_is_refused_before_it_opens():
    before = config.current()
    refused(OptionError, lambda: fastjax.options(timeout=0), "timeout", "got 0")
    told = f"scheduler must be one of {NAMES}; got 'slow'"
    refused(OptionError, lambda: fastjax.options(scheduler="slow"), told)
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
        ({"overflow": "drop"}, {"timeout": 2}),
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


def test_options_count_and_not_the_scopes_that_set_them():
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


def planned(**arguments):
    """The spec and the timeout of a planning traced here."""

    @partial(jax.shard_map, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
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


def test_from_environment():
    assert config.from_environment({}) == Options("auto", None, 60.0)
    assert config.from_environment({"FASTJAX_SCHEDULER": "", "FASTJAX_TIMEOUT": ""}) == Options()
    found = config.from_environment({"FASTJAX_SCHEDULER": "fast", "FASTJAX_TIMEOUT": "1e-2"})
    assert found == Options("fast", None, 0.01)
    found = config.from_environment({"FASTJAX_CHECK_OVERLAPS": "1"})
    assert found == Options(check_overlaps=True)
    assert config.from_environment({"FASTJAX_OVERFLOW": "drop"}) == Options(overflow="drop")


def setting(read, name):
    return lambda value: read({f"FASTJAX_{name}": value})


general = partial(setting, config.from_environment)
gpu = partial(setting, config.gpu_from_environment)
ucx = partial(setting, config.network_from_environment)
SWITCH = ["yes", "2", "01"], ["0", "1", " 1 ", ""]
NICS = ["a,,b", ",", "eth0 eth1", "eth0;rm"], ["mlx5_0:1,eth0.3", ""]
TRANSPORTS = ["tcp,,sm", "tcp sm", ",", "tcp^", "t;c"], ["^ud,rc_x", ""]

test_bounds_of_variables = bounds(
    OptionError,
    ("(FASTJAX_TIMEOUT=", general("TIMEOUT"), ["abc", "0", "-1", "1.1e9"], ["1e-9", "1e9", ""]),
    ("(FASTJAX_SCHEDULER=", general("SCHEDULER"), ["slow"], ["fast", ""]),
    ("FASTJAX_CHECK_OVERLAPS", general("CHECK_OVERLAPS"), *SWITCH),
    ("FASTJAX_STATS", setting(config.stats_from_environment, "STATS"), *SWITCH),
    ("FASTJAX_EMULATE_GPU", gpu("EMULATE_GPU"), *SWITCH),
    ("GPU_MULTIPROCESSORS", gpu("GPU_MULTIPROCESSORS"), ["-1", "half", "1000000"], ["999999", ""]),
    ("FASTJAX_UCX_NICS", ucx("UCX_NICS"), *NICS),
    ("FASTJAX_UCX_TRANSPORTS", ucx("UCX_TRANSPORTS"), *TRANSPORTS),
)


def test_refused_variables():
    both = {"FASTJAX_SCHEDULER": "fast", "FASTJAX_TIMEOUT": "-1"}
    told = "environment (FASTJAX_SCHEDULER='fast', FASTJAX_TIMEOUT='-1'): timeout must be"
    refused(OptionError, lambda: config.from_environment(both), told)
    for read, name in ((ucx, "UCX_LIBRARY"), (gpu, "NCCL_LIBRARY")):
        told = f"FASTJAX_{name}", "there is no file '/no/lib.so'"
        refused(OptionError, partial(read(name), "/no/lib.so"), *told)


def child(program, **environ):
    return ended("-c", program, environment=CPU | environ, without=("FASTJAX_",))


def test_import_refuses_an_environment_that_means_nothing():
    done = child("import fastjax", FASTJAX_TIMEOUT="abc")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fastjax.errors.OptionError: environment (FASTJAX_TIMEOUT='abc'): ")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("SCHEDULAR", "SCHEDULER"),
        ("TIME_OUT", "TIMEOUT"),
        ("UCX_NIC", "UCX_NICS"),
        ("NCCL_LIB", "NCCL_LIBRARY"),
    ],
)
def test_a_misspelt_variable_is_warned_of(given, meant):
    told = f"FASTJAX_{given} has no effect; is FASTJAX_{meant} meant"
    with pytest.warns(OptionWarning, match=told):
        config.warn_of_misspellings({f"FASTJAX_{given}": "1"})


def test_no_other_variable_is_warned_of():
    """Those of options, of the build and of tests, and what belongs to others."""
    ours = (f"FASTJAX_{name}" for name in config._VARIABLES)
    others = "FASTJAX_CUDA", "FASTJAX_ROCM", "FASTJAX_UCX", "FASTJAX_SITE", "FASTJAX_FAULT"
    config.warn_of_misspellings(dict.fromkeys([*ours, *others, "TIMEOUT", "FASTER"], "1"))


def test_environment_is_read_once_at_import():
    program = (
        "import os, fastjax; "
        "os.environ['FASTJAX_SCHEDULER'] = 'direct'; "
        "print(fastjax.config.current()); "
        "print(fastjax.options(timeout=1).__enter__())"
    )
    done = child(
        program, FASTJAX_SCHEDULER="spreadout", FASTJAX_TIMEOUT="7", FASTJAX_FALLBACK="error"
    )
    assert done.stdout.splitlines() == [
        f"Options(scheduler='spreadout', topology=None, timeout={seconds}, check_overlaps=False, "
        "overflow='error', fallback='error')"
        for seconds in (7.0, 1.0)
    ], done.stderr
