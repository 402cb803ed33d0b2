"""What a shared library holds for GPUs, read from the file: no vendor's tools are needed."""

import struct
from pathlib import Path

from elftools.elf.elffile import ELFFile

_FATBIN = struct.pack("<I", 0xBA55ED50)
_FATBIN_KINDS = {1: "compute_", 2: "sm_"}  # PTX, machine code
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"


def needed(path: Path) -> list[str]:
    """The libraries that the loader has to find for it."""
    with path.open("rb") as file:
        tags = ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        return [tag.needed for tag in tags]


def exported(path: Path) -> list[str]:
    """The names that it defines for others."""
    with path.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return [symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"]


def _section(path: Path, name: str) -> bytes:
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(name)
        return section.data() if section else b""


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
