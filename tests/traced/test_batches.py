"""Batches of exchanges: each element is the exchange that it would be alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange, planned
from refusals import refused
from spmd import spmd

import fastjax
from fastjax.errors import ArgumentError
from fastjax.traced.contract import Metadata
from fastjax.traced.start_done import done, start

STAGED = fastjax.Topology(2, 4)
GROUPS = [[0, 2, 5, 7], [1, 3, 4, 6]]
SIZE = 3
ALL = (0,) * 6
# The axes of operand, output, input offsets, send sizes, output offsets and receive sizes.
AXES = {
    "everything": ALL,
    "rows": (0, 0, *[None] * 4),
    "rows on other axes": (2, 1, *[None] * 4),
    "operand": (0, *[None] * 5),
    "output": (None, 1, *[None] * 4),
    "metadata": (None, None, 0, 0, 0, 0),
    "input offsets": (None, None, 0, None, None, None),
    "receive sizes": (*[None] * 5, 0),
}


def drawn(rng, axes, groups=None):
    """Arguments of a batch: those that have no axis are the same for all elements."""
    entries = len(groups[0]) if groups else 8
    metas = [reference.packed(reference.random_sizes(rng, 8, entries), groups) for _ in range(SIZE)]
    if axes[3] is None:
        metas = metas[:1] * SIZE
    n, m = np.max([reference.rows_needed(meta) for meta in metas], axis=0)
    rows = [rng.normal(size=(8, SIZE, k + SIZE, 3)).astype(np.float32) for k in (n, m)]
    arrays = [np.stack(parts, 1) for parts in zip(*(q.arrays() for q in metas), strict=True)]
    if axes[2] == 0:
        arrays[0] = arrays[0] + np.arange(SIZE, dtype=np.int32)[:, None]
    return [
        array[:, 0] if axis is None else np.moveaxis(array, 1, axis + 1)
        for array, axis in zip((*rows, *arrays), axes, strict=True)
    ]


def elements(arguments, axes):
    """The operand, output and metadata of each element."""
    for number in range(SIZE):
        operand, output, *arrays = (
            array if axis is None else np.take(array, number, axis + 1)
            for array, axis in zip(arguments, axes, strict=True)
        )
        yield operand, output, reference.Metadata(*arrays)


def in_two(operand, output, *arrays):
    plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
    return done(start(operand, output, Metadata(*arrays), plan))


def planned_outside(axes):
    """Of a plan for each element, or of one where all have the same sizes."""

    def batch(*args):
        plan = functools.partial(fastjax.plan_ragged_all_to_all, axis_name="x", topology=STAGED)
        if axes[3] is None:
            with_plan = functools.partial(exchange, plan=plan(args[3]))
            return jax.vmap(with_plan, axes)(*args)
        plans = jax.tree.map(lambda *t: jnp.stack(t), *map(plan, args[3]))
        with_plan = lambda plan, *one: exchange(*one, plan=plan)  # noqa: E731
        return jax.vmap(with_plan, (0, *axes))(plans, *args)

    return batch


@pytest.mark.parametrize("batched", AXES)
def test_values(rng, batched):
    """With plans made in the exchange, before it, outside of the batch, and in two parts."""
    axes = AXES[batched]
    arguments = drawn(rng, axes)

    def local(*args):
        inside = [jax.vmap(f, axes)(*args) for f in (exchange, planned, in_two)]
        return *inside, planned_outside(axes)(*args)

    for got in spmd(local)(*arguments):
        for number, element in enumerate(elements(arguments, axes)):
            np.testing.assert_array_equal(got[:, number], reference.exchange(*element))


def test_values_in_groups_and_with_narrow_metadata(rng):
    arguments = drawn(rng, ALL, GROUPS)
    arguments[2:] = [array.astype(np.int8) for array in arguments[2:]]
    f = functools.partial(exchange, axis_index_groups=GROUPS, topology=STAGED)
    got = spmd(jax.vmap(f))(*arguments)
    for number, element in enumerate(elements(arguments, ALL)):
        np.testing.assert_array_equal(got[:, number], reference.exchange(*element, GROUPS))


@pytest.mark.parametrize(
    ("batched", "groups", "check_vma"),
    [
        ("everything", None, True),
        ("everything", GROUPS, True),
        ("rows", GROUPS, False),
        ("receive sizes", None, True),
    ],
)
def test_gradients(rng, batched, groups, check_vma):
    """JAX has no vmap of an all_to_all with groups, which the output's gradient would need."""
    axes = AXES[batched]
    arguments = drawn(rng, axes, groups)

    def gradients(operand, output, *arrays):
        loss = lambda a, b: (exchange(a, b, *arrays, axis_index_groups=groups) ** 2).sum()  # noqa: E731
        return jax.grad(loss, (0, 1))(operand, output)

    found = spmd(jax.vmap(gradients, axes), check_vma=check_vma)(*arguments)
    for number, (*rows, meta) in enumerate(elements(arguments, axes)):
        loss = lambda a, b, m=meta: (reference.exchange_in_jax(a, b, m, groups) ** 2).sum()  # noqa: E731
        wanted = jax.grad(loss, (0, 1))(*map(jnp.asarray, rows))
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours[:, number], theirs, rtol=1e-5)


