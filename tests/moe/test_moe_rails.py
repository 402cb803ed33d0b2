"""Which rails rows cross by to another server: balanced, with the fewest moves, whole numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import fastjax
from fastjax.moe.servers import Servers
from fastjax.traced.nonnegative import quotient
from fastjax.traffic import landing

RATES = (0.0, 1.0, 10e9, 25e9, 50e9, 400e9)
SHAPES = ((2, 1), (2, 4), (3, 3), (5, 2), (8, 1))


@functools.cache
def servers_of(n, m, nics):
    """Servers, some with NICs of other speeds or that failed, and their compiled function."""
    rates = None
    if nics:
        rates = np.random.default_rng(nics).choice(RATES, (n, m))
        rates[:, 0] = np.where(rates[:, 0] == 0, 50e9, rates[:, 0])  # one has to work
        rates = tuple(rates.ravel())
    topology = fastjax.Topology(n, m, nic_bandwidths=rates)
    servers = Servers(topology, tuple(range(n * m)), n * m)
    return servers, jax.jit(functools.partial(rows_to_devices, servers=servers))


def rows_to_devices(wanted, servers):
    """Traced, as layers have it, of rows by rank, shape (ranks, servers)."""
    by_server = wanted.reshape(servers.count, servers.devices, servers.count)
    return landing.rows_to_devices(by_server, servers.rail_shares(), jnp, quotient)


@st.composite
def problems(draw):
    """Servers, and rows of devices for servers."""
    n, m = draw(st.sampled_from(SHAPES))
    most = draw(st.sampled_from([1, 7, 1000, 2**28 // (n * m)]))
    rows = st.integers(0, most)
    wanted = draw(st.lists(st.lists(rows, min_size=n, max_size=n), min_size=n * m, max_size=n * m))
    return *servers_of(n, m, draw(st.integers(0, 4))), np.array(wanted, np.int32)


@settings(max_examples=200)
@given(problems())
def test_rows_are_balanced_with_the_fewest_moves(problem):
    servers, traced, wanted = problem
    n, m = servers.count, servers.devices
    sent = np.asarray(traced(wanted), np.int64)
    shares = servers.rail_shares()
    by_server = wanted.reshape(n, m, n).astype(np.int64)
    np.testing.assert_array_equal(landing.rows_to_devices(by_server, shares), sent)
    owner = np.arange(n * m) // m
    apart = owner[:, None] != np.arange(n)
    # (source server, its device, target server, its device)
    blocks = sent.reshape(n, m, n, m)
    assert sent.min(initial=0) >= 0
    np.testing.assert_array_equal(blocks.sum(3).reshape(n * m, n), wanted * apart)
    carried = blocks.sum(1)  # (source, target, rail)
    quota = shares / shares.sum(2, keepdims=True) * carried.sum(2, keepdims=True)
    assert np.abs(carried - quota).max(initial=0) < 1
    # No more leave their own rail than must.
    have = blocks.sum(3).transpose(0, 2, 1)
    stay = np.einsum("sktk->stk", blocks)
    np.testing.assert_array_equal(stay, np.minimum(have, carried))


@settings(max_examples=100)
@given(problems())
def test_there_is_room_for_all_rows(problem):
    servers, traced, wanted = problem
    tokens = int(wanted.max(initial=0))
    sent = np.asarray(traced(wanted), np.int64)
    full = np.asarray(traced(np.full_like(wanted, tokens)), np.int64)
    room = landing.room(tokens, servers.rail_shares())
    assert max(sent.sum(0).max(), full.sum(0).max()) <= room
    assert servers.topology.nic_bandwidths or room == (servers.count - 1) * tokens


def test_failed_nics_carry_nothing_as_long_as_another_works():
    topology = fastjax.Topology(2, 2, nic_bandwidths=(0, 50e9, 50e9, 50e9))
    servers = Servers(topology, (0, 1, 2, 3), 4)
    sent = np.asarray(rows_to_devices(jnp.full((4, 2), 6, jnp.int32), servers))
    np.testing.assert_array_equal(sent[:2, 2:].sum(0), [0, 12])
    # Where each rail has a NIC that failed, rows go round them all the same.
    crossed = fastjax.Topology(2, 2, nic_bandwidths=(0, 50e9, 50e9, 0))
    sent = rows_to_devices(jnp.full((4, 2), 6, jnp.int32), Servers(crossed, (0, 1, 2, 3), 4))
    np.testing.assert_array_equal(np.asarray(sent)[:2, 2:], 6 * np.eye(2))


def test_numbers_of_experts_on_a_mesh_in_any_order():
    servers = Servers(fastjax.Topology(2, 2), (3, 0, 2, 1), 8)
    assert servers.server_of_expert().tolist() == [1, 1, 0, 0, 1, 1, 0, 0, 2]
    assert servers.number_in_server().tolist() == [3, 4, 1, 2, 1, 2, 3, 4, 0]
