"""Exchanges of rows that indices name, against numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from spmd import spmd

import fastjax
from fastjax.traced.contract import Metadata
from fastjax.traced.indexed_exchange import indexed_exchange
from fastjax.traced.plan import plan_ragged_all_to_all

TOPOLOGY = fastjax.Topology(2, 4)
pytestmark = pytest.mark.usefixtures("indexed_as")


def program(*, reverse=False, scheduler=None):
    def run(source, base, indices, *meta, factors=None, entries=None):
        way = Metadata(*meta)
        plan = plan_ragged_all_to_all(
            way.send_sizes, axis_name="x", topology=TOPOLOGY, scheduler=scheduler
        )
        return indexed_exchange(
            source, base, way, indices, plan, reverse=reverse, factors=factors, entries=entries
        )

    return run


def drawn(rng, rows=7, updates=2):
    """Sizes, indices of `rows` rows, and operands whose sums are exact."""
    meta = reference.packed(reference.random_sizes(rng, 8, 8 * updates), gap=1)
    entries, room = (a.shape[1] for a in reference.data(rng, meta))
    indices = rng.integers(0, rows, (8, entries)).astype(np.int32)
    source = rng.integers(-9, 9, (8, rows, 3)).astype(np.float32)
    there = rng.integers(-9, 9, (8, room, 3)).astype(np.float32)
    return meta, indices, source, there


@pytest.mark.sanitize
@pytest.mark.parametrize("scheduler", ["direct", "fast", "rails"])
def test_there(rng, scheduler):
    meta, indices, source, base = drawn(rng)
    got = spmd(program(scheduler=scheduler))(source, base, indices, *meta.arrays())
    copies = np.take_along_axis(source, indices[..., None], 1)
    np.testing.assert_array_equal(got, reference.exchange(copies, base, meta))


def summed(arriving, indices, meta, rows):
    """What is returned for each entry that is in a slice, added up by index."""
    returned = np.zeros((*indices.shape, arriving.shape[-1]), np.float32)
    size = 8
    per_peer = meta.send_sizes.shape[1] // size
    total = np.zeros((size, rows, arriving.shape[-1]), np.float32)
    for device, update in np.ndindex(meta.send_sizes.shape):
        first, count = meta.input_offsets[device, update], meta.send_sizes[device, update]
        there = meta.output_offsets[device, update]
        peer = update // per_peer
        returned[device, first : first + count] = arriving[peer, there : there + count]
        np.add.at(
            total[device],
            indices[device, first : first + count],
            returned[device, first : first + count],
        )
    return total


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (np.float32, np.float32),
        (jnp.bfloat16, jnp.bfloat16),
        (jnp.bfloat16, np.float32),
        (np.float16, np.float32),
        (np.complex64, np.complex64),
    ],
)
def test_home_again_and_summed(rng, dtype, wide):
    meta, indices, source, there = drawn(rng)
    rows = source.shape[1]
    base = np.zeros((8, rows, 3), wide)
    run = spmd(program(reverse=True))
    got = run(there.astype(dtype), base, indices, *meta.arrays())
    assert got.dtype == wide
    np.testing.assert_array_equal(
        np.asarray(got).astype(np.complex64), summed(there, indices, meta, rows)
    )


def scaled(*operands):
    """Sums of rows times their factors."""
    moved, base, indices, factors, *meta = operands
    return program(reverse=True)(moved, base, indices, *meta, factors=factors)


def in_order(there, factors, indices, meta, rows):
    """Sums of products in float32, one operation after the other, by sender and update."""
    total = np.zeros((8, rows, there.shape[-1]), np.float32)
    per_peer = meta.send_sizes.shape[1] // 8
    for device, update in np.ndindex(meta.send_sizes.shape):
        first, at = meta.input_offsets[device, update], meta.output_offsets[device, update]
        for i in range(meta.send_sizes[device, update]):
            peer = update // per_peer
            product = there[peer, at + i].astype(np.float32) * factors[peer, at + i]
            total[device, indices[device, first + i]] += product
    return total


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16, np.complex64])
def test_factors(rng, dtype):
    """To the bit: products are rounded before they are added, in a fixed order."""
    meta, indices, source, there = drawn(rng)
    there = rng.normal(size=there.shape).astype(dtype)
    factors = rng.normal(size=there.shape[:2]).astype(np.float32)
    wide = np.complex64 if dtype is np.complex64 else np.float32
    base = np.zeros(source.shape, wide)
    got = spmd(scaled)(there, base, indices, factors, *meta.arrays())
    parts = (there.real, there.imag) if dtype is np.complex64 else (there,)
    wanted = [in_order(part, factors, indices, meta, source.shape[1]) for part in parts]
    for one, other in zip(wanted, (np.real(got), np.imag(got)), strict=False):
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize("batched", ["all", "rows", "factors"])
def test_factors_in_a_batch(rng, batched):
    meta, indices, source, there = drawn(rng)
    there = rng.normal(size=there.shape).astype(jnp.bfloat16)
    factors = rng.normal(size=there.shape[:2]).astype(np.float32)
    base = np.zeros_like(source)
    elements = []
    for number in range(2):
        operands = [there, base, indices, factors, *meta.arrays()]
        if batched in ("all", "rows"):
            operands[0] = there * (number + 1)
        if batched in ("all", "factors"):
            operands[3] = factors * np.float32(0.3 * number + 1)
        if batched == "all":
            operands[2] = (indices + number) % source.shape[1]
        elements.append(operands)
    mapped = {"all": range(8), "rows": (0, 1), "factors": (3,)}[batched]
    axes = tuple(0 if n in mapped else None for n in range(8))
    stacked = [
        np.stack(parts, 1) if n in mapped else parts[0]
        for n, parts in enumerate(zip(*elements, strict=True))
    ]
    got = np.asarray(spmd(jax.vmap(scaled, in_axes=axes))(*stacked))
    for number, element in enumerate(elements):
        np.testing.assert_array_equal(got[:, number], spmd(scaled)(*element))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batched", ["all", "rows"])
def test_in_a_batch(rng, batched, reverse):
    meta, indices, source, there = drawn(rng)
    elements = []
    for number in range(2):
        if batched == "all":
            indices = (indices + number) % source.shape[1]
        scale = np.float32(number + 1)
        base = np.zeros_like(source) if reverse else there
        moved = there * scale if reverse else source * scale
        elements.append((moved, base, indices, *meta.arrays()))
    stacked = [np.stack(parts, 1) for parts in zip(*elements, strict=True)]
    axes = (0, 0, *([None] * 5)) if batched == "rows" else 0
    if batched == "rows":
        stacked[2:] = [array[:, 0] for array in stacked[2:]]
    run = spmd(jax.vmap(program(reverse=reverse), in_axes=axes))
    got = np.asarray(run(*stacked))
    one = spmd(program(reverse=reverse))
    for number, element in enumerate(elements):
        np.testing.assert_array_equal(got[:, number], one(*element))


def in_pairs(rng, devices=8, rows=7):
    """Indices that each row has twice, and the entries of each row, in an order of their own."""
    order = np.stack([rng.permutation(2 * rows) for _ in range(devices)])
    indices = np.argsort(order, 1) // 2
    return indices.astype(np.int32), order.reshape(devices, rows, 2).astype(np.int32)


@pytest.mark.parametrize("batched", [False, True])
def test_entries_by_row(rng, indexed_as, batched):
    """Given as they are, or sorted from indices: to the bit, in the order of the list on GPUs."""
    indices, entries = in_pairs(rng)
    # Slices of one row, from every other device: what remains, nobody returns.
    sizes = np.tile([1, 0], (8, 8))
    meta = reference.packed(sizes, gap=0)
    meta.input_offsets = np.minimum(meta.input_offsets, 13)
    there = rng.normal(size=(8, 8, 40)).astype(np.float32)
    base = rng.normal(size=(8, 7, 40)).astype(np.float32)

    def run(moved, base, indices, entries, *meta):
        return program(reverse=True)(moved, base, indices, *meta, entries=entries)

    operands = (there, base, indices, entries, *meta.arrays())
    if batched:
        other = (2 * there, base, *in_pairs(rng), *meta.arrays())
        stacked = [np.stack(pair, 1) for pair in zip(operands, other, strict=True)]
        got = np.asarray(spmd(jax.vmap(run))(*stacked))
        for number, element in enumerate((operands, other)):
            np.testing.assert_array_equal(got[:, number], spmd(run)(*element))
        return
    got = np.asarray(spmd(run)(*operands))
    by_entry = np.zeros((8, 14, 40), np.float32)
    returned = np.zeros((8, 14), bool)
    for sender, first, receiver, landing, count in reference.moves(meta):
        by_entry[sender, first : first + count] = there[receiver, landing : landing + count]
        returned[sender, first : first + count] = True
    devices = np.arange(8)[:, None]
    wanted = np.zeros_like(base)
    for choice in range(2):
        wanted += by_entry[devices, entries[..., choice]]
    any_returned = returned[devices[..., None], entries].any(2)
    assert any_returned.any()
    assert not any_returned.all()
    np.testing.assert_array_equal(got, np.where(any_returned[..., None], wanted, base))


@pytest.mark.parametrize("wrong", [-1, 7])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_index_of_no_row(rng, indexed_as, wrong, reverse):
    """CPU devices refuse it; GPUs, which do not know, take zeros, and sum nothing."""
    meta, indices, source, there = drawn(rng)
    device, update = np.argwhere(meta.send_sizes > 0)[0]
    at = meta.input_offsets[device, update]
    base = np.zeros_like(source) if reverse else there
    moved = there if reverse else source
    run = functools.partial(spmd(program(reverse=reverse)), moved, base)
    right = run(indices, *meta.arrays())
    bad = indices.copy()
    bad[device, at] = wrong
    if indexed_as == "as CPU":
        text = rf"on device {device}, indices\[{at}\] = {wrong} is not one of the 7 rows"
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(run(bad, *meta.arrays()))
    else:
        got = np.asarray(run(bad, *meta.arrays()))
        if reverse:
            with_row_for_it = np.where((bad < 0) | (bad > 6), 7, bad)
            np.testing.assert_array_equal(got, summed(there, with_row_for_it, meta, 8)[:, :7])
        else:
            rows = np.concatenate([source, np.zeros((8, 1, 3), np.float32)], 1)
            copies = np.take_along_axis(rows, np.where(bad < 0, 7, bad)[..., None], 1)
            np.testing.assert_array_equal(got, reference.exchange(copies, base, meta))
    np.testing.assert_array_equal(run(indices, *meta.arrays()), right)


def test_an_index_of_another_element_of_a_batch(rng, indexed_as):
    """In a batch, the rows of all elements lie behind each other."""
    meta, indices, source, base = drawn(rng)
    device, update = np.argwhere(meta.send_sizes > 0)[0]
    bad = np.stack([indices, indices], 1)
    bad[device, 0, meta.input_offsets[device, update]] = source.shape[1]
    stacked = [np.stack([a, a], 1) for a in (source, base, *meta.arrays())]
    run = spmd(lambda i, s, b, *m: jax.vmap(program())(s, b, i, *m))
    if indexed_as == "as CPU":
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"= -1 is not one of the 14 rows"):
            jax.block_until_ready(run(bad, *stacked))
        return
    rows = np.concatenate([source, np.zeros((8, 1, 3), np.float32)], 1)
    copies = np.take_along_axis(rows, bad[:, 0, :, None], 1)
    np.testing.assert_array_equal(run(bad, *stacked)[:, 0], reference.exchange(copies, base, meta))


@pytest.mark.parametrize("indexed_as", ["as GPU"], indirect=True)
def test_slices_that_overlap_on_gpus(rng, indexed_as):
    meta, indices, source, there = drawn(rng)
    device = int(np.argmax((meta.send_sizes > 0).sum(1)))
    meta.input_offsets[device] = 0
    run = spmd(program(reverse=True))
    with pytest.raises(jax.errors.JaxRuntimeError, match="input slices overlap, and GPUs sum rows"):
        jax.block_until_ready(run(there, source, indices, *meta.arrays()))
