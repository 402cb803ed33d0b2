"""Each framework's block of docs/how_to/frameworks.md runs, after the page's first block.

FASTJAX_INTEGRATION=1, as `make integration` sets it, says that all of the frameworks are there.
"""

import importlib.util
import os
import re
from pathlib import Path

import pytest
from pythons import CPU, printed

PAGE = Path(__file__).parents[2] / "docs/how_to/frameworks.md"
MODULES = {
    "Flax linen": "flax",
    "Flax nnx": "flax",
    "Equinox": "equinox",
    "Haliax, Levanter": "haliax",
}
WRAPPED = """
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))


def send(rows, sizes):
    one = jnp.arange(4, dtype=jnp.int32)
    place = jnp.full(4, jax.lax.axis_index("x"), jnp.int32)
    out = jnp.zeros_like(rows)
    return jax.lax.ragged_all_to_all(rows, out, one, sizes, place, sizes, axis_name="x")


if __name__ == "__main__":
    mapped = jax.shard_map(send, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    rows = np.arange(16.0, dtype=np.float32).reshape(16, 1)
    result = jax.jit(mapped)(rows, np.ones(16, np.int32))
    np.testing.assert_array_equal(result.reshape(4, 4), rows.reshape(4, 4).T)
    print("exchanged")
"""


def blocks(language: str) -> dict[str, str]:
    """By the headings that they are under."""
    sections = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for heading, text in zip(sections[::2], sections[1::2], strict=True):
        code = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        found |= {heading: "\n".join(code)} if code else {}
    return found


def run(*command: str | Path, cwd: Path) -> str:
    return printed(*command, environment=CPU | {"PYTHONPATH": str(cwd)}, cwd=cwd)


def test_all_frameworks_are_known():
    assert list(blocks("python"))[1:] == list(MODULES)


@pytest.mark.parametrize("heading", MODULES)
def test_layer(heading, tmp_path):
    module = MODULES[heading]
    if importlib.util.find_spec(module) is None:
        assert "FASTJAX_INTEGRATION" not in os.environ, module
        pytest.skip(f"there is no {module}; make integration installs it")
    first, *_ = blocks("python").values()
    script = tmp_path / "example.py"
    script.write_text(first + blocks("python")[heading])
    run(script, cwd=tmp_path)


def test_a_trainer_that_is_started_by_the_script(tmp_path):
    (script,) = blocks("py").values()
    (tmp_path / "swapped.py").write_text(script)
    (tmp_path / "trainer.py").write_text(WRAPPED)
    assert "exchanged" in run("swapped.py", "trainer", cwd=tmp_path)
