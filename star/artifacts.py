"""Artifacts: files and directories that one stage leaves for the next, known by the hash of their bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Artifact:
    kind: str
    path: str
    """Relative to the run directory."""
    sha256: str
    """Of the bytes of a file; of the names and hashes of all files of a directory."""
    bytes: int
    """Total size."""
    files: int | None = None
    """Number of files of a directory; None for a single file."""
    rows: int | None = None
    """Number of records, where the stage counted them."""


def seal(kind: str, path: Path, rows: int | None = None) -> Artifact:
    """Describe what lies at `path`; the caller makes the path relative. Raises FileNotFoundError if nothing does."""
    if not path.is_dir():
        return Artifact(kind, str(path), _hash_file(path), path.stat().st_size, rows=rows)
    files = _files(path)
    size = sum(file.stat().st_size for file in files)
    return Artifact(kind, str(path), _hash_tree(path, files), size, len(files), rows)


def fault(artifact: Artifact, path: Path, full: bool) -> str | None:
    """What is wrong with the artifact at `path`, None if nothing is.

    Files are always hashed. Directories are compared by number of files and total size, and hashed only if `full`.
    """
    if not path.exists() or path.is_dir() != (artifact.files is not None):
        return "is missing"
    if artifact.files is None:
        same = path.stat().st_size == artifact.bytes and _hash_file(path) == artifact.sha256
        return None if same else "was changed after it was written"
    files = _files(path)
    same = len(files) == artifact.files and sum(file.stat().st_size for file in files) == artifact.bytes
    if same and full:
        same = _hash_tree(path, files) == artifact.sha256
    return None if same else "was changed after it was written"


def share(source: Path, target: Path) -> None:
    """Put the file or directory `source` at `target` without copying bytes where the file system allows it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link)
    else:
        _link(str(source), str(target))


def sync(directory: Path) -> None:
    """Bring the files under a directory, and the directories themselves, safely to disk."""
    for path in (*(path for path in directory.rglob("*") if path.exists()), directory):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_tree(directory: Path, files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(directory).as_posix()}\0{_hash_file(file)}\n".encode())
    return digest.hexdigest()
