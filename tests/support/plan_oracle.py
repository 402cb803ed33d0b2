"""Whether a plan delivers, in numpy, written without a look at how plans are made.

The checker of all that schedulers promise, over random problems, is in C++:
tests/cpp/planner/schedulers/plan_checks.cc.
"""

import numpy as np

from fastjax import _core

LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)
HEADER_WORDS = 16
_FIELDS = "phase stage src dst origin target first_row rows src_row dst_row"
ENTRY_DTYPE = np.dtype([(field, "i4") for field in _FIELDS.split()])


def check_plan(plan):
    """The plan delivers, there and back, and its tables, where it has any, say the same."""
    for made in (plan, plan.transpose()):
        check_delivery(made.traffic, made.topology, made.transfers, made.num_stages)
        if made.traffic.max(initial=0) < 2**31:
            check_tables(made)


def check_delivery(traffic, topology, transfers, num_stages):
    """Transfers fit their phases; executed in order, they bring each row to its target, once."""
    check_phases(topology, transfers)
    check_order(transfers, num_stages)
    _replay(np.asarray(traffic, np.int64), transfers)


def check_phases(topology, transfers):
    """Each transfer joins devices that its phase may join."""
    src, dst, origin, target = (transfers[field] for field in ("src", "dst", "origin", "target"))
    m = topology.devices_per_server
    inside, between, staged = src // m == dst // m, origin // m != target // m, src != dst
    fits = [
        inside & (src == origin) & (dst == target),
        inside & (src == origin) & staged & between,
        (src // m == origin // m) & (dst // m == target // m) & between,
        inside & (dst == target) & staged & between,
    ]
    assert np.choose(transfers["phase"], fits, mode="raise").all(), "a phase joins other devices"
    local = transfers["phase"] == LOCAL
    assert ((transfers["stage"] == -1) == local).all(), "a stage that a phase does not have"


def check_order(transfers, num_stages):
    """Stages 0 ... cross one after the other, each after its balance; what drains one is behind."""
    position = np.arange(len(transfers))

    def edges(phase):
        first, last = np.full(num_stages, len(transfers)), np.full(num_stages, -1)
        chosen = transfers["phase"] == phase
        np.minimum.at(first, transfers["stage"][chosen], position[chosen])
        np.maximum.at(last, transfers["stage"][chosen], position[chosen])
        return first, last

    (_, fed), (begin, end), (drained, _) = map(edges, (BALANCE, SCALE_OUT, REDISTRIBUTE))
    assert (end >= 0).all(), "a stage moves nothing between servers"
    assert (begin[1:] > end[:-1]).all(), "a stage begins before another ends"
    assert (fed < begin).all(), "a stage begins before it is balanced"
    assert (drained > end).all(), "a stage is redistributed before it ends"


def _replay(traffic, transfers):
    """Rows that all transfers treat alike are one cell: as exact as single rows, for any counts."""
    devices, sizes = len(traffic), traffic.ravel()
    starts = np.cumsum(sizes) - sizes
    block = transfers["origin"].astype(np.int64) * devices + transfers["target"]
    begin = starts[block] + transfers["first_row"]
    end = begin + transfers["rows"]
    inside = (transfers["first_row"] >= 0) & (end <= starts[block] + sizes[block])
    assert (inside & (transfers["rows"] > 0)).all(), "rows that the block does not have"
    edges = np.unique(np.concatenate([[0], starts, starts + sizes, begin, end]))
    place, target = np.divmod(np.searchsorted(starts + sizes, edges[:-1], "right"), devices)
    phase, stage = np.full(len(place), -1), np.full(len(place), -1)
    spans = zip(np.searchsorted(edges, begin), np.searchsorted(edges, end), strict=True)
    for move, (low, high) in zip(transfers, spans, strict=True):
        cells = slice(low, high)
        assert (place[cells] == move["src"]).all(), f"{move}: rows are elsewhere"
        assert (phase[cells] < move["phase"]).all(), f"{move}: rows have had the phase"
        same = (stage[cells] == move["stage"]) | (stage[cells] == -1)
        assert same.all(), f"{move}: rows are of another stage"
        place[cells], phase[cells], stage[cells] = move["dst"], move["phase"], move["stage"]
    assert ((place == target) & (phase >= 0)).all(), "rows never arrive"


def check_one_to_one(transfers):
    """In a stage a device sends to one device at most, and receives from one at most."""
    pairs = np.unique(transfers[transfers["phase"] == SCALE_OUT][["stage", "src", "dst"]])
    for end in ("src", "dst"):
        assert len(np.unique(pairs[["stage", end]])) == len(pairs), f"several of one {end}"


def check_tables(plan):
    """Each device's table has the rows it sends and receives, and its transfers, in their order."""
    devices, transfers = plan.topology.num_devices, plan.transfers
    for device in range(devices):
        words = plan.stage_table(device)
        assert _core.check_table(words, devices, device) == ""
        _, sends, receives, entries = decode_table(words)
        np.testing.assert_array_equal(sends, plan.traffic[device])
        np.testing.assert_array_equal(receives, plan.traffic[:, device])
        mine = transfers[(transfers["src"] == device) | (transfers["dst"] == device)]
        np.testing.assert_array_equal(entries[list(transfers.dtype.names)].tolist(), mine.tolist())


def decode_table(words):
    """A stage table's header, rows sent to and received from each device, and entries."""
    begin = HEADER_WORDS + 2 * int(words[1])
    body = words[begin : begin + len(ENTRY_DTYPE) * int(words[3])]
    return words[:HEADER_WORDS], *words[HEADER_WORDS:begin].reshape(2, -1), body.view(ENTRY_DTYPE)


def server_matrix(traffic, n, m):
    """Rows that servers send to each other; nothing on the diagonal."""
    tiles = np.asarray(traffic, np.int64).reshape(n, m, n, m).sum(axis=(1, 3))
    return np.where(np.eye(n, dtype=bool), 0, tiles)
