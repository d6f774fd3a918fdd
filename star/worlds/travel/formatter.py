"""Plans in words put into typed days by a language model, as the published evaluations do. An option: the plan reader
understands most itineraries by itself. The model sees the answer alone, neither the query nor its facts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from importlib import resources
from pathlib import Path

from star.chat import Client
from star.progress import Progress, silent
from star.records import read_json, write_json

AT_ONCE = 8
"""Questions in flight."""


@cache
def instructions() -> str:
    return resources.files("star.worlds.travel").joinpath("prompts/formatter.md").read_text(encoding="utf-8").strip()


def cache_folder() -> Path:
    """Where replies are kept, so that no text is formatted twice."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "star" / "formatter"


class Formatter:
    """A model that formats, with its replies on disk by (instructions, model, text)."""

    def __init__(self, chat: Client, folder: Path | None = None) -> None:
        self._chat, self._model = chat, chat.endpoint.model
        self._folder = folder or cache_folder()

    def plans(self, texts: Iterable[str], progress: Progress = silent) -> dict[str, str]:
        """Each text -> what the model made of it. What it makes is judged like any answer, also if it is no plan.

        Raises StarError if the server fails; the replies that came before are kept.
        """
        wanted = list(dict.fromkeys(texts))
        found: dict[str, str] = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            waiting = {pool.submit(self.plan, text): text for text in wanted}
            try:
                for done, future in enumerate(as_completed(waiting), 1):
                    found[waiting[future]] = future.result()
                    progress(f"formatter {self._model}", done, len(wanted))
            finally:
                pool.shutdown(cancel_futures=True)
        return {text: found[text] for text in wanted}

    def plan(self, text: str) -> str:
        """What the model makes of one text."""
        path = self._folder / f"{self._key(text)}.json"
        if path.is_file():
            return str(read_json(path)["reply"])
        reply = self._chat.ask(instructions(), text)
        write_json(path, {"model": self._model, "reply": reply})
        return reply

    def _key(self, text: str) -> str:
        digest = hashlib.sha256()
        for part in (instructions(), self._model, text):
            digest.update(f"{len(part)}\0{part}\0".encode(errors="surrogatepass"))
        return digest.hexdigest()