def test_a_batch_of_batches_under_grad(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    operand = np.stack([operand * i for i in range(1, 5)], axis=1).reshape(8, 2, 2, -1, 3)
    f = jax.vmap(jax.vmap(exchange, (0, None, *[None] * 4)), (0, None, *[None] * 4))

    def local(operand, output, *arrays):
        return jax.grad(lambda a: jnp.sum(f(a, output, *arrays) ** 2))(operand)

    got = spmd(local)(operand, output, *meta.arrays())
    every = jax.vmap(jax.vmap(lambda a: reference.exchange_in_jax(a, output, meta), 1, 1), 1, 1)
    wanted = jax.grad(lambda a: jnp.sum(every(a) ** 2))(jnp.asarray(operand))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_send_sizes_with_a_transposed_plan(rng):
    """It was made from the sizes that are receive sizes now."""
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    i, s, o, r = there = meta.arrays()
    back = (np.ascontiguousarray(o.T), r, np.ascontiguousarray(i.T), s)

    def local(rows, base, sizes, i, s, o, r):
        plan = fastjax.plan_ragged_all_to_all(sizes, axis_name="x", topology=STAGED).transpose()
        return jax.vmap(lambda s: exchange(rows, base, i, s, o, r, plan=plan))(jnp.stack([s, s]))

    found = spmd(local)(output, operand, there[1], *back)
    wanted = reference.exchange(output, operand, reference.Metadata(*back))
    np.testing.assert_array_equal(found, np.stack([wanted, wanted], 1))


def test_overlaps_are_of_each_element(rng):
    """Elements of a batch have the same offsets, each in its own output."""
    meta = reference.packed(rng.integers(1, 6, (8, 8)), gap=5)
    operand, output = reference.data(rng, meta)
    good = reference.packed(meta.send_sizes)
    # The last row that device 6 has for device 2 is written to the first one of device 1.
    meta.output_offsets[6, 2] = meta.output_offsets[1, 2] - meta.send_sizes[6, 2] + 1

    def batched(*args):
        return jax.vmap(exchange)(*(jnp.stack([a, a]) for a in args))

    with fastjax.options(check_overlaps=True):
        run = spmd(batched)
        got = run(operand, output, *good.arrays())
        launch = lambda: jax.block_until_ready(run(operand, output, *meta.arrays()))  # noqa: E731
        refused(jax.errors.JaxRuntimeError, launch, "device 6 and device 1 both write row")
    expected = reference.exchange(operand, output, good)
    np.testing.assert_array_equal(got, np.stack([expected, expected], 1))


META = reference.packed(np.full((8, 8), 3))
OPERAND, OUTPUT = reference.data(np.random.default_rng(0), META, spare=0)


@functools.cache
def three(reverse):
    """Three elements, side by side: without a check the rows of one would be another's."""

    def one(operand, output, *arrays):
        forward = lambda a: exchange(a, jnp.zeros_like(output), *arrays)  # noqa: E731
        if reverse:
            return jax.linear_transpose(forward, operand)(output)[0]
        return exchange(operand, output, *arrays)

    return spmd(jax.vmap(one))


@pytest.mark.parametrize("dtype", [np.int8, np.uint32])
@pytest.mark.parametrize("field", ["input_offsets", "output_offsets"])
@pytest.mark.parametrize("offset", [-1, 22, 120])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_slice_that_leaves_its_element_is_refused(dtype, field, offset, reverse):
    data = [np.stack([x, -x, x + 1], axis=1) for x in (OPERAND, OUTPUT)]
    arrays = {name: np.stack([a] * 3, axis=1) for name, a in vars(META).items()}

    def launch():
        typed = [a.astype(dtype) for a in arrays.values()]
        jax.block_until_ready(three(reverse)(*data, *typed))

    launch()
    arrays[field][4, 1, 6] = offset
    refused(jax.errors.JaxRuntimeError, launch, f"device 4, {field}[19] = -1; an offset")


def test_offsets_beyond_int32_are_refused():
    with jax.enable_x64(True):
        arrays = [np.stack([a] * 2, axis=1) for a in META.arrays(np.int64)]
        arrays[0][1, 0, 3] += 2**32
        run = spmd(jax.vmap(exchange, in_axes=(None, None, 0, 0, 0, 0)))
        launch = lambda: jax.block_until_ready(run(OPERAND, OUTPUT, *arrays))  # noqa: E731
        refused(jax.errors.JaxRuntimeError, launch, "device 1, input_offsets[6] = -1")


def test_more_rows_than_int32_counts_are_refused():
    """Whether or not there is something in the rows."""

    def batch(count, width=1):
        rows = jax.ShapeDtypeStruct((8, count, 2**20, width), jnp.float32)
        sizes = jax.ShapeDtypeStruct((8, count, 8), jnp.int32)
        return lambda: jax.eval_shape(spmd(jax.vmap(exchange)).mapped, rows, rows, *[sizes] * 4)

    for width in (0, 1):
        batch(2**11 - 1, width)()
    refused(ArgumentError, batch(2**11), "vmap of 2048 elements makes one exchange of 2048 x 1")
