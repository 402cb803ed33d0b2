"""A layer's traffic, a row for each choice or for each server: by hand, and token by token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fastjax.errors import ArgumentError
from fastjax.traffic import (
    Exchange,
    RoutingRecord,
    choices_from_routing,
    layer_traffic,
    traffic_from_routing,
)

RATES = (0.0, 1.0, 25e9, 50e9, 400e9)


@st.composite
def layers(draw):
    """Choices, some of them none, on servers of which some have NICs of other speeds."""
    n, m = draw(st.sampled_from([(1, 4), (2, 1), (2, 3), (3, 2), (4, 2)]))
    num_experts = n * m * draw(st.integers(1, 3))
    tokens, top_k = draw(st.integers(0, 6)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    choices = rng.integers(-1, num_experts, (n * m, tokens, top_k))
    nics = None
    if draw(st.booleans()):
        nics = draw(st.lists(st.sampled_from(RATES), min_size=n * m, max_size=n * m))
    return n, m, num_experts, choices, nics


@settings(max_examples=150)
@given(layers())
def test_every_token_by_itself(problem):
    n, m, num_experts, choices, nics = problem
    found = layer_traffic(choices, servers=n, num_experts=num_experts, nic_bandwidths=nics)
    here = num_experts // (n * m)
    each, inside, tokens = np.zeros((n * m, n * m)), np.zeros((n * m, n * m)), 0
    left = found.crossing.copy()
    for device, server in np.ndindex(n * m, n):
        for experts in choices[device].tolist():
            owners = [e // here for e in experts if 0 <= e // here // m == server]
            at = device
            if owners and server != device // m:
                at = next(d for d in range(server * m, (server + 1) * m) if left[device, d])
                left[device, at] -= 1
            for owner in owners:
                each[device, owner] += 1
                inside[at, owner] += 1
    assert not left.any()
    tokens = sum(max(experts) >= 0 for experts in choices.reshape(-1, choices.shape[2]).tolist())
    np.testing.assert_array_equal(found.each, each)
    np.testing.assert_array_equal(found.inside, inside)
    assert found.tokens == tokens
    apart = np.arange(n * m)[:, None] // m != np.arange(n * m) // m
    crossing = {True: found.crossing.sum(), False: each[apart].sum()}
    for way, rows in crossing.items():
        assert found.crossing_per_token(deduplicate=way) == pytest.approx(rows / max(1, tokens))


def test_two_servers_by_hand():
    """Device 0 has three tokens for the other server, of which its rail carries two."""
    choices = np.array(
        [
            [[2, 3], [0, 2], [3, 1], [-1, -1]],
            [[2, 2], [1, 1], [0, -1], [-1, -1]],
            [[2, 3], [-1, -1], [-1, -1], [-1, -1]],
            [[0, 1], [-1, -1], [-1, -1], [-1, -1]],
        ]
    )
    found = layer_traffic(choices, servers=2, num_experts=4)
    np.testing.assert_array_equal(
        found.each, [[1, 1, 2, 2], [1, 2, 2, 0], [0, 0, 1, 1], [1, 1, 0, 0]]
    )
    # Of four rows, each rail carries two. The one row that goes back is rail 0's to carry.
    np.testing.assert_array_equal(
        found.crossing, [[0, 0, 2, 1], [0, 0, 0, 1], [0] * 4, [1, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        found.inside, [[2, 2, 0, 0], [1, 2, 0, 0], [0, 0, 3, 2], [0, 0, 2, 1]]
    )
    assert found.tokens == 8
    assert found.crossing_per_token(deduplicate=True) == 5 / 8
    assert found.crossing_per_token(deduplicate=False) == 8 / 8


@pytest.mark.parametrize(
    ("choices", "options", "told"),
    [
        (np.zeros((4, 2), int), {}, r"shape \(devices, tokens, k\); got int64 of shape \(4, 2\)"),
        (np.zeros((4, 1, 1)), {}, r"got float64"),
        (np.zeros((0, 1, 1), int), {}, r"of shape \(0, 1, 1\)"),
        (np.full((4, 1, 1), 4), {}, "from 0 to 3, or -1 for none; got 4"),
        (np.full((4, 1, 1), -2), {}, "got -2"),
        (np.zeros((4, 1, 1), int), {"servers": 3}, "4 devices do not divide into 3 servers"),
        (np.zeros((4, 1, 1), int), {"servers": 0}, "servers must be an integer, 1 or more"),
        (np.zeros((4, 1, 1), int), {"num_experts": 6}, "6 experts do not divide over 4 devices"),
        (np.zeros((4, 1, 1), int), {"num_experts": 0}, "num_experts must be an integer, 1"),
        (np.zeros((4, 1, 1), int), {"nic_bandwidths": [1, 2, 3]}, "must be 4 numbers of 0 or more"),
        (np.zeros((4, 1, 1), int), {"nic_bandwidths": [1, 2, 3, -1]}, "one for each device"),
    ],
)  # fmt: skip
def test_what_is_no_layer_is_refused(choices, options, told):
    with pytest.raises(ArgumentError, match=told):
        layer_traffic(choices, **{"servers": 2, "num_experts": 4, **options})


def test_choices_of_a_trace():
    written = [
        RoutingRecord(1, 0, 0, np.array([[0, 1], [2, 3]])),
        RoutingRecord(1, 0, 1, np.array([[3, 2]])),
        RoutingRecord(0, 5, 1, np.array([[1]])),
        RoutingRecord(0, 5, 0, np.zeros((0, 1), int)),
        RoutingRecord(1, 0, 1, np.array([[0, 2]])),
    ]
    options = {"devices": 2, "num_experts": 4, "require_all": False}
    found = choices_from_routing(written, **options)
    first = Exchange(0, "decoder", None, 5, 0)
    again = Exchange(1, "decoder", None, 0, 1)
    assert list(found) == [first, again._replace(repeat=0), again]
    assert found[first].tolist() == [[[-1]], [[1]]]
    assert found[again._replace(repeat=0)].tolist() == [[[0, 1], [2, 3]], [[3, 2], [-1, -1]]]
    assert found[again].tolist() == [[[-1, -1]], [[0, 2]]]
    matrices = traffic_from_routing(written, **options)
    for exchange, choices in found.items():
        layer = layer_traffic(choices, servers=1, num_experts=4)
        np.testing.assert_array_equal(layer.each, matrices[exchange])
    mine = choices_from_routing(written, devices=1, num_experts=4, ranks=[1])
    assert [choices.tolist() for choices in mine.values()] == [[[[1]]], [[[3, 2]]], [[[0, 2]]]]


def test_traces_without_choices_are_refused():
    record = RoutingRecord(1, 0, 0, np.array([[0, 1]]))

    def read(**options):
        return lambda: choices_from_routing([record], **{"devices": 2, "num_experts": 4, **options})

    refused(ArgumentError, read(), "no record of rank(s) 1")
    refused(ArgumentError, read(num_experts=3), "3 experts do not divide over 2 devices")
    refused(ArgumentError, read(devices=0), "devices must be an integer, 1 or more")
    refused(ArgumentError, read(devices=1, num_experts=1), "a token has expert 1; num_experts is 1")
    refused(ArgumentError, read(ranks=[0]), "ranks must be 2 different ones")
