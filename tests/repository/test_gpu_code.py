"""The reader of the kernels' machine code, on code whose registers and loads are known."""

import json
from pathlib import Path

import pytest
from gpu_code import Kernel, loads_before_stores


def loads(text: str) -> list[int]:
    instructions = (line.strip().split(" ", 1) for line in text.splitlines() if line.strip())
    return loads_before_stores([(operation, operands) for operation, operands in instructions])


TWO = """
LDG.E.128 R8, [R2.64]
LDG.E.128 R12, [R4.64]
"""
STORES = """
STG.E.128 [R6.64], R8
STG.E.128 [R6.64], R12
"""


def test_loads_ahead_of_their_stores():
    assert loads(TWO + STORES) == [2]
    assert loads(TWO + STORES + TWO + "IADD3 R20, R20, 1, RZ" + STORES) == [2, 2]


def test_loads_that_are_waited_for():
    first = "LDG.E.128 R8, [R2.64]"
    assert loads(f"{first}\nSTG.E.128 [R6.64], R8\n{first}\nSTG.E.128 [R6.64], R8") == [1, 1]
    # R10 is of the four registers that the first load fills.
    second = "LDG.E.EF.128.CONSTANT R12, desc[UR4][R4.64]"
    assert loads(f"{first}\nIADD3 R20, R10, 1, RZ\n{second}\nSTG.E.EF.128 [R6.64], R12") == [1]
    # An address that was loaded is waited for, too.
    assert loads(f"{first}\nLDG.E.128 R12, [R8.64]\nSTG.E.128 [R6.64], R12") == [1]


def test_other_loads_and_stores_do_not_count():
    assert loads("LDG.E.64 R8, [R2.64]\nSTG.E.64 [R6.64], R8") == []
    assert loads("LDC.128 R8, c[0x0][0x10]\nSTG.E.128 [R6.64], R8") == []


# ---- the record, which `make gpu-compile` writes before it runs this

RECORD = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_compile.json").read_text()
)
KERNELS = [Kernel(**each) for each in RECORD["kernels"]]
CUDA = ("sm_80", "sm_90", "sm_100")
ROCM = ("gfx90a", "gfx942", "gfx950")
SUMS = {
    *(f"IndexedSumBody<{kind}, {kind}>" for kind in ("F16", "BF16", "F32", "F64")),
    *(f"IndexedSumBody<{kind}, F32>" for kind in ("F16", "BF16")),
}
# The least loads in flight ahead of the first store, of each way through a kernel.
LEAST = {"MoveBody": 4, "MoveFewBody": 4, "GatherBody": 4, "FetchBody": 4}
LEAST |= {name: 2 if "<F16" in name else 4 for name in SUMS}


@pytest.mark.parametrize("architecture", [*CUDA, *ROCM])
def test_the_record_has_all_kernels(architecture: str):
    names = [kernel.name for kernel in KERNELS if kernel.architecture == architecture]
    assert sorted(names) == sorted(LEAST)


@pytest.mark.parametrize(
    "kernel", KERNELS, ids=lambda kernel: f"{kernel.name}-{kernel.architecture}"
)
def test_the_record_of_a_kernel(kernel: Kernel):
    assert kernel.spilled == 0
    assert kernel.shared == 0
    # The 1,024 threads that the transport launches for a multiprocessor are to run at once. A
    # compute unit of AMD's has 128 registers for each.
    assert kernel.registers <= (64 if kernel.architecture in CUDA else 128)
    if kernel.architecture in CUDA:
        assert kernel.loads
        assert min(kernel.loads) >= LEAST[kernel.name]
