"""What users read: examples run, links lead somewhere, tables are the recorded ones."""

import hashlib
import importlib.util
import json
import re
from pathlib import Path

import jupytext
import pytest
from pythons import CPU, printed

import fastjax
from fastjax import errors, moe

ROOT = Path(__file__).parents[2]
READMES = ["README.md", "benchmarks/README.md", "benchmarks/traces/README.md", "examples/README.md"]
PAGES = sorted([*(ROOT / name for name in READMES), *ROOT.glob("docs/**/*.md")])
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.py"))


def python_blocks(page: Path) -> str:
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    )


# Those of frameworks.md are run by test_frameworks.py, one framework at a time.
WITH_EXAMPLES = [page for page in PAGES if page.name != "frameworks.md" and python_blocks(page)]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=relative)
def test_examples_run(page: Path, tmp_path: Path):
    script = tmp_path / "example.py"
    script.write_text(python_blocks(page))
    ours = ("FASTJAX_", "JAX_COMPILATION_CACHE_DIR")
    printed("-W", "error", script, environment=CPU, without=ours, cwd=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]
            assert anchor in anchors, target


def test_versions_of_frameworks_are_those_tested():
    page, project = ((ROOT / name) for name in ("docs/how_to/frameworks.md", "pyproject.toml"))
    named = re.findall(r"[\w-]+==[\w.]+", page.read_text())
    assert named
    assert [each for each in named if f'"{each}' not in project.read_text()] == []


def test_reference_has_every_public_name():
    text = "".join((ROOT / f"docs/{page}.md").read_text() for page in ("reference", "errors"))
    names = [*fastjax.__all__, *errors.__all__, *moe.__all__, *fastjax.schedulers()]
    names += ["FASTJAX_TIMEOUT"]
    missing = [name for name in names if not re.search(rf"`(fastjax\.(errors\.)?)?{name}\b", text)]
    assert missing == []
    for module in (fastjax, moe):
        assert {*module.__all__} <= {*dir(module)} <= {*vars(module)}


def test_recorded_results_are_those_shown():
    """`python benchmarks/to_markdown.py` brings them up to date."""
    spec = importlib.util.spec_from_file_location("_", ROOT / "benchmarks/to_markdown.py")
    assert spec is not None
    assert spec.loader is not None
    to_markdown = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(to_markdown)
    pages = to_markdown.pages(ROOT)
    assert len(pages) >= 4
    for path, text in pages.items():
        assert path.read_text() == text, path


def test_recorded_results_are_right():
    for path in ROOT.glob("benchmarks/results/*.json"):
        record = json.loads(path.read_text())
        if record["schema"] == "fastjax-bench-1":
            assert not any(entry["wrong"] for entry in record["schemes"])


@pytest.mark.parametrize("source", NOTEBOOKS, ids=relative)
def test_notebooks_are_in_step(source: Path):
    """`make notebooks` brings them up to date: outputs are those of the code beside them."""
    stored = source.with_suffix(".ipynb")
    notebook = jupytext.read(stored)

    def cells(book):
        return [(cell.cell_type, cell.source) for cell in book.cells]

    assert cells(notebook) == cells(jupytext.read(source))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    sources = "\n".join(cell.source for cell in code)
    assert notebook.metadata["executed"] == hashlib.sha256(sources.encode()).hexdigest()
    shown = [output for cell in code for output in cell.outputs]
    assert shown
    assert {output.get("name") for output in shown} <= {None, "stdout"}  # no warnings
    assert stored.stat().st_size < 100e3
