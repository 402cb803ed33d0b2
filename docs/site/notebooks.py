"""Executes notebooks/*.py, and stores each with its outputs as a notebook: `make notebooks`."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parents[2]
KERNEL = ["--log-level=ERROR", "--InlineBackend.rc={'figure.dpi': 72}"]


def execute(source: Path) -> Any:
    """The notebook of a source, with its outputs."""
    notebook = jupytext.read(source)
    folder = {"metadata": {"path": str(source.parent)}}
    options = {"record_timing": False, "coalesce_streams": True, "timeout": 600}
    NotebookClient(notebook, resources=folder, extra_arguments=KERNEL, **options).execute()
    return notebook


def tidy(notebook: Any) -> None:
    """Leaves what readers need, and the same of each run that shows the same."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    notebook.metadata = {
        "executed": hashlib.sha256(code.encode()).hexdigest(),
        "kernelspec": notebook.metadata.kernelspec,
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise RuntimeError(f"a cell warns: {output.text}")
            if "image/png" in output.get("data", ()):
                output.data = {"image/png": smaller(output.data["image/png"])}


def smaller(figure: str) -> str:
    """A figure as a quarter of its bytes, in colours that are near those of thin lines, too."""
    image = Image.open(io.BytesIO(base64.b64decode(figure))).convert("RGB")
    written = io.BytesIO()
    few = image.quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main() -> None:
    """Of the sources that are given, or of all."""
    given = [Path(name).resolve() for name in sys.argv[1:]]
    for source in given or sorted((ROOT / "notebooks").glob("*.py")):
        notebook = execute(source)
        tidy(notebook)
        nbformat.write(notebook, source.with_suffix(".ipynb"))


if __name__ == "__main__":
    main()
