"""Whether tokens cross once is chosen as well as the simulator can tell."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastjax
from fastjax.chunking import deduplication, popularity, prices
from fastjax.chunking.resources import schedule
from fastjax.simulation import PRESETS, Fabric, layers
from fastjax.traffic import Routing, layer_traffic


def chosen_by_default(topology, tokens, num_experts):
    return deduplication.crosses_once(topology, num_experts, tokens, "auto")


@pytest.mark.parametrize(
    ("servers", "top_k", "wanted"),
    [(1, 8, False), (4, 1, False), (2, 8, True), (4, 8, True), (64, 2, False)],
)
def test_where_there_is_something_to_gain(servers, top_k, wanted):
    tokens = prices.Tokens(4096, top_k, 4096, 4096 + 5 * top_k)
    assert chosen_by_default(fastjax.Topology(servers, 8), tokens, 8 * servers) == wanted


def test_nothing_to_send():
    tokens = prices.Tokens(0, 8, 4096, 4136)
    assert not chosen_by_default(fastjax.Topology(4, 8), tokens, 32)


@pytest.mark.parametrize(
    ("servers", "top_k", "row_bytes"), list(itertools.product([2, 4, 8], [2, 4, 8], [256, 16384]))
)
def test_it_must_be_faster_for_even_and_for_skewed_experts(servers, top_k, row_bytes):
    topology = PRESETS["h200"].topology(servers)
    size = prices.crossing_row_bytes(row_bytes, top_k, 256 // servers)
    tokens = prices.Tokens(4096, top_k, row_bytes, size)
    wanted = True
    for traffic in (prices.even, deduplication.skewed):
        layer = traffic, topology, 256, tokens, "auto"
        once, each = (prices.predicted(*layer, deduplicated=way) for way in (True, False))
        wanted &= once.planning + once.out + once.copies < each.planning + each.out
    assert chosen_by_default(topology, tokens, 256) == wanted


@pytest.mark.parametrize(("servers", "top_k"), [(4, 4), (8, 4), (2, 2), (2, 8)])
@pytest.mark.parametrize("exponent", [0.0, 0.8])
def test_it_is_not_far_from_the_better_way(servers, top_k, exponent):
    """Beside simulations of tokens drawn at random; 6 % is what no rule avoids, and 2 % noise."""
    topology, fabric = PRESETS["h200"].topology(servers), Fabric(incast=PRESETS["h200"].incast)
    choices = Routing(256, top_k).choices(8 * servers, 1024, exponent=exponent, seed=0)
    layer = layer_traffic(choices, servers=servers, num_experts=256)
    size = prices.crossing_row_bytes(16384, top_k, 256 // servers)
    tokens = prices.Tokens(1024, top_k, 16384, size)
    simulated = topology, tokens, "auto", layers.by_simulation(fabric)
    each, once = (
        schedule([prices.exchanges(layer.exchanges(deduplicate=way), *simulated)]).total
        for way in (False, True)
    )
    taken = once if chosen_by_default(topology, tokens, 256) else each
    assert taken <= 1.08 * min(once, each)


@given(st.integers(1, 300), st.integers(1, 16), st.sampled_from([0.8, 1.0]))
def test_as_many_are_chosen_as_a_token_chooses(experts, top_k, exponent):
    found = popularity.chosen(experts, top_k, exponent)
    assert len(found) == experts
    assert sum(found) == pytest.approx(min(experts, top_k), rel=1e-5)
    assert all(0 < share <= 1 for share in found)
    ordered = sorted(found, reverse=True)
    odds = [share / (1 - share) for share in ordered if share < 1 - 1e-9]
    for rank, value in enumerate(odds, 1):
        assert value == pytest.approx(odds[0] / rank**exponent, rel=1e-3)


def test_popular_experts_are_spread():
    of_device = popularity.of_runs(popularity.chosen(256, 8), 64)
    top = np.argsort(popularity.chosen(256, 8))[::-1][:8] // 32
    assert len(set(top.tolist())) >= 6
    assert sum(of_device) == pytest.approx(8)
    assert max(of_device) > 3 * min(of_device)


@pytest.mark.parametrize("servers", [2, 4, 8])
@pytest.mark.parametrize("top_k", [2, 4, 8])
def test_how_likely_a_token_has_a_popular_expert_on_a_server(rng, servers, top_k):
    """Beside tokens drawn one by one, without returning what is drawn."""
    experts = 64
    rank = np.empty(experts)
    rank[np.argsort(popularity.chosen(experts, top_k))[::-1]] = np.arange(1, experts + 1)
    keys = rng.gumbel(size=(20000, experts)) - np.log(rank)
    drawn = np.argsort(-keys, 1)[:, :top_k] // (experts // servers)
    share = [(drawn == server).any(1).mean() for server in range(servers)]
    of_server = popularity.of_runs(popularity.chosen(experts, top_k), servers)
    assert np.abs(np.array(popularity.hits(of_server, top_k)) - share).max() < 0.15


def test_all_choices_in_one_place():
    assert popularity.hits([2.0, 0.0], 2) == [1.0, 0.0]
    assert popularity.hits([1.0, 1.0], 2) == [0.75, 0.75]
