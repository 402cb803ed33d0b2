"""What clang's HIP driver asks of clang-offload-bundler: code objects, put together in one file.

The format: a magic string, the number of entries, then for each its offset, its size, and the name
of its target with the length of that before it; then the entries, aligned. Numbers have 64 bits.
"""

import struct
import sys
from pathlib import Path

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"


def bundle(entries: list[tuple[str, bytes]], alignment: int) -> bytes:
    """The bundle of (target, code) pairs, in their order."""
    end = len(MAGIC) + 8 + sum(24 + len(target) for target, _ in entries)
    header = [MAGIC, struct.pack("<Q", len(entries))]
    body = bytearray()
    for target, code in entries:
        body += bytes(-(end + len(body)) % alignment)
        name = target.encode()
        header += [struct.pack("<QQQ", end + len(body), len(code), len(name)), name]
        body += code
    return b"".join(header) + bytes(body)


def main(arguments: list[str]) -> None:
    """Bundles as the arguments say: -type, -targets, -input, -output, -bundle-align."""
    given: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, value = argument.lstrip("-").partition("=")
        given.setdefault(name, []).append(value)
    unknown = given.keys() - {"type", "targets", "input", "output", "bundle-align", "verbose"}
    if unknown or given["type"] != ["o"]:
        sys.exit(f"offload_bundler.py knows no {sorted(unknown) or given['type']}")
    targets = given["targets"][0].split(",")
    codes = [Path(name).read_bytes() for name in given["input"]]
    alignment = int(given.get("bundle-align", ["1"])[0])
    output = bundle(list(zip(targets, codes, strict=True)), alignment)
    Path(given["output"][0]).write_bytes(output)


if __name__ == "__main__":
    main(sys.argv[1:])
