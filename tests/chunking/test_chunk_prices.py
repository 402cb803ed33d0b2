"""What the parts of a layer are priced at: closed forms at round rates."""

import numpy as np
import pytest

from fastjax import Topology
from fastjax.chunking import prices

RATES = {"scale_up_bandwidth": 1e9, "scale_out_bandwidth": 1e8}
ROUND = Topology(2, 4, **RATES, scale_up_latency=1e-4, scale_out_latency=1e-3, transfer_overhead=0)


def test_prices_are_start_up_and_rows():
    """Of 8000 rows of 100 bytes, half cross, and 1000 go to each device."""
    each = prices.of_each_choice(ROUND, 8000, "direct", 100)
    assert each.exchange == pytest.approx(1e-3 + 4000 * 100 / 1e8)
    crossing = prices.of_crossing(ROUND, 8000, "direct", 100)
    assert crossing.exchange == pytest.approx(1e-3 + 8000 * 100 / 1e8)
    inside = prices.of_inside(ROUND, 8000, 100)
    assert inside.exchange == pytest.approx(1e-4 + 6000 * 100 / 1e9)
    assert min(each.planning, crossing.planning, inside.planning) > 0


def test_nothing_to_move_takes_no_time():
    assert prices.of_crossing(ROUND, 0, "direct", 100).exchange == 0
    assert prices.of_inside(Topology(2, 1), 100, 100).exchange == 0


@pytest.mark.parametrize("servers", [2, 4])
@pytest.mark.parametrize("top_k", [1, 2, 8])
def test_how_likely_a_token_has_an_expert_on_a_server(rng, servers, top_k):
    experts = 16
    chosen = np.argsort(rng.random((20000, experts)), 1)[:, :top_k]
    share = (chosen // (experts // servers) == 0).any(1).mean()
    assert abs(prices.hit_probability(servers, experts, top_k) - share) < 0.02
    assert prices.crossing_rows(1000, servers, experts, top_k) == round(
        1000 * prices.hit_probability(servers, experts, top_k)
    )


def test_more_choices_than_there_are_experts_elsewhere():
    assert prices.hit_probability(2, 4, 3) == 1.0


@pytest.mark.parametrize(("experts", "wanted"), [(255, 1000 + 8 * 5), (256, 1000 + 8 * 6)])
def test_numbers_and_weights_cross_with_a_row(experts, wanted):
    assert prices.crossing_row_bytes(1000, 8, experts) == wanted
