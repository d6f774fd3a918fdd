"""Where libraries compile their extensions (DeepSpeed's, at first use), and what killed processes leave there.

torch guards such a directory by a file, which a killed process leaves behind: every later one would wait for it without end.
Only a process that still has the file open holds it, and the processes of one machine are all that can be asked: hence a
directory for each machine, as one home directory may serve several.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from importlib.metadata import version
from pathlib import Path

logger = logging.getLogger(__name__)

VARIABLE = "TORCH_EXTENSIONS_DIR"
LOCK = "lock"
"""What torch calls the file (torch.utils.cpp_extension)."""
PROCESSES = Path("/proc")
PAUSE = 1.0
"""Seconds between two looks."""


def directory() -> Path:
    """That of this machine, this Python and this torch, below the directory of the environment or the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(os.environ.get(VARIABLE) or cache / "torch_extensions")
    return root.absolute() / f"{platform.node()}-py{platform.python_version()}-torch{version('torch')}"


def keep_free(root: Path, until: threading.Event) -> None:
    """Release the locks of dead processes until the event: one may be about to die."""
    while not until.wait(PAUSE):
        release(root)


def release(root: Path) -> None:
    """Remove the locks of `root` that no process holds, where the system tells which files processes have open."""
    locks = {lock: mark for lock in root.glob(f"*/{LOCK}") if (mark := _mark(lock))}
    if not locks or not PROCESSES.is_dir():
        return
    held = {_mark(opened) for opened in PROCESSES.glob("[0-9]*/fd/*")}
    for lock, mark in locks.items():
        if mark not in held and _mark(lock) == mark:  # and nobody has taken it meanwhile
            lock.unlink(missing_ok=True)
            logger.warning("removed %s: the process that compiled there was killed", lock)


def _mark(file: Path) -> tuple[int, int, int] | None:
    """What tells one open file from another, as long as it exists and may be seen."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
