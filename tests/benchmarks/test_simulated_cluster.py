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
        "simulated": {"credit": 2 * simulated, "window": simulated},
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
    assert "Ratios are off by up to 17%." in said


MEASURED = {
    "fabric": {"servers": 2, "rails": 1, "delay": 0.25, "port_buffer": 4096},
    "topology": {"scale_out_bandwidth": 100.0, "scale_up_bandwidth": 1e9},
    "tcp": {"1:1": 0.5},
    # A flow of 50 bytes takes a second at half of the rate, and half a second to start.
    "start": {"nothing": [0.5, 0.25, 9.0], "flow": [2.0, 1.0, 9.0], "flow_bytes": 50},
    "options": {"row_bytes": 10},
    "workloads": [
        {
            "workload": "one",
            "traffic": [[0, 100], [0, 0]],
            "schemes": [
                {"scheme": "direct", "runs": 3, "median_s": 21.0, "min_s": 20.0, "max_s": 23.0},
                {"scheme": "fast", "skipped": "why"},
                {"scheme": "all_gather"},
            ],
        }
    ],
}


def test_what_is_measured_apart_is_what_is_simulated():
    planned, real = simulated_cluster.topologies(MEASURED)
    assert (planned.scale_out_bandwidth, real.scale_out_bandwidth) == (100.0, 50.0)
    assert real.scale_out_latency == pytest.approx(0.5)
    assert simulated_cluster.collecting(MEASURED) == 0.5
    (only,) = simulated_cluster.compare(MEASURED)
    # Counts, a start-up, and 1,000 bytes.
    assert only["simulated"]["window"] == pytest.approx(0.5 + 0.5 + 20)
    assert only["error"] == pytest.approx(0, abs=1e-9)


def test_page(tmp_path, capsys):
    stamped = records.stamp("a") | MEASURED
    records.write(tmp_path / "a.json", stamped)
    records.write(tmp_path / "b.json", stamped | {"tcp": {"1:1": 0.25}})
    command = ["--records", str(tmp_path / "a.json"), "--json", str(tmp_path / "out.json")]
    assert simulated_cluster.main(command) == 0
    page = capsys.readouterr().out
    assert page == simulated_cluster.page(records.read(tmp_path / "out.json"), "simulated cluster")
    assert "cables of 250 ms. To collect counts takes 500.0 ms, a start-up 500.0 ms" in page
    assert "| one | direct | 3 | 21.000 | 20.000 | 23.000 | 21.000 | " in page
    command[1] = str(tmp_path / "b.json")
    assert simulated_cluster.main(command) == 1  # off by more than 15 %
