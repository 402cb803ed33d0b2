"""The page that holds simulated exchanges beside those of the emulated cluster."""

import pytest
import records
import simulated_cluster


def exchange(workload, scheme, measured, simulated):
    return {
        "workload": workload,
        "scheme": scheme,
        "scheduler": scheme,
        "runs": 5,
        "measured": dict.fromkeys(("median", "min", "max"), measured),
        "simulated": dict.fromkeys(("credit", "barrier", "free"), simulated),
        "error": simulated / measured - 1,
    }


EXCHANGES = [
    exchange("even", "auto", 2.0, 1.9),
    exchange("even", "fast", 2.0, 1.9),
    exchange("even", "direct", 2.0, 2.2),
    exchange("even", "spreadout", 3.0, 3.3),
    exchange("skewed", "auto", 4.0, 4.0),
    exchange("skewed", "direct", 6.0, 7.0),
]


def test_ratios():
    found = simulated_cluster.ratios(EXCHANGES)
    assert [each[:3] for each in found] == [
        ("even", "direct", "auto"),
        ("even", "direct", "fast"),
        ("even", "spreadout", "fast"),
        ("skewed", "direct", "auto"),
    ]
    assert found[2][3:] == pytest.approx((1.5, 3.3 / 1.9))
    lines = simulated_cluster.ratio_table(EXCHANGES).splitlines()[2:]
    assert lines[2] == "| even | spreadout | fast | 1.50 | 1.74 | +15.8% |"
    assert lines[3] == "| skewed | direct | auto | 1.50 | 1.75 | +16.7% |"


def test_limits():
    said = simulated_cluster.limits(EXCHANGES)
    assert "3 of the 6 exchanges are simulated within 1 % of the best" in said
    assert "Exchanges last 2.0 s and more" in said


def test_page():
    record = {"exchanges": EXCHANGES, "incast": "none", "measured_on": records.stamp("a")}
    page = simulated_cluster.page(record, "a title")
    assert "Ratios are off by up to 17%." in page
    assert "| skewed | direct | auto | 1.50 | 1.75 | +16.7% |" in page
