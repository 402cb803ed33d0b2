"""`python -m gpu_check.allocators`: which of JAX's allocators have memory that processes can share.

Each kind is tried in a process of its own. One that cannot share is a finding and no failure: this
program fails only if no kind gave an answer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KINDS = ("default", "bfc", "platform", "cuda_async", "vmm")
SECONDS = 30  # of a process, of which there is one for each kind, within the 160 s of the part


def ask(kind: str, arguments: list[str]) -> dict[str, Any]:
    """What a process with this allocator found; why it found nothing."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment["XLA_PYTHON_CLIENT_ALLOCATOR"] = kind
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_check.allocation", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"kind": kind, "arrays": [], "error": f"did not end in {SECONDS} s"}
    print(done.stderr, flush=True)
    words = done.stderr.strip().splitlines()[-1:]
    error = f"exit status {done.returncode}: {' '.join(words)[:300]}" if done.returncode else ""
    try:
        return {"kind": kind, "arrays": json.loads(done.stdout.splitlines()[-1]), "error": error}
    except (IndexError, ValueError):  # it ended before it had any
        return {"kind": kind, "arrays": [], "error": error or "it printed nothing"}


def in_words(found: dict[str, Any]) -> str:
    arrays = [
        f"{one['array_bytes']} bytes {one['stage']}"
        + (f" ({one['offset']} into {one['bytes']})" if "bytes" in one else "")
        + (f": {one['error']}" if one["error"] else "")
        for one in found["arrays"]
    ]
    return f"{found['kind']}: {'; '.join([*arrays, *filter(None, [found['error']])])}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--helper", type=Path, required=True)
    parser.add_argument("--library", default="")
    parser.add_argument("--tiny", action="store_true", help="one kind, one small array")
    given = parser.parse_args()
    arguments = ["--helper", str(given.helper), "--library", given.library]
    arguments += ["--tiny"] if given.tiny else []
    found: list[dict[str, Any]] = []
    for kind in KINDS[:1] if given.tiny else KINDS:
        found.append(ask(kind, arguments))
        print(in_words(found[-1]), flush=True)
        given.json.write_text(json.dumps({"allocators": found}, indent=1) + "\n")
    answers = [each["kind"] for each in found if each["arrays"]]
    print(f"answers of {len(answers)} of {len(found)} allocators")
    return 0 if answers else 1


if __name__ == "__main__":
    sys.exit(main())
