"""Exchanges inside a shard_map that leaves mesh axes to XLA, or inside a second one."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange, planned
from jax.sharding import PartitionSpec as P
from spmd import mesh_of

MESHES = {
    "before": ((2, 4), ("d", "x")),
    "behind": ((4, 2), ("x", "d")),
    "four behind": ((2, 4), ("x", "d")),
    "on both sides": ((2, 2, 2), ("d", "x", "e")),
}


def problem(rng, devices, width, updates=2):
    meta = reference.packed(reference.random_sizes(rng, devices, devices * updates), gap=1)
    operand, output = reference.data(rng, meta, width)
    return meta, operand, output, rng.normal(size=output.shape).astype(np.float32)


def flat(arrays):
    return [a.reshape(-1, *a.shape[2:]) for a in arrays]


def gradients_of(send, operand, output, weights, *arrays):
    value, back = jax.vjp(lambda *data: send(*data, *arrays), operand, output)
    return value, *back(weights)


value_and_gradients, with_a_plan = (partial(gradients_of, send) for send in (exchange, planned))


def check(got, meta, operand, output, weights):
    value, back = jax.vjp(
        lambda *data: reference.exchange_in_jax(*data, meta), jnp.asarray(operand), output
    )
    for g, w in zip(got, (value, *back(jnp.asarray(weights))), strict=True):
        np.testing.assert_allclose(g, np.reshape(w, g.shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("where", "width", "check_vma"),
    [
        *((where, (8,), True) for where in ("before", "four behind", "on both sides")),
        *(("behind", *given) for given in (((8,), False), ((3,), True), ((4, 3), False))),
        ("before", (), True),
        ("behind", (), True),
    ],
)
def test_values_and_gradients(rng, where, width, check_vma):
    mesh = mesh_of(*MESHES[where])
    meta, *data = problem(rng, mesh.shape["x"], width)
    f = jax.shard_map(
        value_and_gradients if width else with_a_plan,
        mesh=mesh,
        axis_names={"x"},
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=check_vma,
    )
    check(jax.jit(f)(*flat((*data, *meta.arrays()))), meta, *data)


@pytest.mark.parametrize("f", [value_and_gradients, with_a_plan], ids=["alone", "planned"])
@pytest.mark.parametrize("spec", [P("x", "d"), P(("x", "d")), P("x")], ids=str)
def test_however_rows_lie(rng, spec, f):
    """What XLA has divided by the width stays so: nothing is gathered."""
    mesh = mesh_of((4, 2), ("x", "d"))
    meta, operand, output, weights = problem(rng, 4, (8,))
    rows = [np.pad(a, [(0, 0), (0, a.shape[1] % 2), (0, 0)]) for a in (operand, output, weights)]
    put = [jax.device_put(a, jax.NamedSharding(mesh, spec)) for a in flat(rows)]
    mapped = jax.shard_map(f, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x"))
    out = jax.NamedSharding(mesh, P("x", "d"))
    compiled = jax.jit(mapped, out_shardings=out).lower(*put, *flat(meta.arrays())).compile()
    check(compiled(*put, *flat(meta.arrays())), meta, *rows)
    if spec == P("x", "d"):
        assert "all-gather" not in compiled.as_text()
        assert "f32[" in compiled.as_text()


@pytest.fixture
def gspmd():
    """XLA's older partitioner, where JAX still has it."""
    option = "jax_use_shardy_partitioner"
    if not hasattr(jax.config, option):
        pytest.skip("this JAX has no partitioner but Shardy")
    before = getattr(jax.config, option)
    jax.config.update(option, False)
    yield
    jax.config.update(option, before)


@pytest.mark.usefixtures("gspmd")
@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("width", [(8,), (3,)], ids=str)
def test_values_with_gspmd(rng, where, width):
    mesh = mesh_of(*MESHES[where])
    meta, operand, output, _ = problem(rng, 4, width)

    f = jax.shard_map(planned, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x"))
    got = jax.jit(f)(*flat((operand, output, *meta.arrays())))
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta).reshape(got.shape))


@pytest.mark.parametrize("spec", [P("x"), P("x", "d"), P(("x", "d"))], ids=str)
def test_explicit_axes(rng, spec):
    mesh = mesh_of((4, 2), ("x", "d"), explicit=True)
    meta, operand, output, _ = problem(rng, 4, (8,))
    # As many rows on each device as axes divide.
    operand, output = (np.pad(a, ((0, 0), (0, a.shape[1] % 2), (0, 0))) for a in (operand, output))
    f = jax.shard_map(exchange, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x"))
    with jax.set_mesh(mesh):
        rows = jax.device_put(flat((operand, output)), jax.NamedSharding(mesh, spec))
        way = jax.device_put(flat(meta.arrays()), jax.NamedSharding(mesh, P("x")))
        got = jax.jit(f)(*rows, *way)
    expected = reference.exchange(operand, output, meta)
    np.testing.assert_array_equal(got, expected.reshape(got.shape))


@pytest.mark.parametrize(("set_mesh", "check_vma"), [(False, True), (True, False)])
def test_inside_a_second_shard_map(rng, set_mesh, check_vma):
    """The outer one makes the exchanged axis manual, the inner one another."""
    mesh = mesh_of((4, 2), ("x", "d"))
    meta, *data = problem(rng, 4, (8,))

    def outer(operand, output, weights, *arrays):
        wide = [P(None, "d")] * 3
        inner = jax.shard_map(
            value_and_gradients,
            axis_names={"d"},
            in_specs=(*wide, *[P()] * 4),
            out_specs=tuple(wide),
            check_vma=check_vma,
        )
        return inner(operand, output, weights, *arrays)

    f = jax.shard_map(
        outer, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma
    )
    with jax.set_mesh(mesh) if set_mesh else contextlib.nullcontext():
        check(jax.jit(f)(*flat((*data, *meta.arrays()))), meta, *data)
