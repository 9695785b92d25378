"""A check that linters do not have: no file names a package registry."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
# Each name is in two parts, so that this file does not contain it.
REGISTRIES = [
    first + second
    for first, second in [("pypi", ".org"), ("python", "hosted"), ("registry.", "npmjs"), ("deb.", "debian")]
]
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".sh", ".cfg", ""}


def text_files() -> list[Path]:
    """The project's own files: no hidden folders except .ci, and nothing built."""
    files = [path for path in ROOT.rglob("*") if path.is_file() and path.suffix in TEXT]
    return [path for path in files if not any(is_skipped(part) for part in path.relative_to(ROOT).parts)]


def is_skipped(part: str) -> bool:
    return (part.startswith(".") and part not in (".ci", ".gitignore")) or part in (
        "__pycache__",
        "build",
        "dist",
        "shared",
    )


def test_no_registry_is_named() -> None:
    files = text_files()
    assert ROOT / ".ci" / "run" in files
    assert ROOT / "README.md" in files
    for path in files:
        text = path.read_text(encoding="utf8", errors="replace").lower()
        assert not [host for host in REGISTRIES if host in text], path
