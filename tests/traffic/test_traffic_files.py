"""Traffic matrices and routing traces in files."""

import dataclasses
import gzip
import json
from functools import partial
from pathlib import Path

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from refusals import refusals, refused

from fastjax.errors import ArgumentError
from fastjax.traffic import (
    Exchange,
    RoutingRecord,
    read_matrix,
    read_routing_trace,
    traffic_from_routing,
    write_matrix,
    write_routing_trace,
)

matrices = hnp.arrays(
    np.int64,
    st.integers(1, 5).map(lambda n: (n, n)),
    elements=st.integers(0, 2**20) | st.integers(0, 2**43),
)


@hypothesis.given(
    matrix=matrices, row_bytes=st.integers(1, 2**20), suffix=st.sampled_from([".txt", ".gz"])
)
def test_matrix_comes_back(tmp_path_factory, matrix, row_bytes, suffix):
    path = tmp_path_factory.mktemp("matrix") / f"matrix{suffix}"
    hypothesis.assume(int(matrix.max()) * row_bytes < 2**63)
    write_matrix(path, matrix, row_bytes=row_bytes)
    got = read_matrix(path, row_bytes=row_bytes)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, matrix)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".gz")


@hypothesis.given(matrix=matrices)
def test_matrix_files_are_what_numpy_reads(tmp_path_factory, matrix):
    """numpy's own reader and writer of such tables as the reference."""
    path = tmp_path_factory.mktemp("matrix") / "matrix.txt"
    write_matrix(path, matrix, row_bytes=8)
    np.testing.assert_array_equal(np.loadtxt(path, dtype=np.int64, ndmin=2), matrix * 8)
    np.savetxt(path, matrix, fmt="%d", header="bytes, row = source")
    np.testing.assert_array_equal(read_matrix(path), matrix)


def test_matrix_as_nccl_tests_takes_it(tmp_path):
    """White space of any kind, empty lines, fractions, exponents, and no newline at the end."""
    path = tmp_path / "matrix"
    path.write_text("\n  100\t2e2  +150.0\n\n50 100. .75e2\r\n300 150 200")
    want = [[100, 200, 150], [50, 100, 75], [300, 150, 200]]
    np.testing.assert_array_equal(read_matrix(path), want)


def test_matrix_with_comments_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "matrix"
    path.write_bytes(b"\xef\xbb\xbf# two devices\n0 8 # to device 1\n   # nothing\n16 0\n")
    np.testing.assert_array_equal(read_matrix(path, row_bytes=8), [[0, 1], [2, 0]])


