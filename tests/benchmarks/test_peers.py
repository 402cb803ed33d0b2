"""Peers made by hand: what their transfers deliver, by a replay that knows nothing of them."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import peers
import plan_oracle as po
from plan_problems import KINDS, make_traffic

from fastjax import Topology

# Whether each device of a stage sends to one, and receives from one.
BUILDERS = {
    "as published": (peers.as_published, True),
    "pxn": (peers.pxn, False),
    "two-tier": (peers.two_tier, False),
}


@st.composite
def problems(draw):
    n, m = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return make_traffic(draw(st.sampled_from(KINDS)), n, m, 60, rng), Topology(n, m)


@hypothesis.given(problem=problems(), name=st.sampled_from(list(BUILDERS)))
def test_peers_deliver(problem, name):
    build, one_to_one = BUILDERS[name]
    traffic, topology = problem
    moves = build(traffic, topology)
    po.check_delivery(traffic, topology, moves, int(moves["stage"].max(initial=-1)) + 1)
    if one_to_one:
        po.check_one_to_one(moves)


@hypothesis.given(problem=problems())
def test_published_rails_carry_equal_shares(problem):
    traffic, topology = problem
    n, m = topology.servers, topology.devices_per_server
    moves = peers.as_published(traffic, topology)
    crossing = moves[moves["phase"] == po.SCALE_OUT]
    assert (crossing["src"] % m == crossing["dst"] % m).all()
    carried = np.zeros((n, n, m), np.int64)
    ends = (crossing["src"] // m, crossing["dst"] // m, crossing["src"] % m)
    np.add.at(carried, ends, crossing["rows"])
    np.testing.assert_array_equal(carried.sum(axis=2), po.server_matrix(traffic, n, m))
    assert np.ptp(carried, axis=2).max() <= 1


def test_two_tier_sends_a_token_once_to_each_server():
    """By hand: device 1's token wants both devices of the other server, one of them twice."""
    choices = np.array([[[0, 1, 1]], [[5, 6, 7]], [[2, 6, 6]], [[7, 7, 6]]])
    found = peers.two_tier_once(choices, Topology(2, 2), 8)
    np.testing.assert_array_equal(found, [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 2]])
    moves = peers.two_tier(found, Topology(2, 2))
    crossing = moves[moves["phase"] == po.SCALE_OUT]
    assert crossing[["src", "dst", "rows"]].tolist() == [(1, 3, 1), (2, 0, 1)]


@hypothesis.given(
    servers=st.integers(1, 4), local=st.integers(1, 3), top_k=st.integers(1, 4), seed=st.integers(0)
)
def test_two_tier_once_token_by_token(servers, local, top_k, seed):
    topology, devices = Topology(servers, local), servers * local
    choices = np.random.default_rng(seed).integers(0, 2 * devices, (devices, 5, top_k))
    found = peers.two_tier_once(choices, topology, 2 * devices)
    crossing, copies = np.zeros((devices, servers), int), np.zeros((devices, devices), int)
    for device, experts in ((d, e) for d in range(devices) for e in choices[d].tolist()):
        owners = {expert // 2 for expert in experts}
        for server in {owner // local for owner in owners} - {device // local}:
            crossing[device, server] += 1
        for owner in owners:
            away = owner // local != device // local
            copies[owner // local * local + device % local if away else device, owner] += 1
    rails = own_rails_of(found, servers, local)
    np.testing.assert_array_equal(rails, crossing)
    # What comes to the device of the same place is copied to those who want it, the first included.
    handed = np.zeros((devices, devices), int)
    for src, dst in np.ndindex(devices, devices):
        away = src // local != dst // local
        handed[dst // local * local + src % local if away else src, dst] += found[src, dst]
    np.testing.assert_array_equal(handed, copies)


def own_rails_of(traffic, servers, local):
    """Rows that each device sends to each other server."""
    rows = traffic.reshape(servers * local, servers, local).sum(2)
    rows[np.arange(servers * local), np.arange(servers * local) // local] = 0
    return rows
