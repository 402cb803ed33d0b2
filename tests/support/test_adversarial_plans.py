"""Traffic that was made to be hard for planners: that the makers make it so."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import plan_oracle as po
import pytest
from plan_problems import (
    balanced_servers,
    permuted_servers,
    spread_over_devices,
)
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching


def _plain_birkhoff(servers):
    """How many permutations the textbook's way takes: any one, as long as its rows last."""
    left = servers.copy()
    rows = np.arange(len(left))
    count = 0
    while left.any():
        columns = maximum_bipartite_matching(csr_array(left > 0), perm_type="column")
        left[rows, columns] -= left[rows, columns].min()
        count += 1
    return count


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_balanced_servers_take_as_many_permutations_as_can_be(n):
    rng = np.random.default_rng(n)
    servers = balanced_servers(n, rng, largest=10**6)
    assert len({*servers.sum(0), *servers.sum(1)}) == 1
    assert servers.min() > 0
    assert _plain_birkhoff(servers) == n * n - 2 * n + 2


@hypothesis.given(
    n=st.integers(1, 6),
    weights=st.lists(st.integers(1, 9), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_permuted_servers_are_a_sum_of_permutations(n, weights, seed):
    servers = permuted_servers(n, weights, np.random.default_rng(seed))
    assert {*servers.sum(0), *servers.sum(1)} == {sum(weights)}
    assert (servers > 0).sum() <= n * len(weights)


@hypothesis.given(n=st.integers(1, 4), m=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_rows_spread_over_devices_keep_their_servers(n, m, seed):
    rng = np.random.default_rng(seed)
    servers = rng.integers(0, 50, (n, n))
    np.fill_diagonal(servers, 0)
    traffic = spread_over_devices(servers, m, rng)
    np.testing.assert_array_equal(po.server_matrix(traffic, n, m), m * servers)
