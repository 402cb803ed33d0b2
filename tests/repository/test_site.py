"""The site that `make docs` built: every public name has its text, and nothing is fetched.

The variable FASTJAX_SITE, as `make docs` sets it, names its folder. Read are the pages as they are
served, so that what MkDocs and its plugins leave out is missed here too. MkDocs itself checks the
links and the menu.
"""

import ast
import os
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GIVEN = os.environ.get("FASTJAX_SITE")
SITE = Path(GIVEN or "build/site").resolve()
# What readers' programs may use, besides what the reference calls by its name.
MODULES = {"errors", "loopback", "moe", "plot", "simulation", "traffic"}

pytestmark = pytest.mark.skipif(not GIVEN, reason="make docs builds the site and checks it")


class Page(HTMLParser):
    """What tests look at in a page.

    Attributes:
      ids: of all elements.
      fetched: what a reader's browser fetches by itself.
      said: by id of a heading, the text of the paragraphs and lists that follow it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.fetched: list[str] = []
        self.said: dict[str, str] = defaultdict(str)
        self._heading = ""
        self._paragraphs = 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.add(found["id"])
            if re.fullmatch("h[1-6]", tag):
                self._heading = found["id"]
        if tag == "link" and found.get("rel") not in ("prev", "next", "canonical"):
            self.fetched.append(found["href"])
        elif tag in ("script", "img", "iframe", "source") and "src" in found:
            self.fetched.append(found["src"])
        self._paragraphs += tag in ("p", "td")

    def handle_endtag(self, tag):
        self._paragraphs -= tag in ("p", "td")

    def handle_data(self, data):
        if self._paragraphs:
            self.said[self._heading] += data


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    assert (SITE / "index.html").exists()
    return {path: Page(path) for path in SITE.rglob("*.html")}


def test_nothing_is_fetched_from_elsewhere(pages):
    fetched = {target for read in pages.values() for target in read.fetched}
    assert fetched
    assert [target for target in fetched if urlsplit(target).netloc] == []
    for page, read in pages.items():
        if page.name != "404.html":  # its targets are those of the site's root, wherever that is
            here = [urlsplit(target).path for target in read.fetched if target[:5] != "data:"]
            assert all((page.parent / path).exists() for path in here)
    sheets = list(SITE.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def public_names(module: str) -> list[str]:
    """`__all__`, by reading: whether the package can be imported does not matter here."""
    path = ROOT / "fastjax" / module
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{source} has no __all__")


def is_module(name: str) -> bool:
    return (ROOT / "fastjax" / name).is_dir() or (ROOT / f"fastjax/{name}.py").is_file()


@pytest.mark.parametrize("module", ["", *sorted(MODULES)])
def test_reference_has_every_public_name(pages, module):
    built = pages[SITE / "api" / f"{module or 'fastjax'}.html"]
    names = public_names(module)
    assert names
    for name in names:
        if module == "" and is_module(name):
            assert name in MODULES
            continue
        full = ".".join(filter(None, ["fastjax", module, name]))
        assert full in built.ids
        assert len(built.said[full].strip()) > 5, f"{full} has no docstring"


def test_modules_that_pages_name_have_a_reference(pages):
    named = set()
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = path.read_text()
        named |= set(re.findall(r"\bfastjax\.([a-z_]+)", text))
        named |= set(re.findall(r"from fastjax import ([a-z_]+)$", text, re.MULTILINE))
    modules = {name for name in named if is_module(name)}
    assert {"errors", "moe", "network"} <= modules
    # Those that have a function's name, too, are meant by it.
    for module in modules - set(public_names("")) | MODULES:
        assert SITE / "api" / f"{module}.html" in pages, module
