"""Prints coverage by folder, from the summary that gcovr writes: `coverage_table.py SUMMARY`."""

import collections
import json
import sys
from pathlib import Path

KINDS = ("line", "branch")


def row(name: str, counts: collections.Counter[str]) -> str:
    """One folder's covered, total and per cent, of lines and of branches."""
    cells = []
    for kind in KINDS:
        covered, total = counts[f"{kind}_covered"], counts[f"{kind}_total"]
        percent = f"{100 * covered / total:.1f}" if total else "-"
        cells.append(f"{covered:7} of {total:6} {percent:>6} %")
    return f"{name:26}" + "".join(f"{cell:26}" for cell in cells).rstrip()


def main() -> None:
    """Adds up what the files of a folder have, those of folders in it apart."""
    summary = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folders = collections.defaultdict(collections.Counter)
    for file in summary["files"]:
        counts = collections.Counter(
            {name: value for name, value in file.items() if name.endswith(("_covered", "_total"))}
        )
        for folder in (str(Path(file["filename"]).parent), "all"):
            folders[folder] += counts
    print(f"{'':26}{'lines':>23}   {'branches':>23}")
    for name in sorted(folders, key=lambda name: (name == "all", name)):
        print(row(name, folders[name]))


if __name__ == "__main__":
    main()
