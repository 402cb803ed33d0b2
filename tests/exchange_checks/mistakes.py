"""Mistakes in values are errors on every device, and the next exchange works."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import reference

import fastjax
from exchange_checks.backends import Backend, Program, same
from exchange_checks.cases import Case, drawn
from exchange_checks.listed import check


def refused(run: Program, *args: Any, why: str) -> str:
    """The error of a program that is refused, from where it says of what."""
    try:
        jax.block_until_ready(run(*args))
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
    else:
        raise AssertionError(f"not refused: {why}")
    found = re.search(r"\w+_ragged_all_to_all over .*", text)
    assert found, text
    assert re.search(why, found[0]), text
    return re.sub(r"channel \d+", "channel", found[0])


def full(rng: np.random.Generator, backend: Backend, **options: Any) -> Case:
    """Without an empty slice, and one slice for each peer."""
    size = backend.size
    meta = reference.packed(rng.integers(1, 6, (size, size)))
    return Case(meta, *reference.data(rng, meta), options=options)


def damaged(case: Case, field: str, device: int, entry: int, value: int) -> Case:
    arrays = {name: array.copy() for name, array in vars(case.meta).items()}
    arrays[field][device, entry] = value
    return Case(reference.Metadata(**arrays), case.operand, case.output, case.members)


def _bad_values(a: int, b: int) -> list[tuple[str, int, str]]:
    """What device `a` may be wrong about that has to do with device `b`."""
    negative = "must be 0 or more"
    return [
        ("send_sizes", -1, rf"on device {a}, send_sizes\[{b}\] = -1; a size {negative}"),
        ("recv_sizes", -2, rf"on device {a}, recv_sizes\[{b}\] = -2; a size {negative}"),
        ("input_offsets", -1, rf"device {a}, input_offsets\[{b}\] = -1; an offset {negative}"),
        (
            "input_offsets",
            2**31 - 1,
            (
                rf"on device {a}, input_offsets\[{b}\] = 2147483647 and send_sizes\[{b}\] = \d+ "
                r"reach beyond the operand, which has \d+ rows"
            ),
        ),
        ("output_offsets", -4, rf"device {a}, output_offsets\[{b}\] = -4; an offset {negative}"),
        (
            "output_offsets",
            2**30,
            (
                rf"on device {a}, output_offsets\[{b}\] = 1073741824 and send_sizes\[{b}\] = \d+ "
                rf"reach beyond the output of device {b}, which has \d+ rows"
            ),
        ),
        (
            "send_sizes",
            2**31 - 1,
            (
                rf"on device {a}, input_offsets\[{b}\] = \d+ and send_sizes\[{b}\] = 2147483647 "
                "reach beyond"
            ),
        ),
        (
            "recv_sizes",
            1000,
            (
                rf"device {b} sends \d+ rows to device {a} \(send_sizes\[{a}\]\), which expects "
                rf"1000 \(recv_sizes\[{b}\]\)"
            ),
        ),
    ]


@check(sanitized=True)
def bad_values(backend: Backend, rng: np.random.Generator) -> list[str]:
    texts = []
    device, entry = backend.size - 1, (backend.size - 1) // 2
    for topology in (backend.topology, backend.topologies()[0]):
        case = full(rng, backend, topology=topology)
        run = backend.compiled(lambda exchange, *args: exchange(*args, topology=topology))  # noqa: B023
        for field, value, text in _bad_values(device, entry):
            bad = damaged(case, field, device, entry, value)
            texts.append(refused(run, *bad.arguments(), why=text))
            same(run(*case.arguments()), case.expected())
    return texts


@check
def bad_values_in_a_group(backend: Backend, rng: np.random.Generator) -> str:
    groups = np.arange(backend.size).reshape(backend.servers, -1).T.tolist()
    case = drawn(rng, backend.size, groups=groups)
    run = backend.compiled(lambda exchange, *args: exchange(*args, **case.options))
    last, place = len(groups) - 1, len(groups[-1]) - 1
    bad = damaged(case, "input_offsets", groups[last][place], 0, -1)
    text = rf"on device {place} of group {last}, input_offsets\[0\] = -1"
    told = refused(run, *bad.arguments(), why=text if last else r"input_offsets\[0\] = -1")
    same(run(*case.arguments()), case.expected())
    return told


@check
def bad_values_in_a_gradient(backend: Backend, rng: np.random.Generator) -> list[str]:
    """The way back checks as the way there does, and names the same arguments."""
    case = full(rng, backend)

    def program(exchange: Any, ct: Any, operand: Any, output: Any, *arrays: Any) -> Any:
        forward = lambda rows: exchange(rows, jnp.zeros_like(output), *arrays)  # noqa: E731
        return jax.linear_transpose(forward, operand)(ct)[0]

    run = backend.compiled(program)
    device, entry = backend.size - 1, (backend.size - 1) // 2
    texts = []
    for field, text in (
        ("input_offsets", rf"input_offsets\[{entry}\] = 99999 and .* beyond the operand"),
        ("output_offsets", rf"output_offsets\[{entry}\] = 99999 .* output of device {entry}"),
    ):
        bad = damaged(case, field, device, entry, 99999)
        texts.append(refused(run, case.output, *bad.arguments(), why=text))
    jax.block_until_ready(run(case.output, *case.arguments()))
    return texts


@check(sanitized=True, needs=lambda backend: backend.processes == 1 and backend.size > 1)
def plans_that_do_not_fit(backend: Backend, rng: np.random.Generator) -> None:
    """Of other sizes, damaged, of several plannings, or of sizes that cannot be planned."""
    case, size = full(rng, backend), backend.size
    sizes = case.meta.send_sizes.astype(np.int32)

    def program(exchange: Any, sizes: Any, others: Any, mixed: Any, damage: Any, args: Any) -> Any:
        plan, other = (
            fastjax.plan_ragged_all_to_all(given, axis_name="x", topology=backend.topology)
            for given in (sizes, others)
        )
        table = jnp.where(mixed, other.table, plan.table)
        damaged = jnp.where(damage[0] < 0, table, table.at[damage[0]].set(damage[1]))
        own = fastjax.TracedPlan(damaged, plan.spec, plan.axis_name, plan.axis_index_groups)
        return exchange(*args, plan=own)

    run = backend.compiled(program)
    whole, nowhere = np.full((size, 2), -1, np.int32), np.zeros(size, bool)
    larger, negative, one = sizes.copy(), sizes.copy(), nowhere.copy()
    larger[1, 0] = 8
    negative[1, 0] = -5
    one[size // 2] = True
    fits = rf"the plan does not fit: it is for 8 rows from device 1 to device 0, .* {sizes[1, 0]}\."
    refused(run, larger, sizes, nowhere, whole, case.arguments(), why=fits)
    why = rf"device {size // 2} holds another plan than device 0"
    refused(run, sizes, larger, one, whole, case.arguments(), why=why)
    why = r"plan_ragged_all_to_all over .*on device 1, send_sizes\[0\] = -5; a size"
    refused(run, negative, sizes, nowhere, whole, case.arguments(), why=why)
    for word, value in ((0, 1), (3, 2**31 - 1), (3, -1), (35, 77)):
        damage = np.tile(np.array([word, value], np.int32), (size, 1))
        why = r"the plan of device \d+ is not usable: stage table: "
        refused(run, sizes, sizes, nowhere, damage, case.arguments(), why=why)
    same(run(sizes, sizes, nowhere, whole, case.arguments()), case.expected())


@check
def gradients_that_cannot_be_summed(backend: Backend, rng: np.random.Generator) -> str:
    """Only reachable through the primitive: the public gradient widens such types first."""
    meta = reference.packed(np.full((backend.size, 2 * backend.size), 2))
    meta.input_offsets[:] = 0
    operand, output = (rows.astype(np.int32) for rows in reference.data(rng, meta))

    def program(_: Any, ct: Any, base: Any, *arrays: Any) -> Any:
        return fastjax.fast_ragged_all_to_all_p.bind(
            ct,
            base,
            *arrays,
            operands=(),
            axis_name=("x",),
            axis_index_groups=None,
            spec=fastjax.traced.plan_spec.make_spec(("x",), None, None, None, 1),
            transposed_plan=False,
            reverse=True,
            timeout_ms=10_000,
            check_overlaps=False,
            drop=False,
            fallback="jax",
            started=False,
        )

    why = "input slices overlap, and gradients of this element type"
    told = refused(backend.compiled(program), output, operand, *meta.arrays(), why=why)
    # Each process finds out for itself, unless another one was faster and has told it.
    return told.rpartition(" gave up: ")[2]


def _overlapping(rng: np.random.Generator, backend: Backend) -> tuple[Case, int, int, int]:
    """Two devices that write one row of a third, which is returned with them.

    The last device's last row lands on the first one of the device before it.
    """
    size = backend.size
    meta = reference.packed(rng.integers(1, 6, (size, size)), gap=5)
    one, other, receiver = size - 1, 0, size // 2
    row = int(meta.output_offsets[other, receiver])
    meta.output_offsets[:, receiver] += 5  # so that there is room before the first
    meta.output_offsets[one, receiver] = row + 5 - meta.send_sizes[one, receiver] + 1
    return Case(meta, *reference.data(rng, meta)), one, other, receiver


def _planned(exchange: Any, *args: Any, **options: Any) -> Any:
    plan = fastjax.plan_ragged_all_to_all(args[3], axis_name="x", **options)
    return exchange(*args, plan=plan)


def _overlaps(backend: Backend, rng: np.random.Generator, local: Callable[..., Any]) -> list[str]:
    texts = []
    bad, one, other, receiver = _overlapping(rng, backend)
    row = bad.meta.output_offsets[other, receiver]
    text = (
        rf"device {one} and device {other} both write row {row} of the output of device {receiver}"
        r": output_offsets"
    )
    apart = drawn(rng, backend.size, gap=1)
    for scheduler in ("direct", "fast", "balanced"):
        options = {"scheduler": scheduler, "topology": backend.topology}
        with fastjax.options(check_overlaps=True):
            run = backend.compiled(lambda exchange, *a, o=options: local(exchange, *a, **o))
            texts.append(refused(run, *bad.arguments(), why=text))
            same(run(*apart.arguments()), apart.expected())
    return texts


@check(needs=lambda backend: backend.size > 1)
def output_slices_that_overlap(backend: Backend, rng: np.random.Generator) -> list[str]:
    """Are refused where one asks for it."""
    return _overlaps(backend, rng, lambda exchange, *args, **o: exchange(*args, **o))


@check(needs=lambda backend: backend.size > 1)
def output_slices_that_overlap_with_a_plan(backend: Backend, rng: np.random.Generator) -> list[str]:
    return _overlaps(backend, rng, _planned)


@check(needs=lambda backend: backend.size > 1)
def overlaps_are_not_looked_for_unless_asked(backend: Backend, rng: np.random.Generator) -> None:
    """Either sender's rows may stay; all others are as they would be."""
    case, one, other, receiver = _overlapping(rng, backend)
    result = backend.compiled(lambda exchange, *args: exchange(*args))(*case.arguments())
    meta, operand, expected = case.meta, case.operand, case.expected()
    row = meta.output_offsets[other, receiver]
    last = meta.input_offsets[one, receiver] + meta.send_sizes[one, receiver] - 1
    either = [operand[one, last], operand[other, meta.input_offsets[other, receiver]]]
    for shard in result.addressable_shards:
        got, wanted = np.array(shard.data), expected[shard.index]
        place = receiver - shard.index[0].indices(backend.size)[0]
        if 0 <= place < len(got):
            assert _mixed(got[place, row], either, backend.mixes_rows)
            got[place, row] = wanted[place, row]
        np.testing.assert_array_equal(got, wanted)


def _mixed(row: np.ndarray, either: list[np.ndarray], bytewise: bool) -> bool:
    """Whether a row is one of two; `bytewise`: each byte of it, one of theirs."""
    if not bytewise:
        return any(np.array_equal(row, one) for one in either)
    found, one, other = (np.frombuffer(a.tobytes(), np.uint8) for a in (row, *either))
    return bool(np.all((found == one) | (found == other)))


@check
def rows_sent_to_several_devices_are_no_overlap(backend: Backend, rng: np.random.Generator) -> None:
    """Input slices may overlap, and so may what lands on the way back."""
    case = full(rng, backend)
    case.meta.input_offsets[:] = 0

    def program(exchange: Any, operand: Any, output: Any, *arrays: Any) -> Any:
        loss = lambda rows: (exchange(rows, output, *arrays) ** 2).sum()  # noqa: E731
        return jax.grad(loss)(operand)

    unchecked = backend.compiled(program)(*case.arguments())
    with fastjax.options(check_overlaps=True):
        checked = backend.compiled(program)(*case.arguments())
    for one, other in zip(checked.addressable_shards, unchecked.addressable_shards, strict=True):
        np.testing.assert_array_equal(one.data, other.data)
        assert np.abs(one.data).max() > 0
