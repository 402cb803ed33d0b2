"""`make release`: what it refuses, and that it makes a tag and pushes nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = """# Changelog

## Unreleased

## 1.2.3 - 2030-01-31

- A line.

## 1.2.2 - 2029-01-01
"""
# Neither the repository of a hook that runs these tests, nor anybody's settings.
NOBODY = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
NOBODY |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
WHO = {f"GIT_{role}_NAME": "N" for role in ("AUTHOR", "COMMITTER")}
WHO |= {f"GIT_{role}_EMAIL": "n@example.org" for role in ("AUTHOR", "COMMITTER")}


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=NOBODY | WHO,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A repository that can be released as 1.2.3."""
    folder = tmp_path_factory.mktemp("original")
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/release", folder / ".ci")
    (folder / "pyproject.toml").write_text('[project]\nname = "fastjax"\nversion = "1.2.3"\n')
    (folder / "CHANGELOG.md").write_text(CHANGES)
    git(folder, "init", "--quiet", "--template=")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return folder


@pytest.fixture
def project(original, tmp_path: Path) -> Path:
    """A copy of it, and beside it a `make` that notes what it is asked for."""
    shutil.copytree(original, tmp_path / "project")
    (tmp_path / "make").write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/made"\n')
    (tmp_path / "make").chmod(0o755)
    return tmp_path / "project"


def release(project: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [project / ".ci/release", *arguments],
        env=NOBODY | WHO | {"PATH": f"{project.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def tags(project: Path) -> list[str]:
    return [path.name for path in (project / ".git/refs/tags").glob("*")]


def edit(name: str, old: str, new: str):
    def change(project: Path) -> None:
        text = (project / name).read_text()
        assert old in text
        (project / name).write_text(text.replace(old, new))

    return change


def leave_uncommitted(project: Path) -> None:
    (project / "new.txt").write_text("")


def test_makes_the_tag_after_building_and_testing(project):
    done = release(project, "1.2.3")
    assert done.returncode == 0, done.stderr
    assert (project.parent / "made").read_text().split() == ["dist", "dist-test"]
    assert tags(project) == ["v1.2.3"]
    assert git(project, "rev-parse", "v1.2.3^{commit}") == git(project, "rev-parse", "HEAD")


REFUSED = [
    ("", lambda _: None, "the version is ''"),
    ("v1.2.3", lambda _: None, "the version is 'v1.2.3'"),
    ("1.2.4", lambda _: None, "pyproject.toml has version 1.2.3; write 1.2.4 there"),
    (
        "1.2.3",
        edit("pyproject.toml", "[project]", '[project]\ncuda13 = ["fastjax-cuda13-plugin==1.2.2"]'),
        "plugins of another version than 1.2.3",
    ),
    ("1.2.3", edit("CHANGELOG.md", "## 1.2.3 - ", "## 1x2.3 - "), "no section '## 1.2.3 - "),
    ("1.2.3", edit("CHANGELOG.md", " - 2030-01-31", ""), "no section '## 1.2.3 - "),
    (
        "1.2.3",
        edit("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- New.\n"),
        "under Unreleased",
    ),
    (
        "1.2.3",
        edit("CHANGELOG.md", "- A line.", "No release is published so far."),
        "pages say that no release is published so far: CHANGELOG.md",
    ),
    ("1.2.3", leave_uncommitted, "changes that are not committed"),
    ("1.2.3", lambda project: git(project, "tag", "v1.2.3"), "there is a tag v1.2.3 already"),
]


@pytest.mark.parametrize(("version", "change", "reason"), REFUSED)
def test_refuses(project, version, change, reason):
    change(project)
    before = tags(project)
    done = release(project, version)
    assert done.returncode == 1
    assert done.stderr.startswith("no release: ")
    assert reason in done.stderr
    assert tags(project) == before
    assert not (project.parent / "made").exists()


def test_makes_no_tag_of_what_does_not_build(project):
    (project.parent / "make").write_text('#!/bin/sh\ntest "$1" != dist-test\n')
    assert release(project, "1.2.3").returncode != 0
    assert tags(project) == []


def test_checks_only_the_sources_of_a_tag(project):
    git(project, "tag", "v1.2.3")
    assert release(project, "--check", "1.2.3").returncode == 0
    assert release(project, "--check", "1.2.4").returncode == 1
    assert not (project.parent / "made").exists()