def test_compression_is_told_by_content(tmp_path):
    path = tmp_path / "matrix.txt"
    path.write_bytes(gzip.compress(b"1 2\n3 4\n"))
    np.testing.assert_array_equal(read_matrix(path), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("", "", "got none"),
        ("# nothing\n\n", "", "got none"),
        ("1 2\n3\n", ", line 2", "1 numbers; the lines above have 2"),
        ("1 2 3\n4 5 6\n", "", "2 lines of 3 numbers"),
        ("1 2\n\n3 4\n5 6\n", ", line 4", "more than 2 lines of 2 numbers"),
        ("1 2\n3 x\n", ", line 2, column 2", "want a number of bytes, got 'x'."),
        ("1,2\n3,4\n", ", line 1, column 1", "got '1,2'; separate numbers by spaces"),
        ("nan", ", line 1, column 1", "got 'nan'"),
        ("1_000", ", line 1, column 1", "got '1_000'"),
        ("1 2\n-3 4\n", ", line 2, column 1", "want 0 bytes or more, got -3"),
        ("0.5", ", line 1, column 1", "want whole bytes, got 0.5"),
        (f"{2**63}", ", line 1, column 1", f"want fewer than 2**63 bytes, got {2**63}"),
        ("1e99999", ", line 1, column 1", "want fewer than 2**63 bytes"),
        ("1e9999999999999999999", ", line 1, column 1", "9999 bytes are out of range"),
        ("0 0\n12 0\n", ", line 2, column 1", "rows of 8 bytes; 8 or 16 would be"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path, text, place, told):
    path = tmp_path / "matrix"
    path.write_text(text)
    row_bytes = 8 if "rows of 8" in told else 1
    read = partial(read_matrix, path, row_bytes=row_bytes)
    refused(ArgumentError, read, f"{path}{place}: ", told)


def test_largest_matrix_entries(tmp_path):
    path = tmp_path / "matrix"
    write_matrix(path, [[0, 2**63 - 1], [0, 0]])
    assert read_matrix(path)[0, 1] == 2**63 - 1
    write = partial(write_matrix, path, [[0, 2**62], [0, 0]], row_bytes=2)
    refused(ArgumentError, write, "traffic[0, 1] = ", "rows of 2 bytes are 2**63")


# Without the time of day, so that every worker of a test run sees the same cases.
PACKED = gzip.compress(b"\n\n", mtime=0)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\n\xff\xfe 4\n", "line 2: want text"),
        (PACKED[:-9], "after line 2: its gzip data are damaged"),
        (PACKED[:-8] + b"12345678", "gzip data are damaged"),
        (b"\x1f\x8b" + b"\x07" * 30, "gzip data are damaged"),
        (PACKED[:10] + b"\xff" * 20, "gzip data are damaged"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, content, told):
    path = tmp_path / "file"
    path.write_bytes(content)
    for read in (read_matrix, lambda p: list(read_routing_trace(p))):
        refused(ArgumentError, partial(read, path), told)


@pytest.mark.parametrize("row_bytes", [0, -1, 1.5, True, "8", None])
def test_row_bytes_that_are_no_size(tmp_path, row_bytes):
    path = tmp_path / "matrix"
    write_matrix(path, [[1]], row_bytes=1)
    for call in (partial(read_matrix, path), partial(write_matrix, path, [[1]])):
        told = "row_bytes must be", f"got {row_bytes!r}"
        refused(ArgumentError, partial(call, row_bytes=row_bytes), *told)


NOWHERE = Path("no folder") / "matrix"  # nothing is written: that would be an OSError


test_what_is_no_traffic_is_not_written = refusals(
    ArgumentError,
    (lambda: write_matrix(NOWHERE, [[1, 2], [3]]), "traffic must be a matrix"),
    (lambda: write_matrix(NOWHERE, [[1, 2]]), "traffic must be", "got shape (1, 2)"),
    (lambda: write_matrix(NOWHERE, [1]), "traffic must be", "got shape (1,)"),
    (lambda: write_matrix(NOWHERE, np.zeros((0, 0), int)), "traffic", "shape (0, 0)"),
    (lambda: write_matrix(NOWHERE, [[1.0]]), "traffic must be integers", "float64"),
    (lambda: write_matrix(NOWHERE, [[1, -2], [3, 4]]), "traffic[0, 1] = -2"),
)


def test_missing_files_are_os_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_matrix(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        list(read_routing_trace(tmp_path / "none"))


# A line as Megatron-Core's tracer writes it, with the fields that only some runs have.
LINE = {
    "step": 7,
    "stage": "pre_dispatch",
    "block": "decoder",
    "layer": 3,
    "rank": 1,
    "num_tokens": 2,
    "topk": 3,
    "top_indices": [[0, 5, 2], [7, 6, 5]],
    "hs_offset": 0,
    "hs_bytes": 96,
    "hs_shape": [2, 24],
}


def same(a: RoutingRecord, b: RoutingRecord) -> bool:
    fields = [f.name for f in dataclasses.fields(RoutingRecord) if f.name != "top_indices"]
    return np.array_equal(a.top_indices, b.top_indices) and all(
        getattr(a, name) == getattr(b, name) for name in fields
    )


@st.composite
def records(draw, devices=4, num_experts=8):
    tokens, k = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    return RoutingRecord(
        step=draw(st.integers(0, 1)),
        layer=draw(st.integers(0, 1)),
        rank=draw(st.integers(0, devices - 1)),
        top_indices=draw(
            hnp.arrays(np.int32, (tokens, k), elements=st.integers(0, num_experts - 1))
        ),
        mtp_idx=draw(st.none() | st.integers(0, 1)),
        block=draw(st.sampled_from(["decoder", "mtp"])),
    )


def test_trace_line_of_megatron_core(tmp_path):
    path = tmp_path / "router_trace_rank1.jsonl"
    path.write_text(json.dumps(LINE) + "\n\n" + json.dumps({**LINE, "block": "mtp", "mtp_idx": 0}))
    first, second = read_routing_trace(path)
    place = first.step, first.layer, first.rank, first.block, first.mtp_idx
    assert place == (7, 3, 1, "decoder", None)
    assert (first.num_tokens, first.topk, first.stage) == (2, 3, "pre_dispatch")
    np.testing.assert_array_equal(first.top_indices, LINE["top_indices"])
    assert not first.top_indices.flags.writeable
    assert (second.block, second.mtp_idx) == ("mtp", 0)


@hypothesis.given(
    written=st.lists(records(), max_size=6), suffix=st.sampled_from([".jsonl", ".gz"])
)
def test_trace_comes_back(tmp_path_factory, written, suffix):
    path = tmp_path_factory.mktemp("trace") / f"trace{suffix}"
    write_routing_trace(path, written)
    got = list(read_routing_trace(path))
    assert len(got) == len(written)
    assert all(map(same, got, written))
    opener = gzip.open if suffix == ".gz" else open
    with opener(path, "rt") as stream:
        fields = [set(json.loads(line)) for line in stream]
    assert fields == [
        set(LINE) - {"hs_offset", "hs_bytes", "hs_shape"}
        | ({"mtp_idx"} if r.mtp_idx is not None else set())
        for r in written
    ]


def test_trace_folder_is_read_in_order_of_rank(tmp_path):
    for rank in (10, 9, 0):
        record = RoutingRecord(0, 0, rank, np.zeros((1, 1), int))
        suffix = ".gz" if rank == 9 else ""
        write_routing_trace(tmp_path / f"router_trace_rank{rank}.jsonl{suffix}", [record])
    (tmp_path / "hidden_states_rank0.bin").write_bytes(b"\xff")
    assert [record.rank for record in read_routing_trace(tmp_path)] == [0, 9, 10]
    write_routing_trace(tmp_path / "router_trace_rank9.jsonl", [])
    read = lambda: list(read_routing_trace(tmp_path))  # noqa: E731
    refused(ArgumentError, read, "rank 9 has two files")
    for file in tmp_path.iterdir():
        file.unlink()
    refused(ArgumentError, read, str(tmp_path), "no file router_trace_rank*.jsonl")


def test_trace_is_read_one_record_at_a_time(tmp_path):
    """What comes before a wrong line is there before the line is looked at."""
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(LINE) + "\nnonsense\n")
    found = read_routing_trace(path)
    assert next(found).step == 7
    refused(ArgumentError, lambda: next(found), "line 2: want a JSON object")


def with_tokens(*experts):
    return {"top_indices": experts}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "want a JSON object"),
        ("[" * 100_000, "want a JSON object"),
        ("[1]", "want a JSON object, got list"),
        ({"topk": ...}, "has a field 'topk'; got none"),
        ({"step": -1}, "step must be an integer, 0 or more; got -1"),
        ({"layer": "3"}, "layer must be an integer, 0 or more; got '3'"),
        ({"rank": 1.0}, "rank must be an integer, 0 or more; got 1.0"),
        ({"mtp_idx": -2}, "mtp_idx must be an integer, 0 or more; got -2"),
        ({"block": 3}, "block must be a name, got 3"),
        ({"stage": 3}, "stage must be a name, got 3"),
        ({"num_tokens": 3}, "num_tokens and topk say 3 x 3, top_indices has 2 x 3"),
        ({"topk": 2**31}, "topk must be an integer, from 0 to 2147483647; got 2147483648"),
        (with_tokens(), "num_tokens and topk say 2 x 3, top_indices has 0 x 3"),
        ({"top_indices": 5}, "top_indices has no list"),
        (with_tokens([0, 1, 2], [3, 4]), "top_indices must be integers, as many for each token"),
        (with_tokens([0.5, 1, 2], [3, 4, 5]), "got float64"),
        (with_tokens([10**30, 1, 2], [3, 4, 5]), "top_indices must be integers"),
        (with_tokens([0, 1, 2], [3, -4, 5]), "top_indices must be 0 or more, got -4"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_is_no_record_is_refused(tmp_path, line, told):
    path = tmp_path / "trace.jsonl"
    if isinstance(line, dict):
        line = json.dumps({k: v for k, v in {**LINE, **line}.items() if v is not ...})
    path.write_text(json.dumps(LINE) + "\n" + line)
    refused(ArgumentError, lambda: list(read_routing_trace(path)), f"{path}, line 2: ", told)


def brute_force(written, devices, num_experts, deduplicate):
    """Counts token by token."""
    wanted, times = {}, {}
    for record in written:
        name = (record.step, record.block, record.mtp_idx, record.layer)
        repeat = times[name, record.rank] = times.get((name, record.rank), -1) + 1
        traffic = wanted.setdefault((*name, repeat), np.zeros((devices, devices), int))
        for experts in record.top_indices.tolist():
            owners = [
                next(d for d in range(devices) if e < (d + 1) * num_experts // devices)
                for e in experts
            ]
            for owner in set(owners) if deduplicate else owners:
                traffic[record.rank, owner] += 1
    return wanted


@hypothesis.given(
    written=st.lists(records(), max_size=12),
    devices=st.sampled_from([4, 8]),
    deduplicate=st.booleans(),
)
def test_traffic_from_routing(written, devices, deduplicate):
    found = traffic_from_routing(
        written, devices=devices, num_experts=8, deduplicate=deduplicate, require_all=False
    )
    wanted = brute_force(written, devices, 8, deduplicate)
    assert set(found) == set(wanted)
    assert list(found) == sorted(found, key=lambda e: e.order)
    for exchange, traffic in found.items():
        assert traffic.dtype == np.int64
        np.testing.assert_array_equal(traffic, wanted[exchange])


def test_two_experts_on_one_device_are_two_rows_or_one():
    record = RoutingRecord(0, 0, 0, np.array([[0, 1, 2], [0, 2, 3], [3, 2, 3]]))
    other = RoutingRecord(0, 0, 1, np.zeros((0, 3), np.int64))
    (twice,) = traffic_from_routing([record, other], devices=2, num_experts=4).values()
    np.testing.assert_array_equal(twice, [[3, 6], [0, 0]])
    (once,) = traffic_from_routing(
        [record, other], devices=2, num_experts=4, deduplicate=True
    ).values()
    np.testing.assert_array_equal(once, [[2, 3], [0, 0]])


def test_microbatches_are_exchanges_of_their_own():
    def record(rank, expert):
        return RoutingRecord(5, 2, rank, np.array([[expert]]))

    found = traffic_from_routing(
        [record(0, 0), record(0, 1), record(1, 1), record(1, 1)], devices=2, num_experts=2
    )
    assert list(found) == [Exchange(5, "decoder", None, 2, 0), Exchange(5, "decoder", None, 2, 1)]
    assert list(map(str, found)) == ["step 5, decoder layer 2", "step 5, decoder layer 2, repeat 1"]
    np.testing.assert_array_equal(list(found.values()), [[[1, 0], [0, 1]], [[0, 1], [0, 1]]])


def test_ranks_of_one_group():
    written = [RoutingRecord(0, 0, rank, np.array([[rank % 3]])) for rank in range(6)]
    (traffic,) = traffic_from_routing(written, devices=3, num_experts=3, ranks=[5, 1, 3]).values()
    np.testing.assert_array_equal(traffic, [[0, 0, 1], [0, 1, 0], [1, 0, 0]])
    head = Exchange(0, "mtp", 1, 0, 0)
    assert str(head) == "step 0, mtp 1 layer 0"


def routed(**changes):
    written = [RoutingRecord(0, 0, rank, np.array([[0, 3]])) for rank in (0, 1)]
    return lambda: traffic_from_routing(written, **{"devices": 2, "num_experts": 4, **changes})


test_routing_that_does_not_fit = refusals(
    ArgumentError,
    (routed(devices=3), "4 experts do not divide over 3 devices"),
    (routed(devices=0), "devices must be", "got 0"),
    (routed(num_experts=0), "num_experts must be", "got 0"),
    (routed(num_experts=2), "rank 0: a token has expert 3; num_experts is 2"),
    (routed(devices=1), "of rank 1; want 0 to 0", "or pass ranks"),
    (routed(devices=4), "decoder layer 0: there is no record of rank(s) 2, 3. "),
    (routed(devices=20, num_experts=20), "rank(s) 2, 3, 4, 5, 6, 7, 8, 9 and 10 more."),
    (routed(ranks=[1, 7]), "there is no record of rank(s) 7. "),
    (routed(ranks=[0]), "ranks must be 2 different ones, got [0]"),
    (routed(ranks=[0, 0]), "ranks must be 2 different ones, got [0, 0]"),
    (routed(ranks=[0, -1]), "ranks must be", "got -1"),
)
