"""Locks of torch's extension directories. If this breaks, a run whose predecessor was killed while it compiled waits for ever,
or takes a lock away from somebody who compiles."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from star import extensions

HOLD = "import os, sys, time\nos.open(sys.argv[1], os.O_CREAT | os.O_EXCL)\nprint(flush=True)\ntime.sleep(600)"
"""As torch.utils.file_baton acquires."""


@contextmanager
def holder(lock: Path) -> Iterator[subprocess.Popen[str]]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_the_lock_of_a_killed_process_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = tmp_path / "op" / extensions.LOCK
    with holder(lock) as process:
        extensions.release(tmp_path)
        assert lock.exists(), "held"
        process.kill()
        process.wait()
        extensions.release(tmp_path)
    assert not lock.exists()
    assert [record.message for record in caplog.records] == [f"removed {lock}: the process that compiled there was killed"]


def test_a_lock_is_known_by_its_file_not_its_name(tmp_path: Path) -> None:
    """A holder may see the directory under another path."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with holder(tmp_path / "link" / "op" / extensions.LOCK):
        extensions.release(tmp_path / "real")
        assert (tmp_path / "real" / "op" / extensions.LOCK).exists()


def test_a_lock_whose_holder_dies_later_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "PAUSE", 0.01)
    lock, begun = tmp_path / "op" / extensions.LOCK, threading.Event()
    with holder(lock) as process:
        keeper = threading.Thread(target=extensions.keep_free, args=(tmp_path, begun))
        keeper.start()
        time.sleep(0.2)
        assert lock.exists()
        process.kill()
        deadline = time.monotonic() + 60
        while lock.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        begun.set()
        keeper.join()
    assert not lock.exists()


def test_where_nobody_can_be_asked_locks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "PROCESSES", tmp_path / "no proc")
    lock = tmp_path / "op" / extensions.LOCK
    lock.parent.mkdir()
    lock.touch()
    extensions.release(tmp_path)
    assert lock.exists()


def test_each_machine_and_torch_has_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "version", lambda _: "2.13.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(extensions.VARIABLE, raising=False)
    found = []
    for machine in ("a", "b"):
        monkeypatch.setattr(extensions.platform, "node", lambda machine=machine: machine)
        found.append(extensions.directory())
    assert {path.parent for path in found} == {tmp_path / "torch_extensions"} and found[0] != found[1]
    monkeypatch.setenv(extensions.VARIABLE, str(tmp_path / "own"))
    assert extensions.directory().parent == tmp_path / "own"
