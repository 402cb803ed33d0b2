"""Programs written for `jax.lax.ragged_all_to_all`, run unchanged on fastjax."""

import concurrent.futures
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax.extend.core import primitives
from jax.sharding import PartitionSpec as P
from moe_layers import equations
from refusals import refused
from spmd import mesh_of

import fastjax
from fastjax import Topology
from fastjax.errors import ArgumentError, OptionError

ORIGINAL = jax.lax.ragged_all_to_all


@pytest.fixture(autouse=True)
def _restored():
    yield
    assert jax.lax.ragged_all_to_all is ORIGINAL


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


def program(**keywords):
    """The exchange on each device, not yet traced."""
    local = partial(exchange, axis_name="x", **keywords)
    return jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))


def make_case(rng):
    """Operands of eight devices, and what each must hold behind the exchange."""
    traffic = rng.integers(0, 5, (8, 8))
    rows = np.arange(8 * 40 * 2, dtype=np.float32).reshape(8, 40, 2)
    wanted = reference.exchange(rows, np.full_like(rows, -1), reference.packed(traffic))
    operands = rows.reshape(-1, 2), traffic.ravel().astype(np.int32)
    return operands, wanted.reshape(-1, 2)


def specs(function, *operands):
    """The plan spec of every exchange that a function traces."""
    traced = equations(jax.make_jaxpr(function)(*operands).jaxpr)
    return [e.params["spec"] for e in traced if e.primitive is fastjax.fast_ragged_all_to_all_p]


def not_swapped():
    """That JAX's own exchange does not run on CPU tells the two apart."""
    return pytest.raises(jax.errors.JaxRuntimeError, match=r"UNIMPLEMENTED.*ragged-all-to-all")


def test_decorator(rng):
    operands, wanted = make_case(rng)

    @fastjax.swap_ragged_all_to_all(topology=Topology(2, 4), scheduler="fast")
    def step(*operands):
        """Docstring."""
        assert jax.lax.ragged_all_to_all is not ORIGINAL
        return program()(*operands)

    for one in (step, jax.jit(step)):
        np.testing.assert_array_equal(one(*operands), wanted)
        assert jax.lax.ragged_all_to_all is ORIGINAL
    assert (step.__name__, step.__doc__) == ("step", "Docstring.")


@pytest.mark.sanitize
def test_defaults_are_honoured(rng):
    operands, wanted = make_case(rng)
    topology = Topology(4, 2, scale_out_bandwidth=1e9)
    with fastjax.swap_ragged_all_to_all(topology=topology, scheduler="spreadout"):
        (spec,) = specs(program(), *operands)
        assert (spec.topology, spec.scheduler) == (topology, "spreadout")
        np.testing.assert_array_equal(program()(*operands), wanted)
        # What a call says itself comes first.
        (spec,) = specs(program(scheduler="fast"), *operands)
        assert (spec.topology, spec.scheduler) == (topology, "fast")
    with fastjax.swap_ragged_all_to_all():
        (spec,) = specs(program(), *operands)
        assert (spec.topology, spec.scheduler) == (Topology(1, 8), "direct")


def test_defaults_come_before_options(rng):
    operands, _ = make_case(rng)
    with (
        fastjax.options(scheduler="direct", topology=Topology(2, 4)),
        fastjax.swap_ragged_all_to_all(scheduler="fast"),
    ):
        (spec,) = specs(program(), *operands)
    assert (spec.scheduler, spec.topology) == ("fast", Topology(2, 4))


def test_rows_beyond_the_output_are_dropped_if_asked_for(rng):
    """As code has it that compares its counts with its room, and tries again with more."""
    (rows, traffic), _ = make_case(rng)
    traffic[:8] = 0
    traffic[0] = 60  # its own 40 are all that there are, and leave no room for more
    left = reference.in_range(reference.packed(traffic.reshape(8, 8)), 40, 40)
    operand = rows.reshape(8, 40, 2)
    wanted = reference.exchange(operand, np.full_like(operand, -1), left)
    with fastjax.swap_ragged_all_to_all(overflow="drop"):
        got = jax.jit(program())(rows, traffic)
    np.testing.assert_array_equal(got, wanted.reshape(-1, 2))
    swapped = fastjax.swap_ragged_all_to_all()(jax.jit(program()))
    with fastjax.options(overflow="drop"):  # which a swap that names none leaves as it is
        np.testing.assert_array_equal(swapped(rows, traffic), got)
    with fastjax.swap_ragged_all_to_all():
        refused(
            jax.errors.JaxRuntimeError,
            lambda: jax.block_until_ready(jax.jit(program())(rows, traffic)),
            "on device 0, input_offsets[0] = 0 and send_sizes[0] = 60 reach beyond the operand",
        )


@pytest.mark.parametrize("keyword", ["axis_name", "plan", "timeout"])
def test_refuses_other_keywords(keyword):
    keywords = {"zebra": 1, keyword: 1, "scheduler": "fast"}

    def swap():
        with fastjax.swap_ragged_all_to_all(**keywords):
            pytest.fail("the scope must not open")

    names = "('ragged_dot', 'topology', 'scheduler', 'overflow')"
    refused(ArgumentError, swap, names, f"got ['{keyword}', 'zebra']")


