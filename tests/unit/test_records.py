"""Records survive the disk exactly, and a damaged file is named by line. If this breaks, data rots unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from star.errors import DataError
from star.records import parse, plain, read_json, read_jsonl, read_lines, to_json, write_json, write_jsonl, write_text
from star.types import Completion, Message, Query, Score, ToolCall, Trajectory, Turn

SCORE = Score("q1", "strict", {"days": True, "sandbox": None}, {"budget": False}, True, 12.5, {"budget": "too dear"})
TURN = Turn(Completion("hé\n", (1, 2), (-0.5, -0.25), (0.1, 0.2)), "obs", ToolCall("SearchCity", {"state": "Ohio"}))
TRAJECTORY = Trajectory("t1", "q1", "expert", (Message("user", "go"),), (TURN,), "answer", "[]", SCORE)


def test_records_come_back_equal(tmp_path: Path) -> None:
    rows = [TRAJECTORY, Trajectory("t2", "q2", "hf", (), (), "error", error="backend down")]
    path = tmp_path / "deep" / "rows.jsonl"
    assert write_jsonl(path, rows) == 2
    assert read_jsonl(path, Trajectory) == rows


def test_equal_records_have_equal_bytes() -> None:
    assert to_json(TRAJECTORY) == to_json(parse(Trajectory, plain(TRAJECTORY), "x"))
    assert "é" in to_json(TRAJECTORY) and "\n" not in to_json(TRAJECTORY)


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json({"loss": float("nan")})


def test_a_torn_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(to_json(TRAJECTORY) + "\n\n" + to_json(TRAJECTORY)[:40])
    with pytest.raises(DataError, match=r"rows.jsonl:3: not a JSON line .* cut off"):
        read_jsonl(path, Trajectory)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match=r"rows.jsonl:1: "):
        list(read_lines(path))


def test_a_foreign_row_is_named_by_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "q1", "text": "t", "facts": {}, "difficulty": "easy", "days": "three", "split": "train"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:1: days: .* A Query row is expected"):
        read_jsonl(path, Query)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_jsonl(tmp_path / "none.jsonl", Query)
    with pytest.raises(DataError, match="no such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(DataError, match="is a directory"):
        read_json(tmp_path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_text(path, "old")
    with pytest.raises(ValueError, match="JSON"):
        write_jsonl(path, [TRAJECTORY, {"x": float("inf")}])
    assert path.read_text() == "old"
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"x": float("inf")})
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]
