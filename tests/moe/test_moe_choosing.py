"""Whether tokens cross once is chosen as well as the simulator can tell."""

import numpy as np
import pytest

import fastjax
from fastjax.moe import choosing
from fastjax.moe.servers import Servers


@pytest.mark.parametrize(
    ("servers", "top_k", "wanted"),
    [(1, 8, False), (4, 1, False), (2, 8, True), (4, 8, True), (64, 2, False)],
)
def test_where_there_is_something_to_gain(servers, top_k, wanted):
    topology = fastjax.Topology(servers, 8)
    found = Servers(topology, tuple(range(topology.num_devices)), 8 * servers)
    tokens = choosing.Tokens(4096, top_k, 4096, 4096 + 5 * top_k)
    assert choosing.crosses_once(found, tokens, "auto") == wanted


@pytest.mark.parametrize("servers", [2, 4])
@pytest.mark.parametrize("top_k", [1, 2, 8])
def test_how_likely_a_token_has_an_expert_on_a_server(rng, servers, top_k):
    experts = 16
    chosen = np.argsort(rng.random((20000, experts)), 1)[:, :top_k]
    share = (chosen // (experts // servers) == 0).any(1).mean()
    assert abs(choosing.hit_probability(servers, experts, top_k) - share) < 0.02


def test_more_choices_than_there_are_experts_elsewhere():
    assert choosing.hit_probability(2, 4, 3) == 1.0
