"""The direction of dependence between layers, in C++ and in Python."""

import ast
import graphlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Folder of ffi/ -> what it may include of ours, besides itself: folders, or single headers. A
# folder inside another is one of its own. No backend may include another.
_SHARED = ["exchange", "execution", "kernels", "planner", "rendezvous", "runtime"]
_GPU = ["backends/gpu", "backends/gpu/device", "backends/gpu/nccl"]
CPP_LAYERS = {
    "planner": [],
    "planner/schedulers": ["planner"],
    "kernels": [],
    "exchange": ["kernels/copy.h", "kernels/sum.h", "planner/table.h", "planner/transfer.h"],
    "runtime": ["exchange", "kernels", "planner"],
    "execution": ["exchange", "kernels", "planner/table.h", "planner/transfer.h", "runtime"],
    "rendezvous": ["exchange", "planner/table.h", "runtime"],
    "backends/memory": _SHARED,
    "backends/network": _SHARED,
    "backends/network/ucx": ["backends/network", "exchange", "runtime"],
    "backends/gpu/device": ["exchange", "kernels", "runtime"],
    "backends/gpu/nccl": ["backends/gpu/device", "exchange", "runtime"],
    "backends/gpu": [*_SHARED, *_GPU],
    "backends": [*_SHARED, *_GPU, "backends/memory", "backends/network"],
    "simulator": ["planner/topology.h", "planner/transfer.h"],
    "handlers": [*_SHARED, *_GPU, "backends", "backends/memory", "backends/network"],
    "python": [*_SHARED, *_GPU, "backends", "backends/network", "handlers", "simulator"],
}
# Folder -> what its code may not name: what all backends share knows none of them.
_BACKENDS = r"\b(?:gpu|memory|network|nccl|ucx)::|\b(?:Gpu|Nccl|Ucx)[A-Z]"
CPP_UNNAMED = dict.fromkeys(("exchange", "execution", "rendezvous", "runtime"), _BACKENDS)
# Pattern of a header that is not ours -> the only folders that may include it.
CPP_EXTERNAL = {
    r"xla/": ["handlers", "python"],
    r"nanobind/": ["python"],
    r"uc[mpst]/": ["backends/network/ucx"],
    r"Python\.h|pyconfig\.h|numpy/": ["python"],
}
# Folders that may include the standard library only: headers whose names have no dot and no slash.
CPP_PURE = ["planner", "planner/schedulers", "simulator"]
# Modules and packages of fastjax/, lowest first. One may import those in the lines above its own;
# those in one line know nothing of each other. A package counts as one, but for parts of it that
# have names of their own here. What is imported for type checkers, or inside functions, counts.
PYTHON_LAYERS = [
    ["_core"],
    ["errors"],
    ["devices", "traffic"],
    ["topology"],
    ["checks", "optimal", "scheduling", "scopes"],
    ["config"],
    ["jax_compat"],
    ["network", "handlers"],
    ["chunking.resources", "schedule"],
    ["plot"],
    ["host", "traced"],
    ["chunking"],
    ["loopback", "measurement", "moe", "simulation"],
    ["swap"],
    ["__init__"],
    ["cli.shared"],
    ["cli.bench", "cli.environment", "cli.plan", "cli.simulate"],
    ["cli"],
    ["__main__"],
]
# The only modules and packages that may import JAX: what is traced or compiled is theirs, or they
# ask JAX for its devices, errors, options or profiler.
PYTHON_WITH_JAX = [
    *(
        "config",
        "devices",
        "errors",
        "handlers",
        "host.plan",
        "jax_compat",
        "measurement",
        "moe",
        "network",
        "swap",
        "traced",
    ),
    *("cli.bench", "cli.environment", "cli.shared.machine"),
]
# The only module that may import, or reach into, private parts of JAX.
PYTHON_JAX_PRIVATE = "jax_compat"

_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
_CPP_SUFFIXES = {".cc", ".cu", ".cuh", ".h", ".hip"}


def _may_include(folder: str, header: str) -> bool:
    """Whether a file of that folder may include that header, which is ours or not."""
    owner = header.rpartition("/")[0]
    if owner in CPP_LAYERS:
        return owner == folder or owner in CPP_LAYERS[folder] or header in CPP_LAYERS[folder]
    if folder in CPP_PURE:
        return bool(re.fullmatch(r"[a-z_0-9]+", header))
    users = [folders for pattern, folders in CPP_EXTERNAL.items() if re.match(pattern, header)]
    return all(folder in folders for folders in users)


def cpp_violations(root: Path) -> Iterator[str]:
    """Yields what the rules forbid to files under `root`/ffi: includes, and names of backends."""
    for path in sorted((root / "ffi").rglob("*")):
        if path.suffix not in _CPP_SUFFIXES:
            continue
        folder = path.parent.relative_to(root / "ffi").as_posix()
        where = path.relative_to(root)
        if folder not in CPP_LAYERS:
            yield f"{where}: {folder}/ is not a layer"
            continue
        text = path.read_text()
        bad = [header for header in _INCLUDE.findall(text) if not _may_include(folder, header)]
        yield from (f"{where}: includes {header}" for header in bad)
        code = re.sub(r"//.*", "", text)
        if folder in CPP_UNNAMED and (named := re.search(CPP_UNNAMED[folder], code)):
            yield f"{where}: names a backend: {named[0]}"


