"""Who gets room where there is not enough for all."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given

from fastjax.moe import routing as room

share_out, keep = jax.jit(room.share_out), jax.jit(room.keep, static_argnames="alignment")


def by_hand(wanted, available):
    """One at a time, to whoever has least and still wants: the first of these."""
    given_out = [0] * len(wanted)
    for _ in range(min(available, sum(wanted))):
        short = [i for i, w in enumerate(wanted) if given_out[i] < w]
        given_out[min(short, key=lambda i: (given_out[i], i))] += 1
    return given_out


@given(
    st.lists(st.lists(st.integers(0, 12), min_size=4, max_size=4), min_size=3, max_size=3),
    st.lists(st.integers(0, 50), min_size=3, max_size=3),
)
def test_a_level_that_is_the_same_for_all(wanted, available):
    got = share_out(jnp.array(wanted, jnp.int32), jnp.array(available, jnp.int32))
    assert got.tolist() == [by_hand(*pair) for pair in zip(wanted, available, strict=True)]


def test_as_many_as_int32_counts():
    most = 2**31 - 1
    wanted = jnp.array([[most, 0], [most // 2, most // 2], [most - 5, 5]], jnp.int32)
    for available in (most, most - 1, most // 2, 1, 0):
        got = np.asarray(share_out(wanted, jnp.full(3, available, jnp.int32)), np.int64)
        np.testing.assert_array_equal(got.sum(1), np.minimum(wanted.sum(1), available))
        assert (got <= wanted).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(0, 12))
def test_padding_counts(seed, alignment, tiles):
    """Kept rows fit with padding, and a device that is full has no tile to spare for who lost."""
    counts = np.random.default_rng(seed).integers(0, 9, (3, 3, 4)).astype(np.int32)
    kept = np.asarray(keep(jnp.array(counts), tiles * alignment, alignment))
    assert (kept >= 0).all()
    assert (kept <= counts).all()
    used = -(-kept.sum(0) // alignment)
    assert (used.sum(1) <= tiles).all()
    for device in range(3):
        for expert in range(4):
            lost = (counts - kept)[:, device, expert].sum()
            if lost:
                assert used[device].sum() == tiles
                assert kept[:, device, expert].sum() == used[device, expert] * alignment
                assert used[device, expert] >= used[device].max() - 1
