"""Lays out a compiler for HIP from wheels of PyPI: python hip_sdk.py WHEELS SDK.

No package has all of it. ziglang has a clang with AMD's GPUs among its targets and a linker;
clang-tidy of the same LLVM has clang's own headers, of which ziglang leaves out those for HIP;
triton has HIP's headers and device libraries. What is small is made here: constants that the
device libraries are specialised by, and the bundler.

This compiles, so that every change is known to; programs for use are built with a ROCm, as
docs/how_to/gpu_build.md says. The result: SDK/bin/clang++, with SDK as its --rocm-path.
"""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

# Names that the device libraries leave open. (Files of clang's choosing, variable, value)
INTEGERS = [
    ("oclc_abi_version_600", "ABI_version", 600),
    ("oclc_isa_version_90a", "ISA_version", 9010),
    ("oclc_isa_version_942", "ISA_version", 9402),
    ("oclc_isa_version_950", "ISA_version", 9500),
]
SWITCHES = ["correctly_rounded_sqrt", "finite_only", "unsafe_math", "wavefrontsize64"]


def unpack(wheels: Path, package: str, keep: Callable[[str], Path | None]) -> str:
    """Writes the files of a wheel for which `keep` has a place; returns the wheel's version."""
    found = sorted(wheels.glob(f"{package}-*.whl"))
    if len(found) != 1:
        sys.exit(f"{wheels} should have one wheel of {package}, not {[f.name for f in found]}")
    with zipfile.ZipFile(found[0]) as archive:
        for name in archive.namelist():
            place = None if name.endswith("/") else keep(name)
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.read(name))
    return found[0].name.split("-")[1]


def under(prefix: str, folder: Path, suffix: str = "") -> Callable[[str], Path | None]:
    """Keeps what is under `prefix` and ends in `suffix`, in `folder`."""

    def keep(name: str) -> Path | None:
        kept = name.startswith(prefix) and name.endswith(suffix)
        return folder / name[len(prefix) :] if kept else None

    return keep


def write_program(path: Path, text: str) -> None:
    """Writes a shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def write_programs(sdk: Path) -> None:
    """The programs that the driver calls, by the names that it calls them by."""
    zig = sdk / "zig" / "zig"
    zig.chmod(0o755)
    bundler = Path(__file__).resolve().parent / "offload_bundler.py"
    options = f"--target=x86_64-linux-gnu -resource-dir='{sdk}/clang' -B'{sdk}/bin'"
    write_program(sdk / "bin" / "clang++", f"exec '{zig}' clang --driver-mode=g++ {options} \"$@\"")
    # Called as `lld -flavor gnu`.
    write_program(sdk / "bin" / "lld", f"shift 2\nexec '{zig}' ld.lld \"$@\"")
    write_program(
        sdk / "bin" / "clang-offload-bundler", f"exec '{sys.executable}' '{bundler}' \"$@\""
    )


def write_bitcode(sdk: Path) -> None:
    """The constants, and the two empty files without which clang does not take the folder."""
    # A variable of a size of its own, in constant memory, that is the same in every file.
    form = 'const __attribute__((address_space(4), weak, visibility("protected"))) {} {} = {};\n'
    files = {"hip": "", "opencl": ""}
    for name, variable, value in INTEGERS:
        files[name] = form.format("int", f"__oclc_{variable}", value)
    for name in SWITCHES:
        for value, state in enumerate(("off", "on")):
            files[f"oclc_{name}_{state}"] = form.format("char", f"__oclc_{name}", value)
    compiler = [sdk / "zig" / "zig", "clang", "--target=amdgcn-amd-amdhsa", "-nogpulib", "-x", "c"]
    for name, text in files.items():
        output = sdk / "amdgcn" / "bitcode" / f"{name}.bc"
        subprocess.run(
            [*compiler, "-O1", "-emit-llvm", "-c", "-", "-o", output],
            input=text.encode(),
            check=True,
        )


def main(wheels: Path, sdk: Path) -> None:
    """Lays out the SDK."""
    compiler = unpack(wheels, "ziglang", under("ziglang/", sdk / "zig", suffix="/zig"))
    headers = "clang_tidy/data/lib/clang/22/include/"
    tidy = unpack(wheels, "clang_tidy", under(headers, sdk / "clang/include"))
    print(f"HIP compiler from ziglang {compiler} and the headers of clang-tidy {tidy}")
    amd = "triton/backends/amd"
    unpack(wheels, "triton", under(f"{amd}/include/hip/", sdk / "include/hip"))
    unpack(wheels, "triton", under(f"{amd}/lib/", sdk / "amdgcn/bitcode", suffix=".bc"))
    version = sdk / "share" / "hip" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("HIP_VERSION_MAJOR=7\nHIP_VERSION_MINOR=1\nHIP_VERSION_PATCH=0\n")
    write_programs(sdk)
    write_bitcode(sdk)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
