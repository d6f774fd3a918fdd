"""Where a result came from: versions, the state of the code, the machine."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import star

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm")


def versions() -> dict[str, str]:
    """Versions of Python, star and the installed training packages, read without importing them."""
    found = {"python": platform.python_version(), "star": star.__version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git() -> tuple[str | None, bool]:
    """(commit, whether files differ from it) of the checkout star runs from; (None, False) if it is no checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None, False
    commit = _git(root, "rev-parse", "HEAD")
    return commit, bool(commit and _git(root, "status", "--porcelain"))


def host() -> str:
    return f"{platform.node()} ({platform.system()} {platform.machine()})"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
