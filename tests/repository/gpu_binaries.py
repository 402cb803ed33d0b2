"""What a shared library holds for GPUs, read from the file: no vendor's tools are needed.

`python tests/repository/gpu_binaries.py FILE...` prints it.
"""

import struct
import sys
from pathlib import Path
from typing import NamedTuple

_DYNAMIC = 6
_DYNAMIC_SYMBOLS = 11
_NEEDED = 1

_FATBIN = struct.pack("<I", 0xBA55ED50)
_FATBIN_KINDS = {1: "compute_", 2: "sm_"}  # PTX, machine code
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"


class Section(NamedTuple):
    name: str
    kind: int
    data: bytes
    linked: int  # the index of another section: that of a symbol table has its names


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def sections(path: Path | bytes) -> list[Section]:
    """The sections of a 64-bit little-endian ELF file or its bytes; ValueError if it is none."""
    file = path if isinstance(path, bytes) else path.read_bytes()
    name = "code object" if isinstance(path, bytes) else path
    if file[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{name} is not a 64-bit little-endian ELF file")
    try:
        (table,) = struct.unpack_from("<Q", file, 40)
        size, count, names_at = struct.unpack_from("<3H", file, 58)
        headers = [struct.unpack_from("<2I4Q2I", file, table + i * size) for i in range(count)]
        contents = [file[offset : offset + length] for *_, offset, length, _, _ in headers]
        return [
            Section(_text(contents[names_at], name), kind, data, linked)
            for (name, kind, *_, linked, _), data in zip(headers, contents, strict=True)
        ]
    except (struct.error, IndexError) as error:
        raise ValueError(f"{name} is cut off or damaged: {error}") from error


def needed(path: Path) -> list[str]:
    """The libraries that the loader has to find for it."""
    found = sections(path)
    return [
        _text(found[section.linked].data, value)
        for section in found
        if section.kind == _DYNAMIC
        for tag, value in struct.iter_unpack("<qQ", section.data)
        if tag == _NEEDED
    ]


def exported(path: Path) -> list[str]:
    """The names that it defines for others."""
    found = sections(path)
    return [
        _text(found[section.linked].data, name)
        for section in found
        if section.kind == _DYNAMIC_SYMBOLS
        for name, _, _, where, _, _ in struct.iter_unpack("<IBBHQQ", section.data)
        if where != 0
    ]


def _section(path: Path, name: str) -> bytes:
    return b"".join(section.data for section in sections(path) if section.name == name)


def cuda_code(path: Path) -> list[set[str]]:
    """Of each fat binary, its code: sm_90 for a GPU, compute_90 for what a driver compiles."""
    data = _section(path, ".nv_fatbin")
    found = []
    at = data.find(_FATBIN)
    while at >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        end = at + header + size
        at += header
        code = set()
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            (architecture,) = struct.unpack_from("<I", data, at + 28)
            code.add(f"{_FATBIN_KINDS[kind]}{architecture}")
            at += header + size
        found.append(code)
        at = data.find(_FATBIN, end)
    return found


def hip_code(path: Path) -> list[set[str]]:
    """Of each bundle, the GPUs (gfx942) that it has code for."""
    return [set(objects) for objects in hip_objects(path)]


def hip_objects(path: Path) -> list[dict[str, bytes]]:
    """Of each bundle, by GPU, the code objects, which are ELF files."""
    data = _section(path, ".hip_fatbin")
    found = []
    start = data.find(_BUNDLE)
    while start >= 0:
        at = start + len(_BUNDLE)
        (count,) = struct.unpack_from("<Q", data, at)
        at += 8
        code = {}
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", data, at)
            target = data[at + 24 : at + 24 + length].decode()
            at += 24 + length
            content = data[start + offset : start + offset + size]
            if content[:4] == b"\x7fELF":
                code[target.rpartition("-")[2]] = content
        found.append(code)
        start = data.find(_BUNDLE, at)
    return found


def report(path: Path) -> str:
    """All of it, in lines."""
    code = set().union(*cuda_code(path), *hip_code(path))
    lines = {"code": code, "needs": needed(path), "exports": exported(path)}
    return "\n".join([str(path), *(f"  {k}: {', '.join(sorted(v))}" for k, v in lines.items())])


if __name__ == "__main__":
    for file in sys.argv[1:]:
        print(report(Path(file)))  # noqa: T201
