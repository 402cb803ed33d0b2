"""Traffic matrices in files, as nccl-tests' `alltoallv_perf` takes them.

`NCCL_TESTS_ALLTOALLV_MATRIX_FILE` names a text file with a square matrix of bytes, one line for
each sender, numbers separated by white space, without any heading. Checked against the parser of
nccl-tests 2.19.6 (src/alltoallv.cu): it takes decimal fractions and exponents, skips empty lines,
knows neither commas nor comments, and rounds each number down to a multiple of 16 bytes. Of a
matrix for more ranks than run, it uses the first.
"""

from __future__ import annotations

import decimal
import re
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.traffic import checks
from fastjax.traffic.text import FilePath, lines, open_for_writing

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MOST_BYTES = 2**63 - 1


def read_matrix(path: FilePath, *, row_bytes: int = 1) -> np.ndarray:
    """Reads a traffic matrix of nccl-tests' `alltoallv_perf`.

    Unlike in nccl-tests, the file may be compressed with gzip, and text after # is skipped.
    Numbers may be written as 4096, 4096.0 or 4.096e3. They are taken as they are, not rounded down
    to 16 bytes.

    Args:
      path: a text file: a square matrix of bytes; row i has those that device i sends.
      row_bytes: bytes of a row; every number must be a multiple of it. With 1, rows are bytes.

    Returns:
      Rows that device i sends to device j, int64, shape (devices, devices).

    Raises:
      ArgumentError: the file holds no such matrix, named by line; or row_bytes is no size.
      OSError: it cannot be read.
    """
    row_bytes = checks.integer("row_bytes", row_bytes, 1)
    rows: list[list[int]] = []
    for where, line in lines(path):
        words = line.partition("#")[0].split()
        if not words:
            continue
        width = len(rows[0]) if rows else len(words)
        if len(words) != width:
            raise ArgumentError(f"{where}: {len(words)} numbers; the lines above have {width}.")
        if len(rows) == width:
            raise ArgumentError(
                f"{where}: want a square matrix, got more than {width} lines of {width} numbers."
            )
        rows.append([_rows(where, column, w, row_bytes) for column, w in enumerate(words, 1)])
    if not rows:
        raise ArgumentError(f"{path}: want a matrix of bytes, one line for each sender; got none.")
    if len(rows) != len(rows[0]):
        raise ArgumentError(
            f"{path}: want a square matrix, got {len(rows)} lines of {len(rows[0])} numbers."
        )
    return np.array(rows, dtype=np.int64)


def _rows(where: str, column: int, word: str, row_bytes: int) -> int:
    """One cell, in rows."""
    size = _bytes(f"{where}, column {column}", word)
    if size % row_bytes:
        raise ArgumentError(
            f"{where}, column {column}: {size} bytes are no whole number of rows of {row_bytes} "
            f"bytes; {size - size % row_bytes} or {size + row_bytes - size % row_bytes} would be."
        )
    return size // row_bytes


def _bytes(where: str, word: str) -> int:
    if not _NUMBER.fullmatch(word):
        hint = "; separate numbers by spaces" if "," in word or ";" in word else ""
        raise ArgumentError(f"{where}: want a number of bytes, got {word!r}{hint}.")
    try:
        value = decimal.Decimal(word)
    except decimal.InvalidOperation:  # an exponent that no Decimal has
        raise ArgumentError(f"{where}: {word} bytes are out of range.") from None
    if value < 0:
        raise ArgumentError(f"{where}: want 0 bytes or more, got {word}.")
    if value > _MOST_BYTES:
        raise ArgumentError(f"{where}: want fewer than 2**63 bytes, got {word}.")
    if value != value.to_integral_value():
        raise ArgumentError(f"{where}: want whole bytes, got {word}.")
    return int(value)


def write_matrix(path: FilePath, traffic: Any, *, row_bytes: int = 1) -> None:
    """Writes a traffic matrix for nccl-tests' `alltoallv_perf`.

    nccl-tests rounds each number down to a multiple of 16 bytes, and cannot read compressed files.

    Args:
      path: the file; compressed with gzip where its name ends in .gz.
      traffic: rows device i sends to device j; integers of 0 or more, shape (devices, devices).
      row_bytes: bytes of a row.

    Raises:
      ArgumentError: traffic is no such matrix, holds flows of 2**63 bytes or more, or row_bytes is
        no size.
      OSError: the file cannot be written.
    """
    row_bytes = checks.integer("row_bytes", row_bytes, 1)
    matrix = checks.matrix("traffic", traffic)
    if int(matrix.max()) * row_bytes > _MOST_BYTES:
        i, j = np.unravel_index(int(matrix.argmax()), matrix.shape)
        raise ArgumentError(
            f"traffic[{i}, {j}] = {matrix[i, j]} rows of {row_bytes} bytes are 2**63 bytes or more."
        )
    with open_for_writing(path) as stream:
        for row in matrix.tolist():
            stream.write(" ".join(str(rows * row_bytes) for rows in row) + "\n")
