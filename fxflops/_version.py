"""The version, with the commit between releases: ``1.1.0.dev0+g9f4f959e``.

It is read from files, since a count must not start git; uncommitted edits do not show in it.
This file imports nothing from the package, because hatchling runs it to name its builds.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path

VERSION = "1.1.0.dev0"
"""A release drops ``.dev0``, and with it the commit: package indexes refuse versions with a local part."""
ARCHIVED = "$Format:%H$"
"""``git archive`` writes the commit here (see ``.gitattributes``)."""
ROOT = Path(__file__).resolve().parents[1]
DIGITS = 8


def version() -> str:
    """Return the version of this copy of the package."""
    # If this copy was installed from a wheel, the metadata beside the package has the version.
    # Do not search other folders: with PYTHONPATH, another copy of fxflops may be installed in one of them.
    # Read the metadata before asking git, because pip can install into a folder that is a git repository.
    for installed in distributions(name="fxflops", path=[str(ROOT)]):
        return installed.version
    if ".dev" not in VERSION:
        return VERSION
    commit = "" if ARCHIVED.startswith("$") else ARCHIVED
    with suppress(OSError):  # no repository, or one that this user may not read
        commit = commit or _checked_out(ROOT / ".git")
    return f"{VERSION}+g{commit[:DIGITS]}" if commit else VERSION


def _checked_out(git: Path) -> str:
    """Return the hash of the commit that is checked out; "" if git stores its branches in a way unknown here."""
    if git.is_file():  # a worktree or a submodule: the file names the folder
        git = git.parent / git.read_text(encoding="utf8").removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text(encoding="utf8").strip()
    if not head.startswith("ref: "):
        return head
    branch = head.removeprefix("ref: ")
    shared = git / "commondir"  # worktrees share the branches of their repository
    if shared.is_file():
        git /= shared.read_text(encoding="utf8").strip()
    if (git / branch).is_file():
        return (git / branch).read_text(encoding="utf8").strip()
    for line in (git / "packed-refs").read_text(encoding="utf8").splitlines():
        commit, _, name = line.partition(" ")
        if name == branch:
            return commit
    return ""
