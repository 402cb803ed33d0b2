"""Whether tokens that all devices have are divided, or results summed."""

import pytest

from fastjax import Topology
from fastjax.chunking import levelling
from fastjax.chunking.replicating import Replicated, predicted_times, summing_is_faster


def tokens_of(count, width=4096, top_k=8):
    return Replicated(count, top_k, 2 * width, 2 * width, 4 * width)


@pytest.mark.parametrize("topology", [Topology(1, 8), Topology(4, 8), Topology(8, 1)])
def test_few_tokens_are_summed_and_many_divided(topology):
    """And there is one number of tokens from which on they are divided."""
    ways = [summing_is_faster(topology, tokens_of(2**power), "auto", "gpu") for power in range(16)]
    assert ways[0]
    assert not ways[-1]
    assert ways == sorted(ways, reverse=True)


def test_times_of_start_ups_and_bytes():
    """Of one server: 3 doublings, and 7/8 of all bytes, there and back."""
    rate, latency, count, width = 1e9, 1e-5, 64, 1024
    topology = Topology(1, 8, scale_up_bandwidth=rate, scale_up_latency=latency)
    divided, summed = predicted_times(topology, tokens_of(count, width), "direct", "cpu")
    in_memory = 4 * count * 8 * 2 * width / levelling.memory_rate("cpu")
    assert summed == pytest.approx(2 * (3 * latency + 7 / 8 * count * 4 * width / rate) + in_memory)
    gathered = 6 * latency + 7 / 8 * count * 2 * width / rate
    rows_there_and_back = 2 * 7 * 8 * 2 * width / rate  # 8 of its 64 rows stay
    assert divided > gathered + rows_there_and_back + in_memory / 8
