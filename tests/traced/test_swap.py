"""Programs written for `jax.lax.ragged_all_to_all`, run unchanged on fastjax."""

import concurrent.futures
import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from refusals import refused

import fastjax
from fastjax import Topology
from fastjax.errors import ArgumentError, OptionError

ORIGINAL = jax.lax.ragged_all_to_all


@pytest.fixture(autouse=True)
def _restored():
    yield
    assert jax.lax.ragged_all_to_all is ORIGINAL


def make_mesh(*sizes):
    names = ("x", "y")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def exchange(x, sizes, axis_name, **keywords):
    """As model code does it: rows sorted by receiver in, rows sorted by sender out."""
    recv_sizes = jax.lax.all_to_all(sizes, axis_name, 0, 0, tiled=True)
    offsets = jnp.cumsum(sizes) - sizes
    landing = jnp.cumsum(recv_sizes) - recv_sizes
    output_offsets = jax.lax.all_to_all(landing, axis_name, 0, 0, tiled=True)
    return jax.lax.ragged_all_to_all(
        x,
        jnp.full((40, *x.shape[1:]), -1, x.dtype),
        offsets,
        sizes,
        output_offsets,
        recv_sizes,
        axis_name=axis_name,
        **keywords,
    )


def program(mesh, axis_name, **keywords):
    """The exchange on each device, not yet traced."""
    spec = P(axis_name)
    return jax.shard_map(
        partial(exchange, axis_name=axis_name, **keywords),
        mesh=mesh,
        in_specs=(spec, spec),
        out_specs=spec,
    )


def make_case(rng):
    """Operands of eight devices, and what each must hold behind the exchange."""
    traffic = rng.integers(0, 5, (8, 8))
    rows = np.arange(8 * 40 * 2, dtype=np.float32).reshape(8, 40, 2)
    wanted = np.full((8, 40, 2), -1, np.float32)
    starts = np.cumsum(traffic, axis=1) - traffic
    for receiver in range(8):
        parts = [
            rows[s, starts[s, receiver] : starts[s, receiver] + traffic[s, receiver]]
            for s in range(8)
        ]
        arrived = np.concatenate(parts)
        wanted[receiver, : len(arrived)] = arrived
    operands = rows.reshape(-1, 2), traffic.ravel().astype(np.int32)
    return operands, wanted.reshape(-1, 2)


def specs(function, *operands):
    """The plan spec of every exchange that a function traces."""

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive is fastjax.fast_ragged_all_to_all_p:
                yield eqn.params["spec"]
            for param in eqn.params.values():
                inner = getattr(param, "jaxpr", param)
                if hasattr(inner, "eqns"):
                    yield from walk(inner)

    return list(walk(jax.make_jaxpr(function)(*operands).jaxpr))


def not_swapped():
    """That JAX's own exchange does not run on CPU tells the two apart."""
    return pytest.raises(jax.errors.JaxRuntimeError, match=r"UNIMPLEMENTED.*ragged-all-to-all")


@pytest.mark.sanitize
def test_context_manager(rng):
    operands, wanted = make_case(rng)
    with fastjax.swap_ragged_all_to_all():
        got = program(make_mesh(8), "x")(*operands)
    np.testing.assert_array_equal(got, wanted)


def test_decorator(rng):
    operands, wanted = make_case(rng)

    @fastjax.swap_ragged_all_to_all(topology=Topology(2, 4), scheduler="fast")
    def step(*operands):
        """Docstring."""
        assert jax.lax.ragged_all_to_all is not ORIGINAL
        return jax.jit(program(make_mesh(8), "x"))(*operands)

    for _ in range(2):
        np.testing.assert_array_equal(step(*operands), wanted)
        assert jax.lax.ragged_all_to_all is ORIGINAL
    assert (step.__name__, step.__doc__) == ("step", "Docstring.")