def test_cpp_layers_have_one_direction():
    folders = {
        folder: {
            allowed if allowed in CPP_LAYERS else allowed.rpartition("/")[0] for allowed in lower
        }
        - {folder}
        for folder, lower in CPP_LAYERS.items()
    }
    graphlib.TopologicalSorter(folders).prepare()  # raises where there is a circle


def _imports(tree: ast.AST, package: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields all that is imported: (module, names), with relative imports resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(base + (node.module or "").split(".")).strip(".")
            yield module, [alias.name for alias in node.names]


def _is_private(dotted: str) -> bool:
    parts = dotted.split(".")
    private = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return parts[0] in {"jax", "jaxlib"} and private


def _private_jax_names(tree: ast.AST, package: list[str]) -> Iterator[str]:
    for module, names in _imports(tree, package):
        yield from filter(_is_private, [module, *(f"{module}.{name}" for name in names)])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from filter(_is_private, [ast.unparse(node)])


def _part_of(dotted: str, parts: Iterable[str]) -> str | None:
    """The longest of `parts` that a module is, or is in."""
    names = dotted.split(".")
    heads = (".".join(names[:count]) for count in range(len(names), 0, -1))
    return next((head for head in heads if head in parts), None)


def _sources(root: Path) -> dict[str, Path]:
    """Modules and packages of `root`/fastjax by their names in there; fastjax itself: __init__."""
    found = {}
    for path in sorted((root / "fastjax").rglob("*.py")):
        *folders, name = path.relative_to(root / "fastjax").with_suffix("").parts
        found[".".join(folders if folders and name == "__init__" else [*folders, name])] = path
    return found


def _ours(path: Path, root: Path, modules: Container[str]) -> Iterator[str]:
    """Yields the modules of fastjax that one imports, where names may be modules or not."""
    package = list(path.relative_to(root).parent.parts)
    for source, names in _imports(ast.parse(path.read_text()), package):
        first, *rest = source.split(".")
        if first != "fastjax":
            continue
        for name in names or [""]:
            dotted = ".".join([*rest, name]).strip(".")
            yield dotted if dotted in modules else ".".join(rest) or "__init__"


def python_violations(root: Path) -> Iterator[str]:
    """Yields the imports under `root`/fastjax that the rules forbid."""
    rank = {module: i for i, layer in enumerate(PYTHON_LAYERS) for module in layer}
    sources = _sources(root)
    for dotted, path in sources.items():
        where = path.relative_to(root)
        module = _part_of(dotted, rank)
        if module is None:
            yield f"{where}: {dotted} is not in a layer"
            continue
        package = list(where.parent.parts)
        tree = ast.parse(path.read_text())
        if dotted != PYTHON_JAX_PRIVATE:
            private = sorted(set(_private_jax_names(tree, package)))
            yield from (f"{where}: uses {name}" for name in private)
        if _part_of(dotted, PYTHON_WITH_JAX) is None:
            for source, _ in _imports(tree, package):
                if source.split(".")[0] in {"jax", "jaxlib"}:
                    yield f"{where}: imports {source}"
        for other in _ours(path, root, {*sources, *rank}):
            unit = _part_of(other, rank)
            if unit is None:
                yield f"{where}: imports {other}, which is not in a layer"
            elif unit != module and rank[unit] >= rank[module]:
                yield f"{where}: imports {other}"
    yield from _circles(root, sources, {*sources, *rank})


def _circles(root: Path, sources: dict[str, Path], known: Container[str]) -> Iterator[str]:
    """Yields a circle of imports between modules, if there is one."""
    imported = {name: {*_ours(path, root, known)} & {*sources} for name, path in sources.items()}
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        yield f"{' <- '.join(error.args[1])}: imports in a circle"


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_python_files_of_tests_have_names_of_their_own():
    """Helpers, and tests that a process of a job runs, are imported by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name, count in names.items() if count > 1 and name != "__init__.py"] == []


def test_cpp_layers():
    assert (ROOT / "ffi").is_dir()
    assert list(cpp_violations(ROOT)) == []


def test_python_layers():
    assert (ROOT / "fastjax").is_dir()
    assert list(python_violations(ROOT)) == []


@pytest.mark.parametrize(
    ("file", "header"),
    [
        ("planner/a.cc", '"kernels/copy.h"'),
        ("planner/a.h", "<pthread.h>"),
        ("exchange/a.cc", '"planner/planner.h"'),
        ("backends/gpu/a.cc", '"backends/network/runner.h"'),
        ("backends/network/a.cc", '"backends/network/ucx/transport.h"'),
        ("handlers/a.cc", "<Python.h>"),
        ("elsewhere/a.cc", "<vector>"),
    ],
)
def test_cpp_checker_catches(tmp_path: Path, file: str, header: str):
    _write(tmp_path, {f"ffi/{file}": f"#include <cstdint>\n  #  include {header}\n"})
    assert len(list(cpp_violations(tmp_path))) == 1


@pytest.mark.parametrize("folder", CPP_UNNAMED)
def test_cpp_checker_catches_names_of_backends(tmp_path: Path, folder: str):
    _write(tmp_path, {f"ffi/{folder}/a.h": "// On GPUs, gpu::Caller.\nstruct A {\n  int a;\n};\n"})
    assert list(cpp_violations(tmp_path)) == []
    _write(tmp_path, {f"ffi/{folder}/a.h": "struct A {\n  const gpu::Caller* caller;\n};\n"})
    assert len(list(cpp_violations(tmp_path))) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("errors.py", "import fastjax"),
        ("topology.py", "from .config import options"),
        ("topology.py", "def f():\n    from fastjax.host.plan import make_plan"),
        ("topology.py", "import typing\nif typing.TYPE_CHECKING:\n    from .host.plan import Plan"),
        ("host/plan.py", "from fastjax.traced import exchange"),
        ("host/run.py", "from .. import cli"),
        ("host/plan.py", "from jax import _src"),
        ("host/plan.py", "import jax\nx = jax._src.core.f(1)"),
        ("traffic/files.py", "def f():\n    import jax.numpy as jnp"),
        ("cli/bench/command.py", "from fastjax.cli.plan import record"),
        ("cli/shared/text.py", "import fastjax.cli"),
        ("unknown.py", "import numpy"),
        ("host/plan.py", "from ..unknown import x"),
    ],
)
def test_python_checker_catches(tmp_path: Path, file: str, text: str):
    _write(tmp_path, {f"fastjax/{file}": text})
    assert list(python_violations(tmp_path)) != []


@pytest.mark.parametrize(
    "files",
    [
        {
            "plot/a.py": "import typing\nif typing.TYPE_CHECKING:\n    from .b import x",
            "plot/b.py": "import fastjax.plot.c",
            "plot/c.py": "def f():\n    from fastjax.plot.a import y",
        },
        {"plot/__init__.py": "from .a import x", "plot/a.py": "from fastjax.plot import x"},
    ],
)
def test_python_checker_catches_circles(tmp_path: Path, files: dict[str, str]):
    _write(tmp_path, {f"fastjax/{name}": text for name, text in files.items()})
    (found,) = python_violations(tmp_path)
    assert found.endswith("imports in a circle")
    assert "plot.a" in found


# Beginnings of paths in ffi/ where objects may live as long as the process and change: the emulated
# GPU plays hardware, and vendor.h is of GPU libraries, which are loaded for themselves.
CPP_WITH_STATE = ("runtime/", "kernels/emulated_", "kernels/vendor.h")

# Up to where a name ends that is declared static, or a mutex or an atomic at the left margin, where
# namespaces have theirs.
_LONG_LIVED = re.compile(
    r"^(?:\s*(?:inline\s+)?(?:static|thread_local)\s|(?:inline\s+)?std::(?:\w*mutex|atomic\w*)\b)"
    r"(?P<declared>[^;{=(]*)(?P<end>[;{=(]|$)"
)


def _changes(declared: str) -> bool:
    """Whether an object declared so can: not if it is a constant, or what XLA has of a type."""
    if re.search(r"\bconstexpr\b|\bffi::TypeId id$|^XLA_FFI_Error\* const ", declared):
        return False
    return re.match(r"(?:inline\s+|static\s+)*const\b", declared) is None


def cpp_state(root: Path) -> Iterator[str]:
    """Yields what is defined under `root`/ffi outside runtime/, outlives calls and changes."""
    for path in sorted((root / "ffi").rglob("*")):
        where = path.relative_to(root / "ffi").as_posix()
        if path.suffix not in _CPP_SUFFIXES or where.startswith(CPP_WITH_STATE):
            continue
        for line in path.read_text().splitlines():
            found = _LONG_LIVED.match(line)
            if found is None or found["end"] in {"(", ""}:  # a function, or its beginning
                continue
            if _changes(found["declared"].strip()):
                yield f"ffi/{where}: {line.strip()}"


def test_state_is_in_runtime():
    assert list(cpp_state(ROOT)) == []


@pytest.mark.parametrize(
    "line",
    [
        "  static auto* const loaded = new std::map<int, int>;",
        "  inline static std::atomic<bool> collecting_{false};",
        "  static int calls = 0;",
        "std::atomic<int64_t> made{0};",
        "thread_local int device = 0;",
    ],
)
def test_state_checker_catches(tmp_path: Path, line: str):
    _write(tmp_path, {"ffi/backends/a.cc": f"{line}\n", "ffi/runtime/a.cc": f"{line}\n"})
    assert list(cpp_state(tmp_path)) == [f"ffi/backends/a.cc: {line.strip()}"]
