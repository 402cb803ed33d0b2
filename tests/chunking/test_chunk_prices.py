"""What the parts of a layer are priced at: closed forms at round rates."""

import numpy as np
import pytest

from fastjax import Topology
from fastjax.chunking import prices
from fastjax.chunking.resources import Parts
from fastjax.traffic import LayerTraffic

RATES = {"scale_up_bandwidth": 1e9, "scale_out_bandwidth": 1e8}
ROUND = Topology(2, 4, **RATES, scale_up_latency=1e-4, scale_out_latency=1e-3, transfer_overhead=0)


def test_prices_are_start_up_and_rows():
    """Of 8000 rows of 100 bytes, half cross, and 1000 go to each device."""
    layer = prices.even, ROUND, 8, prices.Tokens(1000, 8, 100, 150), "direct"
    each, once = (prices.predicted(*layer, deduplicated=way) for way in (False, True))
    assert [each.out, each.back] == pytest.approx([1e-3 + 4000 * 100 / 1e8] * 2)
    assert each.copies == each.sums == 0
    # All 1000 tokens have an expert on the other server.
    assert once.out == pytest.approx(1e-3 + 1000 * 150 / 1e8)
    assert once.back == pytest.approx(1e-3 + 1000 * 100 / 1e8)
    assert [once.copies, once.sums] == pytest.approx([1e-4 + 6000 * 100 / 1e9] * 2)
    assert min(each.planning, once.planning) > 0


def test_nothing_to_move_takes_no_time():
    for topology, tokens in ((ROUND, 0), (Topology(2, 1), 100)):
        layer = prices.even, topology, 8, prices.Tokens(tokens, 1, 100, 100), "direct"
        found = prices.predicted(*layer, deduplicated=True)
        assert found.copies == found.sums == 0
        assert (found.out == 0) == (tokens == 0)


def test_the_slowest_server_counts():
    def price(traffic, topology, scheduler, *sizes):
        assert (scheduler, sizes) == (
            ("direct", (1, 1)) if topology.servers == 1 else ("fast", (2, 1))
        )
        return 1.0, float(traffic.sum()), 2.0 * traffic.sum()

    inside = np.kron(np.diag([3, 5, 3]), np.ones((2, 2), int))
    layer = LayerTraffic(np.ones((6, 6), int), np.eye(6, dtype=int), inside, 1, 3)
    how = Topology(3, 2), prices.Tokens(1, 1, 1, 2), "fast", price
    found = prices.exchanges(layer.exchanges(deduplicate=True), *how)
    assert found == Parts(2.0, out=6.0, copies=20.0, sums=40.0, back=12.0)


@pytest.mark.parametrize("servers", [2, 4])
@pytest.mark.parametrize("top_k", [1, 2, 8])
def test_how_likely_a_token_has_an_expert_on_a_server(rng, servers, top_k):
    experts = 16
    chosen = np.argsort(rng.random((20000, experts)), 1)[:, :top_k]
    share = (chosen // (experts // servers) == 0).any(1).mean()
    assert abs(prices.hit_probability(servers, experts, top_k) - share) < 0.02


def test_more_choices_than_there_are_experts_elsewhere():
    assert prices.hit_probability(2, 4, 3) == 1.0


@pytest.mark.parametrize(("experts", "wanted"), [(255, 1000 + 8 * 5), (256, 1000 + 8 * 6)])
def test_numbers_and_weights_cross_with_a_row(experts, wanted):
    assert prices.crossing_row_bytes(1000, 8, experts) == wanted