def test_decorator_inside_jit(rng):
    operands, wanted = make_case(rng)
    step = jax.jit(fastjax.swap_ragged_all_to_all()(program(make_mesh(8), "x")))
    for _ in range(2):
        np.testing.assert_array_equal(step(*operands), wanted)


@pytest.mark.parametrize("axis_name", [("x", "y"), ("y", "x")])
@pytest.mark.parametrize("topology", [None, Topology(4, 2)])
def test_tuple_axis_names(axis_name, topology, rng):
    operands, wanted = make_case(rng)
    with fastjax.swap_ragged_all_to_all(topology=topology):
        got = jax.jit(program(make_mesh(2, 4), axis_name))(*operands)
    np.testing.assert_array_equal(got, wanted)


def test_groups(rng):
    """Two groups of four: the same exchange on each half."""
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    sizes = np.tile([1, 2, 0, 3], 8).astype(np.int32)
    rows = rng.random((8 * 40, 3), np.float32)
    spec = P("x")

    @partial(
        jax.shard_map, mesh=make_mesh(8), in_specs=(spec, spec), out_specs=spec, check_vma=False
    )
    def grouped(x, sizes):
        position = jax.lax.axis_index("x") % 4
        received = jnp.full(4, sizes[position])
        starts = jnp.cumsum(sizes) - sizes
        landing = position * sizes
        output = jnp.zeros_like(x)
        return jax.lax.ragged_all_to_all(
            x, output, starts, sizes, landing, received, axis_name="x", axis_index_groups=groups
        )

    with fastjax.swap_ragged_all_to_all():
        got = np.asarray(grouped(rows, sizes)).reshape(8, 40, 3)
    rows = rows.reshape(8, 40, 3)
    wanted = np.zeros_like(rows)
    for group in groups:
        for i, receiver in enumerate(group):
            start, size = [0, 1, 3, 3][i], [1, 2, 0, 3][i]
            for j, sender in enumerate(group):
                landing = slice(j * size, (j + 1) * size)
                wanted[receiver, landing] = rows[sender, start : start + size]
    np.testing.assert_array_equal(got, wanted)


def test_gradient(rng):
    """Every row that is sent has the gradient of the place where it lands, all others none."""
    operands, _ = make_case(rng)
    rows, sizes = operands
    weights = rng.random(rows.shape, np.float32)

    def loss(x):
        return (program(make_mesh(8), "x")(x, sizes) * weights).sum()

    with fastjax.swap_ragged_all_to_all():
        got = np.asarray(jax.grad(loss)(rows)).reshape(8, 40, 2)
    traffic, weights = sizes.reshape(8, 8), weights.reshape(8, 40, 2)
    starts = np.cumsum(traffic, axis=1) - traffic
    landing = np.cumsum(traffic, axis=0) - traffic
    wanted = np.zeros((8, 40, 2), np.float32)
    for s in range(8):
        for r in range(8):
            here = slice(starts[s, r], starts[s, r] + traffic[s, r])
            there = slice(landing[s, r], landing[s, r] + traffic[s, r])
            wanted[s, here] = weights[r, there]
    np.testing.assert_array_equal(got, wanted)


def test_it_looks_like_ours():
    with fastjax.swap_ragged_all_to_all(scheduler="fast"):
        swapped = jax.lax.ragged_all_to_all
        assert swapped.__name__ == "fast_ragged_all_to_all"
        assert swapped.__doc__ == fastjax.fast_ragged_all_to_all.__doc__
        theirs = list(inspect.signature(ORIGINAL).parameters)
        assert list(inspect.signature(swapped).parameters)[: len(theirs)] == theirs


