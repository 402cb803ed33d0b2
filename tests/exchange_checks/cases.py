"""Exchanges of random rows, as many as one likes in one program: compiling one takes longest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib
import ml_dtypes
import numpy as np
import reference

from exchange_checks.backends import Backend, same

Members = Sequence[Sequence[int]]

# Shardy in jaxlib 0.11 ends the process on a shard_map over several devices that has an array
# without elements beside another one; jax.numpy alone shows it. 0.10.2 and 0.12 do not.
NO_EMPTY_ARRAYS = jaxlib.__version__.startswith("0.11.")


@dataclasses.dataclass
class Case:
    """An exchange, and what must come of it.

    Attributes:
      meta: offsets and sizes.
      operand, output: rows.
      members: positions of the devices that exchange with each other; None: all do.
      options: for `exchange`.
      types: of the four arrays of offsets and sizes.
    """

    meta: reference.Metadata
    operand: np.ndarray
    output: np.ndarray
    members: Members | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    types: Sequence[Any] = (np.int32,) * 4

    def arguments(self) -> tuple[np.ndarray, ...]:
        metadata = zip(self.meta.arrays(np.int64), self.types, strict=True)
        return self.operand, self.output, *(a.astype(t) for a, t in metadata)

    def expected(self) -> np.ndarray:
        return reference.exchange(self.operand, self.output, self.meta, self.members)


def drawn(
    rng: np.random.Generator,
    size: int,
    *,
    most: int = 5,
    updates: int = 2,
    gap: int = 0,
    rows: int = 0,
    trailing: tuple[int, ...] = (3,),
    dtype: Any = np.float32,
    groups: Members | None = None,
    members: Members | None = None,
    **options: Any,
) -> Case:
    """Random sizes up to `most`, `updates` for each peer; slices are packed, with gaps between.

    Operands and outputs have `rows` rows, or as many as are needed and two more.
    """
    members = members or groups
    peers = size if members is None else len(members[0])
    sizes = reference.random_sizes(rng, size, updates * peers, most)
    meta = reference.packed(sizes, members, gap)
    if rows:
        data = rng.normal(size=(2, size, rows, *trailing)).astype(np.float32)
    else:
        data = reference.data(rng, meta, trailing)
    operand, output = (of_type(8 * array, dtype) for array in data)
    if groups is not None:
        options["axis_index_groups"] = groups
    return Case(meta, operand, output, members, options)


def of_type(rows: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers of another type, by the name that it has in numpy or in ml_dtypes."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype) if isinstance(dtype, str) else dtype)
    return (np.abs(rows) if "uint" in dtype.name else rows).astype(dtype)


def narrowed(numbers: np.ndarray, dtype: Any) -> np.ndarray:
    """Complex numbers that another type holds exactly, in that type."""
    return (numbers if dtype == np.complex64 else numbers.real).astype(dtype)


def carry_out(
    backend: Backend,
    cases: Sequence[Case],
    mesh: jax.sharding.Mesh | None = None,
    *,
    check_vma: bool = True,
) -> None:
    """All of them in one program."""
    if NO_EMPTY_ARRAYS and backend.partitions > 1:
        cases = [case for case in cases if case.operand.size and case.output.size]

    def program(exchange: Any, data: Any) -> Any:
        pairs = zip(data, cases, strict=True)
        return [exchange(*args, **case.options) for args, case in pairs]

    results = backend.compiled(program, mesh, check_vma=check_vma)(
        [case.arguments() for case in cases]
    )
    for result, case in zip(results, cases, strict=True):
        try:
            same(result, case.expected())
        except AssertionError as error:
            error.add_note(f"of an exchange with {case.options}")
            raise
