"""What is published about TravelPlanner on the Hugging Face Hub: which files, where they lie, and how many constraints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from star.worlds.travel.csv_tables import FILES, STATES

FOLDER = Path("data/travelplanner")
"""The data folder, unless another is named."""
STORE = "travel.sqlite"
"""Name of the built store in a data folder."""
RECORD = "files.json"
"""What was fetched from where, with the sha256 of each file."""


@dataclass(frozen=True, slots=True)
class Source:
    """Some files of one repository on the hub."""

    repo: str
    kind: Literal["dataset", "space"]
    files: tuple[str, ...]
    """Paths inside the repository."""
    folder: str
    """Where they go, inside the data folder, by their bare names."""
    licence: str


SOURCES: dict[str, tuple[Source, ...]] = {
    "database": (
        Source("xxwu/Agent-STAR-TravelDatabase", "dataset", tuple(name for name, _ in FILES.values()), "database", "MIT"),
        Source("osunlp/TravelPlannerLeaderboard", "space", (f"database/background/{STATES[0]}",), "database", "see its page"),
    ),
    "queries": (
        Source(
            "xxwu/Agent-STAR-TravelDataset",
            "dataset",
            ("TravelPlanner_Val180.jsonl", "TravelTotal_17K.jsonl", "Travel_Mixed_1K_RL.jsonl", "Travel_Easy_1K.jsonl",
             "Travel_Medium_1K.jsonl", "Travel_Hard_1K.jsonl"),
            "queries",
            "see its page",
        ),
    ),
    "splits": (
        Source("osunlp/TravelPlanner", "dataset", ("train.csv", "validation.csv", "test.csv"), "splits", "CC-BY-4.0"),
    ),
}  # fmt: skip
"""Part of the data -> where its files come from."""

SPLITS: dict[str, tuple[int, int, int]] = {
    "train": (45, 360, 105),
    "validation": (180, 1440, 420),
    "test": (1000, 8000, 2290),
}
"""Split of TravelPlanner -> queries, commonsense constraints and hard constraints."""
