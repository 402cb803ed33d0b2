"""The machine code of the kernels: registers, spills, memory, and how many loads are in flight.

`python tests/repository/gpu_code.py --json FILE LIBRARY...`, with this folder and benchmarks/ in
PYTHONPATH, writes FILE, and its page beside it. For CUDA it takes cuobjdump and nvdisasm, on PATH;
what there is to be read for ROCm is in the file.
"""

import argparse
import io
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgpack
import records
from elftools.elf.elffile import ELFFile
from gpu_binaries import hip_objects
from gpu_compile import SCHEMA, page


@dataclass
class Kernel:
    name: str
    architecture: str
    registers: int  # of a thread
    # Bytes of a thread's that are in memory: CUDA's stack and local memory, ROCm's scratch.
    spilled: int
    shared: int  # bytes of a block
    # Ahead of each group of 16-byte stores, the most 16-byte loads that nothing has waited for.
    # CUDA's only.
    loads: list[int] = field(default_factory=list)


def kernel_name(mangled: str) -> str:
    """What runs in it: `MoveBody`, `IndexedSumBody<BF16, F32>`."""
    second = r"(?:(S\w*_)|NS\w*?_\d(\w+?)E)"  # the first again, or another
    found = re.search(rf"\d(\w+?Body)(?:INS\w*?_\d(\w+?)E{second}?E)?E+v", mangled)
    if found is None:
        return mangled
    body = re.sub(r"^.*\d(?=[A-Z]\w*Body$)", "", found[1])
    arguments = [found[2], found[2] if found[3] else found[4]]
    named = ", ".join(name for name in arguments if name)
    return f"{body}<{named}>" if named else body


# ---- CUDA

_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_.]+)\s*([^;]*);")
_REGISTER = re.compile(r"\bR(\d+)")


def loads_before_stores(instructions: list[tuple[str, str]]) -> list[int]:
    """Ahead of each group of 16-byte stores, the most 16-byte loads that are in flight together.

    Code is read from its beginning to its end. A load is in flight until something takes a
    register of what it loads; then those before it are there, too.
    """
    in_flight: list[set[int]] = []
    found = []
    most = 0
    for operation, operands in instructions:
        registers = [int(number) for number in _REGISTER.findall(operands)]
        for i in reversed(range(len(in_flight))):
            if in_flight[i].intersection(registers):
                del in_flight[: i + 1]
                break
        if re.match(r"LDG?\.E.*128", operation):
            in_flight.append(set(range(registers[0], registers[0] + 4)))
            most = max(most, len(in_flight))
        elif re.match(r"STG?\.E.*128", operation) and most > 0:
            found.append(most)
            most = 0
    return found


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _by_function(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Architecture, name and lines of each function that cuobjdump tells of."""
    architecture = ""
    for part in re.split(r"^(?=\s*Function |arch = )", text, flags=re.MULTILINE):
        if found := re.match(r"arch = (\w+)", part):
            architecture = found[1]
        elif found := re.match(r"\s*Function (?:: )?(\w+)", part):
            yield architecture, kernel_name(found[1]), part.splitlines()[1:]


def cuda_kernels(library: Path) -> list[Kernel]:
    """Of a library, by the toolkit's tools."""
    code = {
        (architecture, name): [
            (found[1], found[2]) for line in lines if (found := _INSTRUCTION.match(line))
        ]
        for architecture, name, lines in _by_function(_run("cuobjdump", "-sass", library))
    }
    kernels = []
    usage = _run("cuobjdump", "--dump-resource-usage", library)
    for architecture, name, lines in _by_function(usage):
        of = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", " ".join(lines))}
        loads = loads_before_stores(code[architecture, name])
        spilled = of["STACK"] + of["LOCAL"]
        kernels.append(Kernel(name, architecture, of["REG"], spilled, of["SHARED"], loads))
    return sorted(kernels, key=lambda kernel: (int(kernel.architecture[3:]), kernel.name))


# ---- ROCm

AMD_METADATA = 32  # NT_AMDGPU_METADATA, a MessagePack


def rocm_kernels(library: Path) -> list[Kernel]:
    """Of a library, by the metadata of its code objects."""
    kernels = []
    for objects in hip_objects(library):
        for architecture, content in objects.items():
            for section in ELFFile(io.BytesIO(content)).iter_sections("SHT_NOTE"):
                notes = [note for note in section.iter_notes() if note["n_type"] == AMD_METADATA]
                for note in notes:
                    kernels += [
                        Kernel(
                            kernel_name(each[".name"]),
                            architecture,
                            each[".vgpr_count"],
                            each[".private_segment_fixed_size"],
                            each[".group_segment_fixed_size"],
                        )
                        for each in msgpack.unpackb(note["n_descdata"])["amdhsa.kernels"]
                    ]
    return sorted(kernels, key=lambda kernel: (kernel.architecture, kernel.name))


def made_by(library: Path) -> str:
    """The compiler, as the file says it."""
    data = library.read_bytes()
    found = re.search(rb"Cuda compilation tools, release [^\0\n]+", data)
    found = found or re.search(rb"clang version [^\0\n(]*[^\0\n( ]", data)
    return f"{library.name}: {found[0].decode() if found else 'unknown compiler'}."


def main() -> None:
    """Writes a record, and its page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("libraries", nargs="+", type=Path)
    parser.add_argument("--json", required=True, type=Path)
    arguments = parser.parse_args()
    kernels = [
        asdict(kernel)
        for library in arguments.libraries
        for kernel in (rocm_kernels if "rocm" in library.name else cuda_kernels)(library)
    ]
    compilers = [made_by(library) for library in arguments.libraries]
    record = {"schema": SCHEMA, "compilers": compilers, "kernels": kernels}
    records.replace(arguments.json, records.text(record))
    title = arguments.json.stem.replace("_", " ")
    records.replace(arguments.json.with_suffix(".md"), page(record, title))


if __name__ == "__main__":
    main()
