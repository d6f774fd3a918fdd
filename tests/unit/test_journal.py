"""A long play survives a kill. If this breaks, an interrupted synthesis or evaluation starts over, cannot start at all,
or ends with other rows than an uninterrupted one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from star.journal import play
from star.policies.replay import ReplayPolicy
from star.rollout import Group, Rollout
from star.settings import Limits
from star.types import Completion, Query, Trajectory
from star.worlds.travel.world import TravelWorld

WORLD = TravelWorld(days=(3,), size={"cities": 4})
QUERIES = WORLD.queries("train", 5, 0)
SAYS = 'Line\u2028and\x85para\u2029 {"}'
"""Characters at which Python, but not JSON, ends a line."""


def completions(query: Query) -> list[Completion]:
    call = Completion(f'<think>{SAYS}</think><tool_call>{{"name": "SearchCity", "arguments": {{"state": "Ohio"}}}}</tool_call>')
    return [call, Completion(f"<think>{query.id}</think><answer>{SAYS}</answer>")]


WHOLE = {query.id: completions(query) for query in QUERIES}
GROUPS = [Group(query, 2, f"g/{query.id}") for query in QUERIES]
CHUNK = 2


def rollout(recorded: dict[str, list[Completion]]) -> Rollout:
    return Rollout(ReplayPolicy(recorded), WORLD, Limits(), WORLD.score)


def played(journal: Path, recorded: dict[str, list[Completion]], groups: Sequence[Group] = tuple(GROUPS)) -> list[Trajectory]:
    return play(rollout(recorded), groups, journal, CHUNK, lambda done, total: None)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.jsonl"


def test_rows_come_in_order_and_progress_ends_at_the_total(journal: Path) -> None:
    reports: list[tuple[int, int]] = []
    rows = play(rollout(WHOLE), GROUPS, journal, CHUNK, lambda done, total: reports.append((done, total)))
    assert [row.id for row in rows] == [f"{group.key}/{index}" for group in GROUPS for index in range(2)]
    assert reports[-1] == (5, 5) and reports == sorted(reports)
    assert {row.stop for row in rows} == {"answer"}


def test_whole_chunks_are_read_and_others_played(journal: Path) -> None:
    first = played(journal, WHOLE)
    silent = played(journal, {})
    assert silent == first, "nothing was played again, and what was read equals what was played"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:6]))
    again = played(journal, {})
    assert again[:4] == first[:4], "the first chunk lay in the journal"
    assert {row.stop for row in again[4:]} == {"error"}, "the second chunk lay there in part: all of it is played again"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.77, 0.999])
def test_a_journal_cut_anywhere_gives_the_same_rows_and_the_same_bytes(journal: Path, share: float) -> None:
    rows = played(journal, WHOLE)
    whole = journal.read_bytes()
    journal.write_bytes(whole[: int(len(whole) * share)])
    assert played(journal, WHOLE) == rows
    assert {line for line in journal.read_bytes().split(b"\n") if line} == set(whole.split(b"\n")) - {b""}
    assert played(journal, {}) == rows


def test_an_interrupted_play_goes_on(journal: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(rollout(WHOLE), GROUPS, journal, CHUNK, interrupt)
    later = {query.id: WHOLE[query.id] for query in QUERIES[2:]}
    assert played(journal, later) == played(journal.with_name("other"), WHOLE)
