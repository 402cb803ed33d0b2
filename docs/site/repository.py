"""Puts what lies outside docs/, and is linked to, on the site, and makes links fit there.

Pages are written for the forge, where a link leads from file to file. On the site, files outside
docs/ are under repository/, at their path in the repository; of a folder, that is its README.md, or
else a list of what is in it. Notebooks become pages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCED = re.compile(r"^(```.*?^```)$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")


def on_files(files: Any, config: Any) -> Any:
    """Adds notebooks, what pages link to, and what those pages link to."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages()]
    for notebook in sorted(ROOT.glob("notebooks/*.ipynb")):
        files.append(File.generated(config, _uri(notebook), content=_as_page(notebook)))
        pages.append(notebook)
    while pages:
        for path in _linked(pages.pop()):
            found = [path]
            if path.is_dir() and not _shown(path).exists():
                found += _contents(path)
            for each in map(_shown, found):
                uri = _uri(each)
                if files.get_file_from_path(uri):
                    continue
                exists = each.exists()
                source = {"abs_src_path": str(each)} if exists else {"content": _listing(path)}
                files.append(File.generated(config, uri, **source))
                if exists and each.suffix == ".md":
                    pages.append(each)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Makes links lead to where files are on the site, and says how searches find the page."""
    if page.file.src_uri.startswith("repository/"):
        page.meta["search"] = {"exclude": True}  # records have every word, and would come first
    elif page.file.src_uri.startswith("design/"):
        page.meta["search"] = {"boost": 0.5}
    made = ROOT / page.file.src_uri.removeprefix("repository/")  # a list of ours, or a notebook
    source = Path(page.file.abs_src_path or made)

    def on_site(link: re.Match[str]) -> str:
        target = _target(source, link[0])
        if target is None:
            return link[0]
        here = os.path.dirname(page.file.src_uri)  # noqa: PTH120
        return Path(os.path.relpath(_uri(_shown(target)), here)).as_posix()

    return "".join(
        part if part.startswith("```") else _LINK.sub(on_site, part)
        for part in _FENCED.split(markdown)
    )


def _linked(page: Path) -> Iterator[Path]:
    """Files and folders outside docs/ that a page links to."""
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        target = _target(page, link)
        if target is not None and not target.is_relative_to(DOCS):
            yield target


def _target(page: Path, link: str) -> Path | None:
    """What a link leads to, if that is in the repository; else MkDocs has its say."""
    if ":" in link:
        return None
    path = (page.parent / link).resolve()
    return path if path.is_relative_to(ROOT) and path.exists() else None


def _shown(path: Path) -> Path:
    """The page for a folder; itself for a file."""
    if not path.is_dir():
        return path
    readme = path / "README.md"
    return readme if readme.exists() else path / "index.md"


def _uri(path: Path) -> str:
    if path.suffix == ".ipynb":
        path = path.with_suffix(".md")
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return "repository/" + path.relative_to(ROOT).as_posix()


def _contents(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))


def _listing(folder: Path) -> str:
    names = [path.name for path in _contents(folder)]
    title = folder.relative_to(ROOT).as_posix()
    return "\n".join([f"# {title}", "", *(f"- [`{name}`]({name})" for name in names), ""])


def _as_page(notebook: Path) -> str:
    """Its text, code and outputs, in Markdown."""
    parts = []
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("data", {"text/plain": output.get("text")})
            if "image/png" in shown:
                parts.append(f"![Figure](data:image/png;base64,{shown['image/png'].strip()})")
            else:
                parts.append(f"```text\n{''.join(shown['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts)
