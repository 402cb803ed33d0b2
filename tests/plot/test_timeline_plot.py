"""Pictures of simulated exchanges: what is drawn is what the messages say."""

import itertools

import numpy as np
import pytest
from pictures import bars, overlaps, texts, timeline_of

from fastjax import Topology, make_plan, simulate, traffic
from fastjax.errors import ArgumentError
from fastjax.plot.timelines import idle_spans

LINKS = ("scale_out_out", "scale_out_in", "scale_up_out", "scale_up_in")
LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)
GBPS = {"scale_up_bandwidth": 8e9, "scale_out_bandwidth": 1e9}


def simulated(scheduler="fast", servers=3, devices=2, **options):
    matrix = traffic.pair_zipf(servers * devices, 500, seed=2)
    topology = Topology(servers, devices)
    return simulate(make_plan(matrix, topology, scheduler=scheduler, row_bytes=4096), **options)


def by_hand():
    """Two servers of two devices; 1000 rows of a byte take a NIC 1 µs, a device's fabric 1/8 µs."""
    rows = [
        (BALANCE, 0, 0, 1, 8000, 0, 1e-6, 2e-6),
        (SCALE_OUT, 0, 1, 3, 4000, 2e-6, 3e-6, 7e-6),
        (SCALE_OUT, 0, 0, 2, 2000, 2e-6, 3e-6, 7e-6),
        (SCALE_OUT, 1, 1, 3, 1000, 7e-6, 8e-6, 9e-6),
        (REDISTRIBUTE, 1, 3, 2, 8000, 9e-6, 10e-6, 12e-6),
    ]
    return timeline_of(rows, Topology(2, 2, **GBPS), lower_bound=5e-6)


def crosses(timeline, link):
    sent = timeline.messages["phase"] == SCALE_OUT
    return timeline.messages[sent == link.startswith("scale_out")]


def tracks_of(timeline, ax, shown):
    """The bars of each track, by device and link."""
    named = dict(zip(("NIC out", "NIC in", "scale-up out", "scale-up in"), LINKS, strict=True))
    labels = [label.get_text() for label in ax.get_yticklabels()]
    drawn, tracks = bars(ax), {}
    for i, (middle, name) in enumerate(zip(ax.get_yticks(), labels, strict=True)):
        device = shown[i * len(shown) // len(labels)]
        tracks[device, named[name]] = [
            b for b in drawn if middle - 0.5 <= b[2] < b[3] <= middle + 0.5
        ]
    assert sum(map(len, tracks.values())) == len(drawn)
    return tracks


@pytest.mark.parametrize("scheduler", ["fast", "direct", "spreadout", "rails"])
def test_bars_are_the_messages(scheduler):
    timeline = simulated(scheduler)
    ax = timeline.plot().axes[0]
    drawn = tracks_of(timeline, ax, range(6))
    assert len(drawn) == 6 * len(LINKS)
    for (device, link), found in drawn.items():
        messages = crosses(timeline, link)
        mine = messages[messages["src" if link.endswith("_out") else "dst"] == device]
        wanted = sorted(zip(mine["start"] * 1e6, mine["end"] * 1e6, strict=True))
        np.testing.assert_allclose(sorted(b[:2] for b in found), wanted)
    assert list(overlaps(bars(ax))) == []


def test_figures_by_hand():
    timeline = by_hand()
    np.testing.assert_allclose(np.array(idle_spans(timeline)) * 1e6, [(0, 3), (7, 8), (9, 12)])
    ax = timeline.plot().axes[0]
    assert [text for text in texts(ax) if text.endswith("%")] == [
        *("17%", "0%", "8%", "0%"),  # device 0: 2 of 12 µs out, 1 of 12 inside
        *("42%", "0%", "0%", "8%"),
        *("0%", "17%", "0%", "8%"),
        *("0%", "42%", "8%", "0%"),
    ]
    ends = [text for text in texts(ax) if text[0] in "→←"]
    assert ends == ["→2", "→3", "→3", "←0", "←1", "←1"]
    assert "12 µs, 2.40 x the lower bound" in ax.get_title(loc="left")


def test_idle_spans_of_a_simulation():
    timeline = simulated(servers=4, devices=4, synchronization="barrier")
    sent, spans = crosses(timeline, "scale_out_out"), idle_spans(timeline)
    edges = np.unique(np.concatenate([[0, timeline.completion_time], sent["start"], sent["end"]]))
    for left, right in itertools.pairwise(edges):
        middle = (left + right) / 2
        idle = not ((sent["start"] < middle) & (middle < sent["end"])).any()
        assert any(begin < middle < end for begin, end in spans) == idle or right - left < 2e-9


def test_devices_that_are_asked_for():
    timeline = simulated(servers=4, devices=8)
    ax = timeline.plot([30, 2]).axes[0]
    assert [text for text in texts(ax) if text.startswith("device")] == [
        "device 30\nserver 3",
        "device 2\nserver 0",
    ]
    assert "shown" not in ax.get_title(loc="left")
    drawn = tracks_of(timeline, ax, [30, 2])
    assert (
        len(drawn[30, "scale_out_out"]) == (crosses(timeline, "scale_out_out")["src"] == 30).sum()
    )


@pytest.mark.parametrize("devices", [[], [6], [-1], ["a"], 3, [0.5]])
def test_devices_that_there_are_not(devices):
    with pytest.raises(ArgumentError, match="must be a sequence of numbers from 0 to 5, got "):
        simulated().plot(devices)


def test_nothing_to_exchange():
    timeline = simulate(make_plan(np.zeros((4, 4), int), Topology(2, 2)))
    assert texts(timeline.plot().axes[0]) == ["nothing moves between devices"]


@pytest.mark.parametrize(
    ("scheduler", "servers", "devices"),
    [
        *(("fast", *shape) for shape in [(1, 8), (2, 1), (9, 4)]),
        *((scheduler, 4, 2) for scheduler in ("direct", "rails")),
    ],
)
def test_every_shape_can_be_drawn(tmp_path, scheduler, servers, devices):
    simulated(scheduler, servers, devices).plot().savefig(tmp_path / "plan.png", dpi=40)
    assert (tmp_path / "plan.png").stat().st_size
