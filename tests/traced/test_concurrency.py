"""Many exchanges at once, among XLA's own collectives, queued without waiting."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange
from spmd import mesh_of, spmd

import fastjax

EXCHANGES = 8
STAGED = fastjax.Topology(2, 4)


def cases(rng, count=EXCHANGES, rows=6):
    metas = [reference.packed(reference.random_sizes(rng, 8, 8, rows)) for _ in range(count)]
    n, m = np.max([reference.rows_needed(meta) for meta in metas], axis=0)
    operand = rng.normal(size=(8, count, n, 4)).astype(np.float32)
    output = rng.normal(size=(8, count, m, 4)).astype(np.float32)
    arrays = [np.stack(parts, 1) for parts in zip(*(q.arrays() for q in metas), strict=True)]
    expected = np.stack(
        [reference.exchange(operand[:, b], output[:, b], metas[b]) for b in range(count)],
        axis=1,
    )
    return operand, output, arrays, expected


def many(operand, output, *arrays, topology=None):
    """Exchanges and unrelated collectives, none of which waits for another."""
    results, gathered = [], []
    for b in range(EXCHANGES):
        results.append(exchange(operand[b], output[b], *(a[b] for a in arrays), topology=topology))
        gathered.append(jax.lax.all_gather(operand[b] * (b + 1.0), "x").sum())
    return jnp.stack(results), jnp.stack(gathered)


@pytest.mark.sanitize
def test_hundreds_of_independent_launches(rng):
    operand, output, arrays, expected = cases(rng)

    def local(operand, output, *arrays):
        each = zip(operand, output, *arrays, strict=True)
        return jnp.stack([exchange(*args) for args in each])

    run = spmd(local)
    args = jax.device_put((operand, output, *arrays), run.sharding)
    queued = [run.mapped(*args) for _ in range(300)]
    for results in queued:
        np.testing.assert_array_equal(results, expected)


@pytest.mark.sanitize
def test_hundreds_of_launches_among_unrelated_collectives(rng):
    """Eight exchanges and eight collectives a launch, each launch fed by the one before."""
    operand, output, arrays, expected = cases(rng)

    def step(carry, operand, output, *arrays):
        results, gathered = many(operand + 0.0 * carry, output, *arrays, topology=STAGED)
        return results, gathered, carry + 1.0 + 0.0 * gathered.sum()

    run = spmd(step)
    args = jax.device_put((operand, output, *arrays), run.sharding)
    carry = jax.device_put(np.zeros(8, np.float32), run.sharding)
    queued = []
    for _ in range(300):
        results, gathered, carry = run.mapped(carry, *args)
        queued.append((results, gathered))
    sums = np.stack([operand[:, b].sum() * (b + 1.0) for b in range(EXCHANGES)])
    for results, gathered in queued:
        np.testing.assert_array_equal(results, expected)
        np.testing.assert_allclose(gathered[0], sums, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(carry, np.full(8, 300.0))


@pytest.mark.sanitize
def test_several_python_threads(rng):
    operand, output, arrays, expected = cases(rng)
    programs = [spmd(many), spmd(lambda *a: many(*a, topology=STAGED))]
    for run in programs:
        run(operand, output, *arrays)

    def work(i):
        return [programs[(i + j) % 2](operand, output, *arrays)[0] for j in range(10)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for results in pool.map(work, range(4)):
            for result in results:
                np.testing.assert_array_equal(result, expected)


def test_programs_on_overlapping_meshes(rng):
    """The same devices in two meshes, launched alternately."""
    eight = reference.packed(reference.random_sizes(rng, 8, 8))
    four = reference.packed(reference.random_sizes(rng, 4, 4))
    run_eight = spmd(exchange)
    run_four = spmd(exchange, mesh_of((4,), order=[6, 1, 3, 0]))
    data_eight, data_four = reference.data(rng, eight), reference.data(rng, four)
    queued = [
        (run_eight(*data_eight, *eight.arrays()), run_four(*data_four, *four.arrays()))
        for _ in range(100)
    ]
    for got_eight, got_four in queued:
        np.testing.assert_array_equal(got_eight, reference.exchange(*data_eight, eight))
        np.testing.assert_array_equal(got_four, reference.exchange(*data_four, four))
