"""Text files, compressed with gzip or not."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from fastjax.errors import ArgumentError

_GZIP_MAGIC = b"\x1f\x8b"

FilePath = str | os.PathLike[str]


def open_for_writing(path: FilePath) -> TextIO:
    """Opens a new text file, compressed where its name ends in .gz."""
    if Path(path).suffix == ".gz":
        # Traces are large: more takes several times as long, and saves little.
        return gzip.open(path, "wt", compresslevel=4, encoding="utf-8", newline="\n")
    return Path(path).open("w", encoding="utf-8", newline="\n")


def lines(path: FilePath) -> Iterator[tuple[str, str]]:
    """Yields each line, after where it is: "path, line 3".

    One line is in memory at a time. What is compressed is told by its first bytes, not by its name.

    Raises:
      ArgumentError: the file is no text, or its compressed data are damaged.
      OSError: it cannot be read.
    """
    number = 0
    with Path(path).open("rb") as raw:
        packed = raw.peek(2)[:2] == _GZIP_MAGIC
        with gzip.open(raw) if packed else raw as stream:
            try:
                for number, line in enumerate(stream, 1):
                    yield f"{path}, line {number}", line.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise ArgumentError(f"{path}, line {number}: want text, {error}.") from None
            except (gzip.BadGzipFile, zlib.error, EOFError) as error:
                raise ArgumentError(
                    f"{path}, after line {number}: its gzip data are damaged: {error}."
                ) from None