def test_defaults_are_honoured(rng):
    operands, wanted = make_case(rng)
    mesh = make_mesh(8)
    topology = Topology(4, 2, scale_out_bandwidth=1e9)
    with fastjax.swap_ragged_all_to_all(topology=topology, scheduler="spreadout"):
        (spec,) = specs(program(mesh, "x"), *operands)
        assert (spec.topology, spec.scheduler) == (topology, "spreadout")
        np.testing.assert_array_equal(program(mesh, "x")(*operands), wanted)
        # What a call says itself comes first.
        (spec,) = specs(program(mesh, "x", scheduler="fast"), *operands)
        assert (spec.topology, spec.scheduler) == (topology, "fast")
    with fastjax.swap_ragged_all_to_all():
        (spec,) = specs(program(mesh, "x"), *operands)
        assert (spec.topology, spec.scheduler) == (Topology(1, 8), "direct")


def test_defaults_come_before_options(rng):
    operands, _ = make_case(rng)
    with (
        fastjax.options(scheduler="direct", topology=Topology(2, 4)),
        fastjax.swap_ragged_all_to_all(scheduler="fast"),
    ):
        (spec,) = specs(program(make_mesh(8), "x"), *operands)
    assert (spec.scheduler, spec.topology) == ("fast", Topology(2, 4))


@pytest.mark.parametrize("keyword", ["axis_name", "plan", "timeout"])
def test_refuses_other_keywords(keyword):
    keywords = {"zebra": 1, keyword: 1, "scheduler": "fast"}

    def swap():
        with fastjax.swap_ragged_all_to_all(**keywords):
            pytest.fail("the scope must not open")

    refused(ArgumentError, swap, "('topology', 'scheduler')", f"got ['{keyword}', 'zebra']")


def test_refuses_defaults_that_mean_nothing():
    swap = fastjax.swap_ragged_all_to_all
    refused(OptionError, lambda: swap(scheduler="slow"), "scheduler must be one of", "got 'slow'")
    refused(ArgumentError, lambda: swap(topology=[2, 4]), "a fastjax.Topology, got [2, 4]")


def test_restored_after_an_exception():
    with pytest.raises(KeyError), fastjax.swap_ragged_all_to_all():
        raise KeyError
    assert jax.lax.ragged_all_to_all is ORIGINAL

    @fastjax.swap_ragged_all_to_all()
    def fails():
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert jax.lax.ragged_all_to_all is ORIGINAL
    assert "bind" not in vars(primitives.ragged_all_to_all_p)


def test_nested_swaps(rng):
    operands, _ = make_case(rng)
    mesh = make_mesh(8)

    def scheduler():
        (spec,) = specs(program(mesh, "x"), *operands)
        return spec.scheduler

    with fastjax.swap_ragged_all_to_all(scheduler="fast"):
        outer = jax.lax.ragged_all_to_all
        assert scheduler() == "fast"
        with fastjax.swap_ragged_all_to_all(scheduler="spreadout"):
            assert scheduler() == "spreadout"
        assert jax.lax.ragged_all_to_all is outer
        assert scheduler() == "fast"
        with pytest.raises(KeyError), fastjax.swap_ragged_all_to_all(scheduler="spreadout"):
            raise KeyError
        assert scheduler() == "fast"


def test_the_function_that_was_imported_by_name(rng, monkeypatch):
    """It has defaults too; and fastjax's own programs for other platforms still have JAX's."""
    operands, wanted = make_case(rng)
    step = program(make_mesh(8), "x")
    swap = fastjax.swap_ragged_all_to_all(scheduler="spreadout", topology=Topology(4, 2))
    with swap, monkeypatch.context() as patch:
        patch.setattr(jax.lax, "ragged_all_to_all", ORIGINAL)
        (spec,) = specs(step, *operands)
        np.testing.assert_array_equal(jax.jit(step)(*operands), wanted)
        lowered = jax.jit(step).trace(*operands).lower(lowering_platforms=("tpu",))
    assert (spec.scheduler, spec.topology) == ("spreadout", Topology(4, 2))
    assert "@ragged_all_to_all(" in lowered.as_text()
    with not_swapped():
        jax.jit(step)(*operands)


