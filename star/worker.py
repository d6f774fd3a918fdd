"""One process of a training in several: `python -m star.worker ORDER`, started by `star.launch` under torchrun or accelerate.

The first process tells on stdout how far it is and how it ended, one JSON object a line. It beats now and then: when nobody
reads any more, the command that started it is dead, and the workers go too.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import IO, Any

from star import extensions, plugins
from star.errors import StarError
from star.records import parse, plain, read_json
from star.settings import Recipe
from star.stage import Input, Job, Work, finite

BEAT = 1.0
"""Seconds between two signs of life."""


class Mouth:
    """Writes JSON lines to the command that listens."""

    def __init__(self, stream: IO[str], speaks: bool) -> None:
        self._stream, self._speaks, self._lock = stream, speaks, threading.Lock()
        self.begun = threading.Event()
        """The first progress was told."""
        if speaks:
            threading.Thread(target=self._beat, daemon=True).start()

    def say(self, event: dict[str, Any] | None) -> None:
        if not self._speaks:
            return
        with self._lock:
            try:
                self._stream.write("\n" if event is None else json.dumps(event) + "\n")
                self._stream.flush()
            except OSError:
                os._exit(1)

    def progress(self, label: str, done: int, total: int, note: str = "") -> None:
        self.begun.set()
        self.say({"progress": [label, done, total, note]})

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT):
            self.say(None)


def work_of(order: dict[str, Any]) -> Work:
    """The stage as the command that keeps the run sees it."""
    held = order["work"]
    inputs = [parse(Input, row, "inputs") for row in held["inputs"]]
    return Work(parse(Job, held["job"], "job"), Path(held["directory"]), held["resuming"], inputs, Path(held["root"]))


def main(path: Path) -> int:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    first = os.environ.get("RANK", "0") == "0"
    logging.getLogger("star").setLevel(logging.INFO if first else logging.ERROR)
    mouth = Mouth(sys.stdout, first)
    built = extensions.directory()
    os.environ[extensions.VARIABLE] = str(built)
    if first:
        threading.Thread(target=extensions.keep_free, args=(built, mouth.begun), daemon=True).start()
    order = read_json(path)
    work = work_of(order)
    with (work.directory / ".worker").open("a") as alone:
        if first:
            fcntl.lockf(alone, fcntl.LOCK_EX)  # workers of a command that died may take a moment to notice
        try:
            plugins.load(order["target"])(parse(Recipe, order["recipe"], str(path)), work, mouth.progress)
        except StarError as error:
            mouth.say({"error": error.what, "fix": error.fix, "exit_code": error.exit_code})
            return error.exit_code
        except Exception as error:
            reason = " ".join(str(error).split()) or "no message"
            mouth.say({"error": f"{type(error).__name__}: {reason}", "fix": "Where it happened stands above", "exit_code": 1})
            raise
    mouth.say({**work.made(), "metrics": finite(plain(work.metrics))})
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
