"""`python -m gpu_check.allocation`: one process that shares arrays of JAX's, or reads shared ones.

JAX reads its allocator's name once, so that each kind has a process of its own, and what is shared
is opened by another process. Both print JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
READ_BYTES = 64
READ_SECONDS = 20


class Driver:
    """The driver of fastjax's GPU library at `library`; of the emulated GPU if that is empty.

    It is asked by way of a library of the benchmarks', `helper`, which is compiled with the
    driver's header: that its table has not changed since need not be known here.
    """

    def __init__(self, helper: Path, library: str) -> None:
        loaded = ctypes.CDLL(str(helper))
        self._library = library.encode()
        self._find = loaded.fastjax_find_allocation
        self._find.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
        self._read = loaded.fastjax_read_allocation
        self._read.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
        self._find.restype = self._read.restype = ctypes.c_char_p

    def find(self, address: int) -> dict[str, str]:
        """The allocation that an address is in, and what opens it elsewhere, as far as it goes."""
        return _values(self._find(self._library, address))

    def read(self, handle: str, offset: int, size: int) -> dict[str, str]:
        """Bytes of what another process exported."""
        return _values(self._read(self._library, handle.encode(), offset, size))


def _values(lines: bytes) -> dict[str, str]:
    found = (line.partition(" ") for line in lines.decode(errors="replace").splitlines())
    return {name: value for name, _, value in found}


def export(helper: Path, library: str, sizes: list[int]) -> list[dict[str, Any]]:
    """Of arrays of so many bytes: their allocations, and whether another process reads them."""
    import jax
    import numpy as np

    device = jax.devices()[0]
    # Without its plugin, JAX goes on with the CPU even where it is asked for the GPU first.
    if library and device.platform != "gpu":
        raise SystemExit(f"JAX sees no GPU, its first device is {device.device_kind}")
    driver = Driver(helper, library)
    found = []
    for size in sizes:
        values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        array = jax.block_until_ready(jax.device_put(values, device))
        address = array.addressable_shards[0].data.unsafe_buffer_pointer()
        allocation = driver.find(address)
        one: dict[str, Any] = {"array_bytes": size, "stage": _stage(allocation)}
        one |= {name: int(allocation[name]) for name in ("bytes", "offset") if name in allocation}
        if "handle" in allocation:
            read = _read_elsewhere(helper, library, allocation)
            right = read.get("data") == values[:READ_BYTES].tobytes().hex()
            one["stage"] = "read by another process" if right else "exported"
            allocation["error"] = read.get("error", "" if right else "other bytes were read")
        one["error"] = allocation.get("error", "")
        found.append(one)
    return found


def _stage(allocation: dict[str, str]) -> str:
    return "found" if "bytes" in allocation else "not found"


def _read_elsewhere(helper: Path, library: str, allocation: dict[str, str]) -> dict[str, str]:
    command = [sys.executable, "-m", "gpu_check.allocation", "--helper", str(helper)]
    command += ["--library", library, "--handle", allocation["handle"]]
    try:
        done = subprocess.run(
            [*command, "--offset", allocation["offset"]],
            capture_output=True,
            text=True,
            timeout=READ_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"the process that opened it did not end in {READ_SECONDS} s"}
    try:
        return json.loads(done.stdout)
    except ValueError:
        words = done.stderr.strip().splitlines()[-1:]
        return {"error": f"the process that opened it: status {done.returncode} {' '.join(words)}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helper", type=Path, required=True)
    parser.add_argument("--library", default="")
    parser.add_argument("--handle", default="", help="reads this one; without, it exports arrays")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.handle:
        found: Any = Driver(given.helper, given.library).read(
            given.handle, given.offset, READ_BYTES
        )
    else:
        sizes = [4 * KIB] if given.tiny else [4 * KIB, 64 * MIB]
        found = export(given.helper, given.library, sizes)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
