"""Rows of every kind arrive where they belong, whatever the plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import reference

import fastjax
from exchange_checks.backends import SCHEDULERS, Backend, same
from exchange_checks.cases import Case, carry_out, drawn
from exchange_checks.listed import check

NARROW = (
    *("int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"),
    *("float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3", "float8_e3m4"),
    *("int4", "uint4", "int2", "uint2", "float4_e2m1fn"),
)
TRIED_ON_GPUS = (
    *("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64"),
    "float8_e4m3fn",
)
WIDE = ("float64", "complex128", "int64", "uint64")


@check
def without_any_option(backend: Backend, rng: np.random.Generator) -> None:
    carry_out(backend, [drawn(rng, backend.size)])


@check(sanitized=True)
def every_scheduler_on_every_topology(backend: Backend, rng: np.random.Generator) -> None:
    for topology in backend.topologies():
        carry_out(
            backend,
            [
                drawn(
                    rng,
                    backend.size,
                    updates=updates,
                    most=most,
                    gap=1,
                    trailing=trailing,
                    scheduler=scheduler,
                    topology=topology,
                )
                for scheduler in SCHEDULERS
                for updates, most, trailing in ((1, 40, (3,)), (3, 5, (7,)))
            ],
        )


@check(sanitized=True)
def many_rows(backend: Backend, rng: np.random.Generator) -> None:
    """So many that the threads of the copy pool share them."""
    for scheduler, topologies in (
        ("fast", backend.topologies()),
        ("direct", [backend.topology]),
    ):
        for topology in topologies:
            options = {"scheduler": scheduler, "topology": topology}
            case = drawn(rng, backend.size, updates=1, most=300, trailing=(517,), **options)
            carry_out(backend, [case])


@check
def every_data_type(backend: Backend, rng: np.random.Generator) -> None:
    narrow = NARROW if backend.platform == "cpu" else TRIED_ON_GPUS
    for topology in (backend.topology, backend.topologies()[0]):
        options = {"updates": 1, "topology": topology}
        carry_out(backend, [drawn(rng, backend.size, dtype=dtype, **options) for dtype in narrow])
        with jax.enable_x64(True):
            cases = [drawn(rng, backend.size, dtype=dtype, **options) for dtype in WIDE]
            for case in cases:
                case.types = (np.int64,) * 4
            carry_out(backend, cases)


@check
def every_type_of_offsets_and_sizes(backend: Backend, rng: np.random.Generator) -> None:
    cases = []
    for types in (
        *([name] * 4 for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")),
        ("int8", "uint16", "int32", "uint8"),
    ):
        case = drawn(rng, backend.size, updates=1, most=3, topology=backend.topology)
        case.types = types
        cases.append(case)
    carry_out(backend, cases)


@check
def rows_of_every_shape(backend: Backend, rng: np.random.Generator) -> None:
    """From none at all, and a byte, to such that a warp takes several steps for; not aligned."""
    shapes = [("float32", shape) for shape in ((), (1,), (2, 3, 4), (0,), (5, 0), (257,))]
    shapes += [("int8", (elements,)) for elements in (1, 3, 64, 4099)]
    for topology in (backend.topology, backend.topologies()[0]):
        options = {"scheduler": "fast", "topology": topology}
        carry_out(
            backend,
            [
                drawn(rng, backend.size, updates=1, most=9, dtype=dtype, trailing=shape, **options)
                for dtype, shape in shapes
            ],
        )


@check
def nothing_to_send(backend: Backend, rng: np.random.Generator) -> None:
    """Also of operands that have no rows."""
    cases = [drawn(rng, backend.size, most=0) for _ in range(2)]
    cases[1].operand = cases[1].operand[:, :0]
    carry_out(backend, cases)


@check
def rows_sent_to_everyone(backend: Backend, rng: np.random.Generator) -> None:
    """One slice for every peer, as MaxText's combine of a replicated batch sends it."""
    size = backend.size
    cases = []
    for topology in backend.topologies():
        meta = reference.packed(np.full((size, size), 4))
        meta.input_offsets[:] = 0
        cases.append(Case(meta, *reference.data(rng, meta), options={"topology": topology}))
    carry_out(backend, cases)


@check
def offsets_of_empty_slices_do_not_matter(backend: Backend, rng: np.random.Generator) -> None:
    case = drawn(rng, backend.size, updates=1, topology=backend.topology)
    empty = case.meta.send_sizes == 0
    case.meta.input_offsets[empty] = 10**9
    case.meta.output_offsets[empty] = -7
    carry_out(backend, [case])


@check
def slices_land_in_any_order(backend: Backend, rng: np.random.Generator) -> None:
    """And there are many of them."""
    cases = []
    for updates, dtype in ((1, "bfloat16"), (8, "int8"), (256, "float32")):
        case = drawn(rng, backend.size, updates=updates, dtype=dtype, trailing=(9,))
        case.meta.output_offsets = _shuffled(rng, case.meta)
        cases.append(case)
    carry_out(backend, cases)