def test_refuses_defaults_that_mean_nothing():
    for value in ("loud", 1):
        call = partial(fastjax.swap_ragged_all_to_all, overflow=value)
        refused(OptionError, call, f"overflow must be one of ('error', 'drop'), got {value!r}")
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

    def scheduler():
        (spec,) = specs(program(), *operands)
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
    step = program()
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
    step = jax.jit(program())
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
    traced = jax.jit(program()).trace(*operands)

    @jax.custom_vjp
    def doubled(x):
        return 2 * x

    backward = jax.shard_map(
        lambda ct: exchange(ct, jnp.ones(8, jnp.int32), "x"),
        mesh=mesh_of(),
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
        return program()(*operands)

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
    first, second = fastjax.swap_ragged_all_to_all(), fastjax.swap_ragged_all_to_all()
    threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(2)]
    threads[0].submit(first.__enter__).result()
    threads[1].submit(second.__enter__).result()
    threads[0].submit(first.__exit__, None, None, None).result()
    assert jax.lax.ragged_all_to_all is not ORIGINAL
    threads[1].submit(second.__exit__, None, None, None).result()
    assert jax.lax.ragged_all_to_all is ORIGINAL


# Programs that call jax.lax.ragged_dot


def layer_of_products(x, ids, experts, dot=jax.lax.ragged_dot):
    """As MaxText has it: tokens sorted by expert, and three products."""
    order = jnp.argsort(ids)
    sizes = jnp.bincount(ids, length=len(experts[0])).astype(jnp.int32)
    gate, up, down = experts
    product = partial(dot, group_sizes=sizes, preferred_element_type=jnp.float32)
    inner = jax.nn.silu(product(lhs=x[order], rhs=gate)) * product(lhs=x[order], rhs=up)
    return product(lhs=inner, rhs=down)[jnp.argsort(order)]


def layers_with_gradients(rng):
    """Whole programs of a layer of products and of one of all experts, and their operands."""
    shapes = (40, 6), (3, 6, 5), (3, 6, 5), (3, 5, 6)
    x, *experts = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    ids = rng.integers(0, 2, 40)

    def dense(x, ids, experts):
        gate, up, down = experts
        every = [(jax.nn.silu(x @ gate[e]) * (x @ up[e])) @ down[e] for e in range(3)]
        return jnp.stack(every)[ids, jnp.arange(len(ids))]

    def with_gradients(layer):
        loss = lambda x, experts: (layer(x, ids, experts) ** 2).sum()  # noqa: E731
        return jax.value_and_grad(loss, (0, 1))

    return *map(with_gradients, (layer_of_products, dense)), (x, tuple(experts))


def test_products(rng):
    products, dense, operands = layers_with_gradients(rng)
    wanted = jax.jit(dense)(*operands)
    with fastjax.swap_ragged_all_to_all(ragged_dot=True):
        swapped = jax.jit(products)
        got = swapped(*operands)
        for_gpus = swapped.trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
        here = swapped.lower(*operands).as_text()
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
    theirs = jax.jit(products).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    assert "ragged_dot" in for_gpus
    assert "ragged_dot" in theirs
    assert "stablehlo.while" in here  # over tiles
    with fastjax.swap_ragged_all_to_all():
        assert "stablehlo.while" not in jax.jit(products).lower(*operands).as_text()


def test_products_that_all_devices_have(rng):
    """Experts are the same on all devices, so their gradients are summed."""
    products, dense, (x, experts) = layers_with_gradients(rng)
    del products, dense
    ids = rng.integers(0, 3, len(x))

    def slopes(x, ids, experts):
        layer = lambda experts: layer_of_products(x, ids, experts).sum()  # noqa: E731
        return jax.grad(layer)(experts)

    local = jax.shard_map(slopes, mesh=mesh_of(), in_specs=(P("x"), P("x"), P()), out_specs=P())
    with fastjax.swap_ragged_all_to_all(ragged_dot=True):
        got = jax.jit(local)(x, ids, experts)
        wanted = jax.jit(slopes)(x, ids, experts)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_products_that_do_not_fit_are_those_of_jax(rng):
    lhs, rhs = rng.normal(size=(8, 3)).astype(np.float32), np.ones((2, 4, 3), np.float32)
    sizes = np.array([3, 5], np.int32)
    lhs, rhs, sizes = map(jnp.asarray, (lhs, rhs, sizes))
    transposed = jax.lax.RaggedDotDimensionNumbers((([1], [2]), ([], [])), [0], [0])
    programs = (
        lambda: jax.lax.ragged_dot_general(lhs, rhs, sizes, transposed),
        lambda: jax.lax.ragged_dot(lhs.astype(int), rhs.mT.astype(int), sizes),
    )
    for one in programs:
        with fastjax.swap_ragged_all_to_all(ragged_dot=True):
            got = one()
        np.testing.assert_array_equal(got, one())
