"""Experts that tokens choose, made up: different, by popularity, and of few groups."""

import math

import numpy as np
import pytest

from fastjax.errors import ArgumentError
from fastjax.traffic import ROUTINGS, Routing, layer_traffic, zipf


@pytest.mark.parametrize("name", list(ROUTINGS))
def test_choices_of_models(name):
    routing = ROUTINGS[name]
    chosen = routing.choices(2, 300, exponent=0.8, seed=1)
    assert chosen.shape == (2, 300, routing.top_k)
    assert chosen.dtype == np.int64
    assert chosen.min() >= 0
    assert chosen.max() < routing.num_experts
    assert (np.diff(chosen, axis=2) > 0).all()
    groups = np.sort(chosen // (routing.num_experts // routing.groups), axis=2)
    assert ((np.diff(groups, axis=2) > 0).sum(2) + 1).max() <= routing.top_groups * (
        1 if routing.groups > 1 else routing.top_k
    )
    assert routing.source
    assert routing.choices(2, 0).shape == (2, 0, routing.top_k)
    np.testing.assert_array_equal(chosen, routing.choices(2, 300, exponent=0.8, seed=1))
    assert (chosen != routing.choices(2, 300, exponent=0.8, seed=2)).any()


def test_one_choice_is_an_expert_with_its_popularity():
    counts = np.bincount(Routing(8, 1).choices(4, 20_000, exponent=1.0, seed=3).ravel())
    assert np.abs(np.sort(counts)[::-1] - zipf(8, 1.0) * 80_000).max() < 600
    assert counts.argmax() != 0  # in random order


def test_without_groups_and_skew_any_experts_are_as_likely():
    """By the closed form of how many servers a token goes to."""
    layer = layer_traffic(Routing(64, 8).choices(16, 2000), servers=4, num_experts=64)
    wanted = 3 * (1 - math.comb(48, 8) / math.comb(64, 8))
    assert layer.crossing_per_token(deduplicate=True) == pytest.approx(wanted, rel=0.01)
    assert layer.crossing_per_token(deduplicate=False) == pytest.approx(8 * 3 / 4, rel=0.01)


def test_groups_that_are_left_have_the_two_best_experts():
    """Expert 0 is nearly always best, experts 2 and 3 are next: together they are better."""
    routing = Routing(6, 2, 3, 1)
    scores = np.array([[9, -9, 5, 5, 4, 3], [9, 2, 5, 5, 4, 3], [0, 0, 1, 1, 3, -3]], np.float32)
    left = np.isfinite(routing._in_best_groups(scores))
    assert left.reshape(3, 3, 2).all(2).tolist() == [
        [False, True, False],
        [True, False, False],
        [False, True, False],
    ]
    assert left.sum() == 6


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"num_experts": 0}, "num_experts must be an integer, 1 or more"),
        ({"top_k": 0}, "top_k must be an integer, from 1 to 8; got 0"),
        ({"top_k": 9}, "top_k must be an integer, from 1 to 8; got 9"),
        ({"groups": 3, "top_groups": 3}, "8 experts do not divide into 3 groups"),
        ({"groups": 0}, "groups must be an integer, 1 or more"),
        ({"groups": 4, "top_groups": 5}, "top_groups must be an integer, from 1 to 4"),
        ({"groups": 4, "top_groups": 1, "top_k": 3}, "top_k must be an integer, from 1 to 2"),
        ({"width": 0}, "width must be an integer, 1 or more"),
    ],
)
def test_impossible_routings_are_refused(fields, told):
    with pytest.raises(ArgumentError, match=told):
        Routing(**{"num_experts": 8, "top_k": 2, **fields})


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        ((0, 1), {}, "devices must be an integer, 1 or more"),
        ((1, -1), {}, "tokens must be an integer, 0 or more"),
        ((1, 1), {"exponent": -1}, "exponent must be a number, from 0 to 20"),
    ],
)
def test_impossible_choices_are_refused(arguments, options, told):
    with pytest.raises(ArgumentError, match=told):
        ROUTINGS["mixtral-8x7b"].choices(*arguments, **options)