def reaching_out(rng: np.random.Generator, backend: Backend) -> list[Case]:
    """Slices that begin before arrays or end behind them, some of them far away."""
    cases = []
    for topology in (backend.topology, backend.topologies()[0]):
        case = drawn(rng, backend.size, topology=topology)
        case.operand, case.output = case.operand[:, 4:], case.output[:, 5:]
        case.meta.input_offsets -= 1
        case.meta.output_offsets -= 2
        cases.append(case)
    # One slice of so many rows that its end is no int32, and some that are nowhere.
    case = drawn(rng, backend.size, most=0, rows=9)
    case.meta.send_sizes[:] = rng.choice([0, 7], case.meta.send_sizes.shape)
    case.meta.output_offsets[:] = rng.choice(
        [-7, 9, 2**31 - 1, -(2**31)], case.meta.send_sizes.shape
    )
    case.meta.send_sizes[0, -1] = 2**31 - 1
    case.meta.input_offsets[0, -1], case.meta.output_offsets[0, -1] = 2, -3
    case.meta.recv_sizes[:] = reference.received(case.meta.send_sizes, [range(backend.size)])
    return [*cases, case]


def left_of(case: Case) -> Case:
    """The exchange of what is in range."""
    meta = reference.in_range(case.meta, case.operand.shape[1], case.output.shape[1])
    return dataclasses.replace(case, meta=meta)


@check(needs=lambda backend: backend.size > 1, sanitized=True)
def rows_out_of_range_are_dropped(backend: Backend, rng: np.random.Generator) -> None:
    """If one asks for it; all others arrive, and statistics count those that do not."""
    cases = reaching_out(rng, backend)

    def program(exchange: Any, data: Any) -> Any:
        return [exchange(*args, **c.options) for args, c in zip(data, cases, strict=True)]

    with fastjax.options(overflow="drop"), fastjax.collect_stats():
        fastjax.reset_stats()
        results = backend.compiled(program)([case.arguments() for case in cases])
        jax.block_until_ready(results)
        counted = [site.dropped_rows for site in fastjax.stats()]
    dropped = []
    for result, case in zip(results, cases, strict=True):
        left = left_of(case)
        same(result, left.expected())
        # No array has 2**40 rows, so a slice is not counted beyond that.
        dropped.append(int(case.meta.send_sizes.sum() - left.meta.send_sizes.sum()))
    assert sorted(counted) == sorted(dropped), (counted, dropped)
    assert min(dropped) > 0


def _shuffled(rng: np.random.Generator, meta: reference.Metadata) -> np.ndarray:
    """Offsets such that each receiver's slices lie one behind the other in random order."""
    size, entries = meta.send_sizes.shape
    updates = entries // size
    sizes = meta.send_sizes.reshape(size, size, updates)
    offsets = np.zeros_like(sizes)
    for receiver in range(size):
        rows = sizes[:, receiver].ravel()
        order = rng.permutation(len(rows))
        ends = np.cumsum(rows[order])
        landing = np.zeros_like(rows)
        landing[order] = ends - rows[order]
        offsets[:, receiver] = landing.reshape(size, updates)
    return offsets.reshape(size, entries)


@check(sanitized=True)
def any_traffic(backend: Backend, rng: np.random.Generator) -> None:
    """Numbers change, the program stays: dense, empty, a flow, a hot receiver, a hot sender."""
    options = [
        {"scheduler": scheduler, "topology": topology}
        for scheduler in SCHEDULERS
        for topology in backend.topologies()
    ]
    rows = 6 * 2 * backend.size

    def program(exchange: Any, data: Any) -> Any:
        return [exchange(*args, **given) for args, given in zip(data, options, strict=True)]

    run = backend.compiled(program)
    for _ in range(5):
        cases = []
        for _ in options:
            meta = reference.packed(_sizes(rng, backend.size, rows))
            data = rng.normal(size=(2, backend.size, rows, 2)).astype(np.float32)
            cases.append(Case(meta, *data))
        results = run([case.arguments() for case in cases])
        for result, case in zip(results, cases, strict=True):
            same(result, case.expected())


def _sizes(rng: np.random.Generator, size: int, rows: int) -> np.ndarray:
    """Of two updates for each peer, so that `rows` hold them."""
    sizes = rng.integers(0, 7, (size, 2 * size))
    position, entry = rng.integers(size), rng.integers(2 * size)
    keep = np.ones_like(sizes)
    kind = rng.choice(["any", "flow", "receiver", "sender", "local", "empty"])
    if kind == "flow":
        sizes[position, entry] = rng.integers(1, rows + 1)
        keep[:] = 0
        keep[position, entry] = 1
    elif kind == "receiver":
        keep[:] = np.arange(2 * size) // 2 == position
    elif kind == "sender":
        keep[:] = (np.arange(size) == position)[:, None]
    elif kind == "local":
        keep[:] = (np.arange(size) ^ 1)[:, None] == np.arange(2 * size) // 2
    elif kind == "empty":
        keep[:] = 0
    return sizes * keep
