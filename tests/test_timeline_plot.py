"""Pictures of simulated exchanges: what is drawn is what the messages say."""

import itertools
import sys

import matplotlib.colors
import matplotlib.figure
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from pictures import bars, overlaps, rounded, texts, timeline_of

from fastjax import Topology, make_plan, simulate, traffic
from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.plot.links import PHASE_COLOURS, server_colours
from fastjax.plot.timelines import busiest
from fastjax.plot.tracks import side_by_side

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


def lanes_of(timeline, ax, shown):
    """The bars of each lane, by device and link."""
    named = dict(zip(("NIC out", "NIC in", "scale-up out", "scale-up in"), LINKS, strict=True))
    labels = [label.get_text() for label in ax.get_yticklabels()]
    drawn, lanes = bars(ax), {}
    for i, (middle, name) in enumerate(zip(ax.get_yticks(), labels, strict=True)):
        device = shown[i * len(shown) // len(labels)]
        lanes[device, named[name]] = [
            b for b in drawn if middle - 0.5 <= b[2] < b[3] <= middle + 0.5
        ]
    assert sum(map(len, lanes.values())) == len(drawn)
    return lanes


@pytest.mark.parametrize("scheduler", ["fast", "direct", "spreadout", "rails"])
def test_bars_are_the_messages(scheduler):
    timeline = simulated(scheduler)
    ax = timeline.plot().axes[0]
    drawn = lanes_of(timeline, ax, range(6))
    assert len(drawn) == 6 * len(LINKS)
    for (device, link), found in drawn.items():
        messages = crosses(timeline, link)
        mine = messages[messages["src" if link.endswith("_out") else "dst"] == device]
        wanted = sorted(zip(mine["start"] * 1e6, mine["end"] * 1e6, strict=True))
        np.testing.assert_allclose(sorted(b[:2] for b in found), wanted)
    assert list(overlaps(bars(ax))) == []


def hue_of(colour):
    return matplotlib.colors.rgb_to_hsv(colour)[0]


def test_colours_are_of_the_server_at_the_other_end_and_of_phases():
    timeline = simulated()
    ax = timeline.plot().axes[0]
    servers = server_colours(timeline)
    assert len({rounded(colour) for colour in servers}) == 3
    drawn = lanes_of(timeline, ax, range(6))
    for message in timeline.messages.tolist():
        phase, _, src, dst, _, _, start, end = message
        kind = "scale_out" if phase == SCALE_OUT else "scale_up"
        for link, mine, other in ((f"{kind}_out", src, dst), (f"{kind}_in", dst, src)):
            colour = servers[other // 2] if phase == SCALE_OUT else PHASE_COLOURS[phase]
            hues = [
                hue_of(b[4])
                for b in drawn[mine, link]
                if np.allclose(b[:2], (start * 1e6, end * 1e6))
            ]
            wanted = hue_of(matplotlib.colors.to_rgb(colour))
            assert any(np.isclose(hue, wanted, atol=1e-4) for hue in hues), message
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend[:3] == [f"to or from server {server}" for server in range(3)]
    assert {"balance", "redistribute", "no NIC sends"} <= set(legend)


@pytest.mark.parametrize("servers", [2, 9])
def test_servers_have_one_colour_where_they_are_two_or_many(servers):
    timeline = simulated(servers=servers, devices=1)
    ax = timeline.plot().axes[0]
    assert len({rounded(colour) for colour in server_colours(timeline)}) == 1
    assert "scale-out" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_bars_are_pale_where_a_link_is_not_used_at_its_full_rate():
    ax = by_hand().plot().axes[0]
    drawn = lanes_of(by_hand(), ax, range(4))
    (full, later), (half,) = drawn[1, "scale_out_out"], drawn[0, "scale_out_out"]
    assert full[4] == later[4] == rounded(matplotlib.colors.to_rgb(PHASE_COLOURS[SCALE_OUT]))
    np.testing.assert_allclose(1 - np.array(half[4]), (1 - np.array(full[4])) / 2, atol=1e-5)


def test_messages_that_share_a_link_evenly_are_not_pale():
    rows = [(SCALE_OUT, 0, 0, dst, 1000, 0, 1e-6, 3e-6) for dst in (2, 3)]
    timeline = timeline_of(rows, Topology(2, 2, **GBPS))
    drawn = lanes_of(timeline, timeline.plot([0, 2]).axes[0], [0, 2])
    full = rounded(matplotlib.colors.to_rgb(PHASE_COLOURS[SCALE_OUT]))
    assert [bar[4] for bar in drawn[0, "scale_out_out"]] == [full, full]
    (half,) = drawn[2, "scale_out_in"]
    assert sum(half[4]) > sum(full)
    heights = [bar[3] - bar[2] for bar in (*drawn[0, "scale_out_out"], half)]
    np.testing.assert_allclose(heights[:2], heights[2] / 2)


def test_start_ups_are_lines_before_the_bars():
    ax = by_hand().plot().axes[0]
    lines = sorted(
        tuple(path.vertices[:, 0])
        for collection in ax.collections
        if isinstance(collection, LineCollection)
        for path in collection.get_paths()
    )
    wanted = [(0, 1)] * 2 + [(2, 3)] * 4 + [(7, 8)] * 2 + [(9, 10)] * 2
    np.testing.assert_allclose(lines, wanted)


def vertical(ax):
    """Where there are lines from top to bottom, by their style."""
    return sorted(
        (line.get_linestyle(), line.get_color(), round(float(line.get_xdata()[0]), 6))
        for line in ax.lines
        if line.get_xdata()[0] == line.get_xdata()[1]
    )


def test_marks_by_hand():
    figure = by_hand().plot()
    ax = figure.axes[0]
    assert vertical(ax) == [
        ("-", "0.75", 7.0),
        ("-", "0.75", 9.0),
        ("-", "black", 12.0),
        ("--", "black", 5.0),
    ]
    assert {"lower bound", "done", "stage", "0", "1"} <= set(texts(ax))
    spans = sorted((p.get_x(), p.get_x() + p.get_width()) for p in ax.patches)
    np.testing.assert_allclose(spans, [(0, 3), (7, 8), (9, 12)])
    assert [text for text in texts(ax) if text.endswith("%")] == [
        *("17%", "0%", "8%", "0%"),  # device 0: 2 of 12 µs out, 1 of 12 inside
        *("42%", "0%", "0%", "8%"),
        *("0%", "17%", "0%", "8%"),
        *("0%", "42%", "8%", "0%"),
    ]
    assert {"→3", "←1", "→2", "←0"} <= set(texts(ax))
    assert "12 µs, 2.40 x the lower bound" in ax.get_title(loc="left")


def test_marks_of_a_simulation():
    timeline = simulated(servers=4, devices=4, synchronization="barrier")
    ax = timeline.plot().axes[0]
    sent = crosses(timeline, "scale_out_out")
    edges = np.unique(np.concatenate([[0, timeline.completion_time], sent["start"], sent["end"]]))
    for left, right in itertools.pairwise(edges):
        middle = (left + right) / 2
        idle = not ((sent["start"] < middle) & (middle < sent["end"])).any()
        shaded = any(p.get_x() < middle * 1e6 < p.get_x() + p.get_width() for p in ax.patches)
        assert shaded == idle or right - left < 2e-9
    ends = [sent["end"][sent["stage"] == stage].max() for stage in np.unique(sent["stage"])]
    found = [place for style, colour, place in vertical(ax) if colour == "0.75"]
    np.testing.assert_allclose(found, np.array(ends) * 1e6, atol=1e-5)


def test_many_devices_show_the_busiest_of_all_servers_in_turn():
    timeline = simulated(servers=4, devices=8)
    load = np.maximum(timeline.busy("scale_out_out"), timeline.busy("scale_out_in"))
    shown = busiest(timeline)
    assert len(shown) == 8
    for server in range(4):
        mine = [device for device in shown if device // 8 == server]
        assert len(mine) == 2
        of_server = load[8 * server : 8 * server + 8]
        assert min(load[mine]) >= np.sort(of_server)[-2]
    ax = timeline.plot().axes[0]
    assert [text for text in texts(ax) if text.startswith("device")] == [
        f"device {device}\nserver {device // 8}" for device in shown
    ]
    assert "shown: 8 of 32 devices" in ax.get_title(loc="left")
    lanes_of(timeline, ax, shown)


def test_devices_that_are_asked_for():
    timeline = simulated(servers=4, devices=8)
    ax = timeline.plot([30, 2]).axes[0]
    assert [text for text in texts(ax) if text.startswith("device")] == [
        "device 30\nserver 3",
        "device 2\nserver 0",
    ]
    assert "shown" not in ax.get_title(loc="left")
    drawn = lanes_of(timeline, ax, [30, 2])
    assert (
        len(drawn[30, "scale_out_out"]) == (crosses(timeline, "scale_out_out")["src"] == 30).sum()
    )


@pytest.mark.parametrize("devices", [[], [6], [-1], ["a"], 3, [0.5]])
def test_devices_that_there_are_not(devices):
    with pytest.raises(ArgumentError, match="must be a sequence of numbers from 0 to 5, got "):
        simulated().plot(devices)


def test_axes_of_ones_own():
    figure = matplotlib.figure.Figure()
    axes = figure.subplots(3, 1)
    timeline = simulated()
    assert timeline.plot(ax=axes[0]) is figure
    assert timeline.plot_loads(axes[1:]) is figure
    assert all(bars(ax) for ax in axes)
    with pytest.raises(ArgumentError, match="must be two axes, got 3"):
        timeline.plot_loads(axes)


@pytest.mark.parametrize(
    ("options", "assumed"),
    [
        ({}, "stages by credit; incast none (nothing lost)"),
        (
            {"synchronization": "barrier", "incast": "roce", "oversubscription": 2},
            "stages by barrier; incast roce (60% with 32 senders); core oversubscribed 2 times",
        ),
        (
            {"incast": "infiniband-literal", "synchronization": "free"},
            "stages by free; incast infiniband-literal (97% with 32 senders, each counted as one)",
        ),
    ],
)
def test_titles_say_what_is_assumed(options, assumed):
    timeline = simulated(**options)
    own = matplotlib.figure.Figure().subplots(3, 1)
    timeline.plot(ax=own[0])
    timeline.plot_loads(own[1:])
    titles = [
        timeline.plot().axes[0].get_title(loc="left"),
        timeline.plot([0]).axes[0].get_title(loc="left"),
        timeline.plot_loads().get_suptitle(),
        own[0].get_title(loc="left"),
        own[1].get_title(loc="left"),
    ]
    for title in titles:
        assert assumed in title.replace("\n", " ")
        assert max(map(len, title.splitlines())) <= 100
    assert own[1].get_title(loc="left").endswith("\nNICs")
    assert own[2].get_title(loc="left") == "links inside servers"
    loads = timeline.plot_loads()
    loads.draw_without_rendering()
    (title,) = loads.texts
    assert loads.bbox.width >= title.get_window_extent().width


def test_one_server_has_no_nics():
    timeline = simulated(servers=1, devices=4, scheduler="direct")
    ax = timeline.plot().axes[0]
    assert {label.get_text() for label in ax.get_yticklabels()} == {"scale-up out", "scale-up in"}
    assert "no NIC sends" not in [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts(timeline.plot_loads().axes[0]) == ["nothing crosses servers"]


def test_nothing_to_exchange():
    timeline = simulate(make_plan(np.zeros((4, 4), int), Topology(2, 2)))
    assert texts(timeline.plot().axes[0]) == ["nothing moves between devices"]
    said = [texts(ax) for ax in timeline.plot_loads().axes]
    assert said == [["nothing crosses servers"], ["nothing moves inside servers"]]


@pytest.mark.parametrize("scheduler", ["fast", "rails"])
def test_loads_are_shares_of_the_time(scheduler):
    nics = (50e9,) * 3 + (25e9,) + (0,) + (50e9,) * 7
    matrix = traffic.pair_zipf(12, 500, seed=2)
    plan = make_plan(
        matrix, Topology(3, 4, nic_bandwidths=nics), scheduler=scheduler, row_bytes=4096
    )
    timeline = simulate(plan)
    for ax, kind in zip(timeline.plot_loads().axes, ("scale_out", "scale_up"), strict=True):
        drawn = bars(ax)
        for device in range(12):
            mine = [b for b in drawn if device - 0.5 < b[0] < b[1] < device + 0.5]
            shares = max(b[3] for b in mine), -min(b[2] for b in mine)
            for share, way in zip(shares, ("out", "in"), strict=True):
                busy = timeline.busy(f"{kind}_{way}")[device]
                np.testing.assert_allclose(share, busy / timeline.completion_time, atol=1e-12)
        assert list(overlaps([b for b in drawn if b[3] - b[2] > 1e-9])) == []


def test_loads_by_phase():
    upper, lower = by_hand().plot_loads().axes
    drawn = {(round(b[0] + 0.42), b[2] < 0): b for b in bars(lower) if b[3] - b[2] > 1e-9}
    colours = {key: b[4] for key, b in drawn.items()}
    balance, last = (
        rounded(matplotlib.colors.to_rgb(PHASE_COLOURS[phase])) for phase in (BALANCE, REDISTRIBUTE)
    )
    assert colours == {(0, False): balance, (1, True): balance, (3, False): last, (2, True): last}
    np.testing.assert_allclose([b[3] - b[2] for b in drawn.values()], 1 / 12)
    assert [text.get_text() for text in lower.get_legend().get_texts()] == [
        "balance",
        "redistribute",
    ]
    assert upper.get_legend() is None


@pytest.mark.parametrize(
    ("scheduler", "servers", "devices"),
    [
        *(("fast", *shape) for shape in [(1, 1), (1, 8), (2, 1), (13, 1), (9, 4)]),
        *((scheduler, 4, 2) for scheduler in ("fast", "direct", "rails", "spreadout")),
    ],
)
def test_every_shape_can_be_drawn(tmp_path, scheduler, servers, devices):
    timeline = simulated(scheduler, servers, devices)
    for name, figure in (("when", timeline.plot()), ("loads", timeline.plot_loads())):
        figure.savefig(tmp_path / f"{name}.png", dpi=40)
        assert (tmp_path / f"{name}.png").stat().st_size


@pytest.mark.parametrize("method", ["plot", "plot_loads"])
def test_matplotlib_is_needed(monkeypatch, method):
    timeline = simulated()
    monkeypatch.setitem(sys.modules, "matplotlib.collections", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'fastjax\[plot\]'"):
        getattr(timeline, method)()


spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=25,
)


@given(spans)
def test_lanes_side_by_side(given_spans):
    start, end = np.array(given_spans, np.int64).reshape(-1, 2).T
    lane, lanes = side_by_side(start, end)
    assert (lane < lanes).all()
    for moment in range(41):
        running = np.flatnonzero((start <= moment) & (moment < end))
        assert len(set(lane[running].tolist())) == len(running)
        assert len(set(lanes[running].tolist())) <= 1
        # All that overlap have no more lanes than some moment of theirs needs.
        if len(running):
            left, right = start[running].min(), end[running].max()
            while True:
                near = (start < right) & (end > left)
                wider = start[near].min(), end[near].max()
                if wider == (left, right):
                    break
                left, right = wider
            most = max(((start <= m) & (m < end)).sum() for m in range(left, right))
            assert lanes[running[0]] == most
