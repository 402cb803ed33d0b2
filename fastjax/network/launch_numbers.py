"""How processes know that they launch the same executable, and which launch of it that is.

Names and shapes do not say so: two programs may have the same. So each call carries the fingerprint
of the whole lowered module, and C++ is told from where XLA counts the launches of its executable.

The run id of a launch is the sum, in 32 bits, of three numbers: a hash of the executable's
fingerprint, a number that all processes have alike for its devices, and how often the executable
has been launched before. The hash is `Fingerprint64` of farmhash. Were a later jaxlib to take
another one, numbers of processes whose executables differ would not match: launches would fail, and
not be confused.
"""

from __future__ import annotations

import struct

_K2 = 0x9AE16A3B2F90404F
_MASK = 0xFFFFFFFFFFFFFFFF
_LENGTHS = range(33, 65)  # the only ones that the formula below is for; farmhash has others


def start_of(fingerprint: bytes | None) -> int | None:
    """The run id of an executable's first launch, less what processes have alike.

    Args:
      fingerprint: of the executable, as jaxlib tells it: a decimal number of 128 bits.

    Returns:
      None if it is not known. What is alike is left to equal run ids then.
    """
    if fingerprint is None:
        return 0
    return _fingerprint64(fingerprint) & 0xFFFFFFFF if len(fingerprint) in _LENGTHS else None


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return value >> bits | value << 64 - bits


def _mix(u: int, v: int, factor: int) -> int:
    a = (u ^ v) * factor & _MASK
    b = (v ^ a ^ a >> 47) * factor & _MASK
    return (b ^ b >> 47) * factor & _MASK


def _fingerprint64(text: bytes) -> int:
    s0, s1, s2, s3 = struct.unpack("<4Q", text[:32])
    t0, t1, t2, t3 = struct.unpack("<4Q", text[-32:])
    factor = _K2 + 2 * len(text)
    a, b, c, d = s0 * _K2, s1, t3 * factor, t2 * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d & _MASK
    z = _mix(y, a + _rotate(b + _K2, 18) + c & _MASK, factor)
    e, f, g, h = s2 * factor, s3, (y + t0) * factor, (z + t1) * factor
    last = _rotate(e + f, 43) + _rotate(g, 30) + h & _MASK
    return _mix(last, e + _rotate(f + a, 18) + g & _MASK, factor)