def test_one_swap_nested_in_itself(rng):
    operands, _ = make_case(rng)
    swap = fastjax.swap_ragged_all_to_all(scheduler="fast")
    for _ in range(2):
        with swap:
            with swap:
                pass
            (spec,) = specs(program(make_mesh(8), "x"), *operands)
        assert spec.scheduler == "fast"
        assert jax.lax.ragged_all_to_all is ORIGINAL


def test_a_swap_inside_another_that_is_inside_it():
    fast = fastjax.swap_ragged_all_to_all(scheduler="fast")
    with fast, fastjax.swap_ragged_all_to_all(scheduler="spreadout"):
        outer = jax.lax.ragged_all_to_all
        with fast:
            assert jax.lax.ragged_all_to_all is not outer
        assert jax.lax.ragged_all_to_all is outer


def test_what_another_library_put_there_is_restored(monkeypatch):
    theirs = lambda: None  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(jax.lax, "ragged_all_to_all", theirs)
        with fastjax.swap_ragged_all_to_all():
            assert jax.lax.ragged_all_to_all is not theirs
        assert jax.lax.ragged_all_to_all is theirs
    with fastjax.swap_ragged_all_to_all():
        pass  # and this one restores JAX's


def test_jitted_function_outside_inside_and_outside_again(rng):
    operands, wanted = make_case(rng)
    step = jax.jit(program(make_mesh(8), "x"))
    with not_swapped():
        step(*operands)
    with fastjax.swap_ragged_all_to_all():
        np.testing.assert_array_equal(step(*operands), wanted)
    with not_swapped():
        step(*operands)
    with fastjax.swap_ragged_all_to_all():
        np.testing.assert_array_equal(step(*operands), wanted)


def test_what_keeps_the_exchange_of_jax(rng):
    """As the documentation says: what was traced before, and what is traced afterwards."""
    operands, _ = make_case(rng)
    traced = jax.jit(program(make_mesh(8), "x")).trace(*operands)

    @jax.custom_vjp
    def doubled(x):
        return 2 * x

    backward = jax.shard_map(
        lambda ct: exchange(ct, jnp.ones(8, jnp.int32), "x"),
        mesh=make_mesh(8),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    doubled.defvjp(lambda x: (2 * x, None), lambda _, ct: (backward(ct),))
    with fastjax.swap_ragged_all_to_all():
        before = traced.lower()
        _, gradient = jax.vjp(doubled, operands[0])
    with not_swapped():
        before.compile()
    with not_swapped():
        gradient(np.ones_like(operands[0]))


def test_jitted_function_is_traced_anew_under_other_defaults_only(rng):
    operands, _ = make_case(rng)
    traced = []

    @jax.jit
    def step(*operands):
        traced.append(jax.lax.ragged_all_to_all)
        return program(mesh, "x")(*operands)

    mesh = make_mesh(8)
    scopes = [{}, {"scheduler": "fast"}, {"scheduler": "fast", "topology": Topology(2, 4)}]
    for _ in range(2):
        for defaults in scopes:
            with fastjax.swap_ragged_all_to_all(**defaults):
                step(*operands)
    assert len(traced) == len(scopes)
    with fastjax.swap_ragged_all_to_all(topology=Topology(2, 4), scheduler="fast"):
        step(*operands)
    assert len(traced) == len(scopes)


def test_swaps_that_end_in_another_order_than_they_began():
    """As those of two threads may."""
    original = jax.lax.ragged_all_to_all
    first, second = fastjax.swap_ragged_all_to_all(), fastjax.swap_ragged_all_to_all()
    threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(2)]
    threads[0].submit(first.__enter__).result()
    threads[1].submit(second.__enter__).result()
    threads[0].submit(first.__exit__, None, None, None).result()
    assert jax.lax.ragged_all_to_all is not original
    threads[1].submit(second.__exit__, None, None, None).result()
    assert jax.lax.ragged_all_to_all is original
