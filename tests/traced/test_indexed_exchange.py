"""Exchanges of rows that indices name, against numpy."""

import functools

import jax
import numpy as np
import pytest
import reference
from spmd import spmd

import fastjax
from fastjax.traced.contract import Metadata
from fastjax.traced.plan import plan_ragged_all_to_all
from fastjax.traced.planned_exchange import exchange_planned

TOPOLOGY = fastjax.Topology(2, 4)
pytestmark = pytest.mark.usefixtures("indexed_as")


def program(*, reverse=False, scheduler=None):
    def run(source, base, indices, *meta, factors=None, entries=None):
        way = Metadata(*meta)
        plan = plan_ragged_all_to_all(
            way.send_sizes, axis_name="x", topology=TOPOLOGY, scheduler=scheduler
        )
        given = {"indices": indices, "factors": factors, "entries": entries}
        return exchange_planned(source, base, way, plan, reverse=reverse, **given)

    return run


def drawn(rng, rows=7, updates=2):
    """Sizes, indices of `rows` rows, and operands whose sums are exact."""
    meta = reference.packed(reference.random_sizes(rng, 8, 8 * updates), gap=1)
    entries, room = (a.shape[1] for a in reference.data(rng, meta))
    indices = rng.integers(0, rows, (8, entries)).astype(np.int32)
    source = rng.integers(-9, 9, (8, rows, 3)).astype(np.float32)
    there = rng.integers(-9, 9, (8, room, 3)).astype(np.float32)
    return meta, indices, source, there


@pytest.mark.parametrize(
    ("names", "mapped"),
    [
        ("there", range(7)),
        ("there", (0, 1)),
        ("back", range(7)),
        ("back", (0, 1)),
        ("factors", range(8)),
        ("factors", (0, 1)),
        ("factors", (7,)),
    ],
    ids=str,
)
def test_in_a_batch(rng, names, mapped):
    """Operands that are batched differ between its elements."""
    meta, indices, source, there = drawn(rng)
    rows = (source, there) if names == "there" else (there, np.zeros_like(source))
    operands = [*rows, indices, *meta.arrays()]
    if names == "factors":
        operands.append(rng.normal(size=there.shape[:2]).astype(np.float32))
    others = list(operands)
    for number in mapped:
        if number in (0, 1, 7):
            others[number] = np.float32(1.3) * operands[number]
        elif number == 2:
            others[2] = (indices + 1) % source.shape[1]

    def run(moved, base, indices, *rest):
        meta, factors = rest[:4], rest[4] if names == "factors" else None
        return program(reverse=names != "there")(moved, base, indices, *meta, factors=factors)

    axes = tuple(0 if n in mapped else None for n in range(len(operands)))
    stacked = [
        np.stack(pair, 1) if n in mapped else pair[0]
        for n, pair in enumerate(zip(operands, others, strict=True))
    ]
    got, one = np.asarray(spmd(jax.vmap(run, axes))(*stacked)), spmd(run)
    for number, element in enumerate((operands, others)):
        np.testing.assert_array_equal(got[:, number], one(*element))


def test_no_derivatives(rng):
    meta, indices, source, there = drawn(rng)

    def tangent(factors, *operands):
        run = functools.partial(program(reverse=True), *operands)
        return jax.jvp(lambda factors: run(factors=factors), (factors,), (factors,))

    operands = there[..., 0], there, np.zeros_like(source), indices, *meta.arrays()
    with pytest.raises(fastjax.errors.UnsupportedError, match="has no derivatives of its own"):
        spmd(tangent)(*operands)


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
    by_entry = reference.returned(there, np.zeros((8, 14, 40), np.float32), meta)
    returned = by_entry.any(2)
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
        for entry in np.ndindex(indices.shape):  # each of a slice is looked at, and no other
            bad = indices.copy()
            bad[entry] = wrong
            past = entry[1] - meta.input_offsets[entry[0]]
            if ((past >= 0) & (past < meta.send_sizes[entry[0]])).any():
                with pytest.raises(jax.errors.JaxRuntimeError, match="is not one of the 7 rows"):
                    jax.block_until_ready(run(bad, *meta.arrays()))
            else:
                jax.block_until_ready(run(bad, *meta.arrays()))
    else:
        got = np.asarray(run(bad, *meta.arrays()))
        if reverse:
            with_row_for_it = np.where((bad < 0) | (bad > 6), 7, bad)
            wanted = reference.returned(
                there, np.zeros((8, 8, 3), np.float32), meta, with_row_for_it
            )
            np.testing.assert_array_equal(got, wanted[:, :7])
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
