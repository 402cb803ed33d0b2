"""Output slices that overlap: refused where one asks for it, as in `jax.lax` where one does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from spmd import spmd

import fastjax
from fastjax import loopback


def exchange(*args, **options):
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x", **options)


@pytest.fixture
def meeting(rng):
    """Device 6 writes the last row that it has for device 2 over the first one of device 1."""
    meta = reference.packed(rng.integers(1, 6, (8, 8)), gap=5)
    first = meta.output_offsets[1, 2]
    meta.output_offsets[6, 2] = first - meta.send_sizes[6, 2] + 1
    text = f"device 6 and device 1 both write row {first} of the output of device 2: output_offsets"
    return meta, *reference.data(rng, meta), text


@pytest.fixture
def apart(rng):
    meta = reference.packed(rng.integers(0, 6, (8, 16)), gap=1)
    return meta, *reference.data(rng, meta)


def planned(*args):
    return exchange(*args, plan=fastjax.plan_ragged_all_to_all(args[3], axis_name="x"))


@pytest.mark.parametrize("scheduler", ["direct", "fast", "balanced"])
@pytest.mark.parametrize("local", [exchange, planned])
def test_refuses_slices_that_overlap(meeting, apart, scheduler, local):
    meta, operand, output, text = meeting
    topology = fastjax.Topology(2, 4)
    with fastjax.options(check_overlaps=True, scheduler=scheduler, topology=topology):
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(spmd(local)(operand, output, *meta.arrays()))
        meta, operand, output = apart
        got = spmd(local)(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_looks_for_none_unless_asked(meeting):
    """Either sender's rows may stay; all others are as they would be."""
    meta, operand, output, _ = meeting
    got = np.array(spmd(exchange)(operand, output, *meta.arrays()))
    expected = reference.exchange(operand, output, meta)
    row = meta.output_offsets[1, 2]
    either = [
        operand[6, meta.input_offsets[6, 2] + meta.send_sizes[6, 2] - 1],
        operand[1, meta.input_offsets[1, 2]],
    ]
    assert any(np.array_equal(got[2, row], sent) for sent in either)
    got[2, row] = expected[2, row]
    np.testing.assert_array_equal(got, expected)


def test_rows_sent_to_several_devices_are_no_mistake(apart):
    """Input slices may overlap, and so may what lands on the way back."""
    meta, operand, output = apart
    meta.input_offsets[:] = 0

    def local(operand, output, *arrays):
        return jax.grad(lambda a: (exchange(a, output, *arrays) ** 2).sum())(operand)

    with fastjax.options(check_overlaps=True):
        checked = spmd(local)(operand, output, *meta.arrays())
    np.testing.assert_array_equal(checked, spmd(local)(operand, output, *meta.arrays()))
    assert np.abs(checked).max() > 0


def test_vmap_keeps_elements_apart(meeting):
    """Elements of a batch land at the same offsets, each in its own output."""
    meta, operand, output, _ = meeting
    good = reference.packed(meta.send_sizes)

    def batched(*args):
        return jax.vmap(exchange)(*(jnp.stack([a, a]) for a in args))

    with fastjax.options(check_overlaps=True):
        got = spmd(batched)(operand, output, *good.arrays())
        with pytest.raises(
            jax.errors.JaxRuntimeError, match="device 6 and device 1 both write row"
        ):
            jax.block_until_ready(spmd(batched)(operand, output, *meta.arrays()))
    expected = reference.exchange(operand, output, good)
    np.testing.assert_array_equal(got, np.stack([expected, expected], 1))


def test_in_loopback(meeting):
    meta, operand, output, text = meeting
    with (
        fastjax.options(check_overlaps=True),
        pytest.raises(jax.errors.JaxRuntimeError, match=text),
    ):
        jax.block_until_ready(
            loopback.loopback_ragged_all_to_all(
                operand, output, *meta.arrays(), topology=fastjax.Topology(2, 4)
            )
        )
