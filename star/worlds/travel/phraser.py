"""Queries put into words by a language model. Each text is read back by the extractor, and every fact must survive."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from star.chat import Client
from star.progress import Progress, silent
from star.worlds.travel.extract import Extractor, differences

TRIES = 3
"""Texts asked for at most of one query."""
AT_ONCE = 16
MANNERS = (
    "short and plain", "friendly and a little talkative", "formal", "in a hurry, in short sentences", "as one long sentence",
    "as a parent planning for the family", "as somebody who starts with the money", "as somebody who starts with the dates",
    "as somebody who starts with the wishes", "as a letter without greeting", "as notes turned into sentences", "enthusiastic",
)  # fmt: skip


@cache
def instructions() -> str:
    return resources.files("star.worlds.travel").joinpath("prompts/phraser.md").read_text(encoding="utf-8").strip()


@dataclass
class Phraser:
    """Asks a model for the wording of queries."""

    chat: Client
    extractor: Extractor
    lost: Counter[str] = field(default_factory=Counter)
    """Facts that texts did not say, by name."""

    def texts(self, wanted: Sequence[tuple[str, dict[str, Any]]], progress: Progress = silent) -> list[str | None]:
        """For each (id, facts) a text that says exactly these facts, None if the model did not find one.

        Raises StarError if the server fails for good.
        """
        found: list[str | None] = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for text, missing in pool.map(lambda pair: self._text(*pair), wanted):
                    self.lost.update(missing)
                    found.append(text)
                    progress(f"wording {self.chat.endpoint.model}", len(found), len(wanted))
            finally:
                pool.shutdown(cancel_futures=True)
        return found

    def _text(self, name: str, facts: dict[str, Any]) -> tuple[str | None, list[str]]:
        """A text and nothing, or nothing and the facts that the last text did not say."""
        rng = random.Random(f"phrase/{name}")
        told = json.dumps({key: value for key, value in facts.items() if key not in ("query", "level")}, ensure_ascii=False)
        missing: list[str] = []
        for _ in range(TRIES):
            hint = f"\nThe last attempt did not say these facts clearly: {', '.join(missing)}." if missing else ""
            text = self.chat.ask(instructions(), f"Manner: {rng.choice(MANNERS)}\nFacts: {told}{hint}").strip()
            missing = differences(self.extractor.facts(text), facts)
            if not missing:
                return text, []
        return None, missing
