"""The version of every form of the package: clone, worktree, submodule, archive, install. git itself gives the expected commit."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from fxflops import _version

ROOT = Path(__file__).parents[1]
BASE = "1.2.dev0"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def copy_into(folder: Path, version: str = BASE) -> None:
    """Copy the files that the version is read from into a folder, and set this version."""
    file = folder / "fxflops" / "_version.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = Path(_version.__file__).read_text(encoding="utf8")
    text = text.replace(f'"{_version.VERSION}"', f'"{version}"')
    # The tests may themselves run from an archive.
    file.write_text(text.replace(_version.ARCHIVED, "$Format:%H$"), encoding="utf8")
    shutil.copy(ROOT / ".gitattributes", folder)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("no git to make a repository")
    folder = tmp_path / "repository"
    copy_into(folder)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def version_in(monkeypatch: pytest.MonkeyPatch):
    """Return the version that the copy in a folder reports, with no git on the PATH."""

    def version_in(folder: Path) -> str:
        spec = spec_from_file_location("_version_copy", folder / "fxflops" / "_version.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "")
            return module.version()

    return version_in


def expected(folder: Path) -> str:
    return f"{BASE}+g{git(folder, 'rev-parse', 'HEAD')[:8]}"


def test_a_clone_names_its_commit(repository: Path, version_in) -> None:
    first = version_in(repository)
    git(repository, "commit", "-qm", "second", "--allow-empty")
    assert version_in(repository) == expected(repository) != first


def test_branches_may_be_packed(repository: Path, version_in) -> None:
    git(repository, "branch", "another")
    git(repository, "pack-refs", "--all")
    assert version_in(repository) == expected(repository)


def test_a_detached_head(repository: Path, version_in) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert version_in(repository) == expected(repository)


def test_a_worktree_names_its_own_commit(repository: Path, tmp_path: Path, version_in) -> None:
    tree = tmp_path / "tree"
    git(repository, "worktree", "add", "-q", "-b", "topic", str(tree))
    git(tree, "commit", "-qm", "second", "--allow-empty")
    assert version_in(tree) == expected(tree) != version_in(repository)


def test_a_submodule_names_its_own_commit(repository: Path, tmp_path: Path, version_in) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "add", "-q", str(repository), "inner")
    assert version_in(outer / "inner") == expected(repository)


def test_an_archive_names_its_commit(repository: Path, tmp_path: Path, version_in) -> None:
    git(repository, "archive", "--output", str(tmp_path / "a.tar"), "HEAD")
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "archive", filter="data")
    assert version_in(tmp_path / "archive") == expected(repository)


def test_a_release_does_not(repository: Path, version_in) -> None:
    copy_into(repository, "1.2.3")
    assert version_in(repository) == "1.2.3"


def test_files_without_a_repository(tmp_path: Path, version_in) -> None:
    copy_into(tmp_path)
    assert version_in(tmp_path) == BASE


def test_what_is_installed_has_the_version_it_was_built_with(repository: Path, version_in) -> None:
    """The installed metadata wins even inside a git repository, e.g. after ``pip install --target``."""
    metadata = repository / "fxflops-1.2.dev0+gbuilt.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.4\nName: fxflops\nVersion: 1.2.dev0+gbuilt\n", encoding="utf8")
    assert version_in(repository) == "1.2.dev0+gbuilt"


def test_an_unknown_storage_of_branches_is_no_error(repository: Path, version_in) -> None:
    """With git's reftable format, HEAD names a branch that no file has. The version then leaves out the commit."""
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/.invalid\n", encoding="utf8")
    assert version_in(repository) == BASE
