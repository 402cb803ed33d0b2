"""What the package knows of schedulers is what the extension says."""

import re

import pytest

import fastjax
from fastjax import Topology, _core, scheduling
from fastjax.errors import OptionError
from fastjax.scheduling import check_scheduler_fits

COMPILED = {told[0]: scheduling.Traits(*told) for told in _core.scheduler_traits()}


def test_traits_come_by_number():
    assert tuple(COMPILED) == scheduling.NAMES
    for number, (name, its) in enumerate(COMPILED.items()):
        assert scheduling.ALL[name] == its._replace(number=number)
        assert its.chooses == (name == "auto")


def test_order_comes_from_the_extension():
    in_order = sorted(COMPILED.values(), key=lambda its: its.order)
    assert len({its.order for its in in_order}) == len(in_order)
    assert fastjax.schedulers() == (*(its.name for its in in_order), "optimal")


def test_one_more_is_known_by_what_it_says():
    more = ("toy", "nothing arrives", COMPILED["fast"].order + 1, True, False)
    found = scheduling.collect([*_core.scheduler_traits(), more])
    assert list(found)[:3] == ["auto", "fast", "toy"]
    assert found["toy"] == (*more, len(COMPILED), False)


@pytest.mark.parametrize("name", COMPILED)
def test_needs_of_nics_come_from_the_extension(name):
    topology = Topology(2, 2, nic_bandwidths=(50e9, 50e9, 50e9, 0))
    if not COMPILED[name].needs_own_nics:
        return check_scheduler_fits(name, topology)
    able = re.escape("'fast', 'balanced', 'rails' and 'auto' go round it.")
    with pytest.raises(OptionError, match=able):
        check_scheduler_fits(name, topology)
    return None


def test_fallback_is_the_least_of_all():
    words = [_core.table_words(Topology(3, 2).words, number) for number in range(len(COMPILED))]
    assert min(words) == words[_core.fallback_scheduler]
