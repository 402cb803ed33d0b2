"""Set-up shared by all tests: eight CPU devices, and the same random data every time."""

import gc
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator

import hypothesis
import jax
import jaxlib
import numpy as np
import pytest

# Child processes too must import the installed package, not the source folder they may start in.
os.environ["PYTHONSAFEPATH"] = "1"

# jaxlib before 0.12 parks one thread of its pool for every device of every launch in flight (at
# most 32 a device), and its pool has as many threads as there are devices: launches that are queued
# without waiting then deadlock in any collective, its own included. It sizes the pool by this.
if tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 12):
    os.environ["NPROC"] = str(8 * 33)

# Much of the tests' time is LLVM's, optimising programs of XLA that run once; what fastjax does is
# compiled before. Child processes read the variable. Set it to 0 to test with optimised programs.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
jax.config.update(
    "jax_disable_most_optimizations", os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] != "0"
)

# jaxlib 0.10 has two emitters of fused operations, and its default one takes more than half of what
# is left; later versions refuse the flag, and their tests are those of the default.
if (
    jaxlib.__version__.startswith("0.10.")
    and os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] != "0"
    and "xla_cpu_use_fusion_emitters" not in os.environ.get("XLA_FLAGS", "")
):
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()
    )

# Many programs are compiled for several tests, by several workers, or by each process of a job. The
# first process of pytest makes a folder for what is compiled, which its workers and children read.
KEPT = "JAX_COMPILATION_CACHE_DIR"
MADE = tempfile.mkdtemp(prefix="fastjax-compiled-") if KEPT not in os.environ else ""
os.environ.setdefault(KEPT, MADE)
for option, value in {
    KEPT: os.environ[KEPT],
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.0,
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
}.items():
    os.environ[option] = str(value)
    jax.config.update(option.lower(), value)

# Tracing makes many objects and few cycles: looking for these so often takes a tenth of the time.
gc.set_threshold(100_000, 50, 100)

# Before anything asks JAX for its devices.
jax.config.update("jax_num_cpu_devices", 8)

# No deadlines, neither for tests nor for drawing: whether a test passes never depends on how fast
# the machine is.
hypothesis.settings.register_profile(
    "dev", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("dev"), derandomize=True, database=None, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

np.set_printoptions(linewidth=120)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--first-parameters",
        action="store_true",
        help="of each test with parameters run the first ones only, and those marked every_jax",
    )


@pytest.hookimpl(trylast=True)  # of those that -m and -k leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--first-parameters"):
        return
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], item)
    chosen = {*first.values(), *(item for item in items if item.get_closest_marker("every_jax"))}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_unconfigure() -> None:
    if MADE:
        shutil.rmtree(MADE, ignore_errors=True)


def pytest_report_header() -> str:
    return (
        f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, "
        f"{jax.device_count()} {jax.default_backend()} devices"
    )


@pytest.fixture(params=["as CPU", "as GPU"])
def indexed_as(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which device carries out indexed exchanges of CPU devices: another than all else may have."""
    from fastjax import handlers

    monkeypatch.setattr(handlers, "emulates_gpus", lambda: request.param == "as GPU")
    return request.param


@pytest.fixture
def collecting() -> Iterator[None]:
    """Statistics are collected, of the test alone."""
    from collected import collected

    with collected():
        yield


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the names of the test and its file, in whichever folder that is."""
    name = f"tests/{request.path.name}::{request.node.nodeid.partition('::')[2]}"
    return np.random.default_rng(zlib.crc32(name.encode()))
