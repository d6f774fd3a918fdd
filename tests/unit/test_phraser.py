"""A model words the queries. If this breaks, a query asks for something else than its facts say, and a right plan fails."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from star.cli import main
from star.records import read_lines
from star.worlds.travel.extract import Extractor, differences
from star.worlds.travel.facts import Trip
from star.worlds.travel.generate import Size, generate
from star.worlds.travel.wording import word

SMALL = ["--set", "world={name: travel, days: [3], size: {cities: 6}}", "--count", "20", "--seed", "4"]


class Model(BaseHTTPRequestHandler):
    """Words the facts it is given; forgets the money in its first attempt at odd budgets, and always where it is sulky."""

    sulky = False
    seen: ClassVar[list[str]] = []

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        user = body["messages"][1]["content"]
        self.seen.append(user)
        facts = json.loads(user.split("Facts: ")[1].splitlines()[0])
        text = word(Trip.of({"level": "", **facts}), random.Random(facts["budget"]))
        if self.sulky or (facts["budget"] // 100 % 2 and "last attempt" not in user):
            text = text.replace(f"${facts['budget']:,}", "little money").replace(f"{facts['budget']:,}", "little")
        data = json.dumps({"choices": [{"message": {"content": f" {text}\n"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Model, "seen", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_every_fact_survives_the_wording(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "q.jsonl"
    words = ["synth", "queries", *SMALL, "--out", str(out), "--phraser-url", url, "--phraser-model", "m", "--json"]
    assert main(words) == 0, capsys.readouterr().err
    result = json.loads(capsys.readouterr().out)
    assert result["phraser"] == "m" and result["queries"] == 20 and result["unsaid"] == {}
    extractor = Extractor(generate(Size(cities=6), 0).states)
    rows = [row for _, row in read_lines(out)]
    assert all(not differences(extractor.facts(row["query"]["query"]), row["query"]) for row in rows)
    assert all(row["query"]["query"] == row["query"]["query"].strip() for row in rows)
    corrected = [user for user in Model.seen if "last attempt" in user]
    assert corrected and all("budget" in user for user in corrected) and len(Model.seen) == 20 + len(corrected)
    assert not any(row["query"]["query"] in user for row in rows for user in Model.seen), "our own wording is not shown"


def test_a_model_that_forgets_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Model, "sulky", True)
    out = tmp_path / "q.jsonl"
    code = main(["synth", "queries", *SMALL, "--out", str(out), "--phraser-url", url, "--phraser-model", "m"])
    err = capsys.readouterr().err
    assert code == 1 and "budget" in err and "stronger model" in err and not out.exists()


@pytest.mark.parametrize("words", [["--phraser-url", "http://localhost:1"], ["--phraser-model", "m"]])
def test_half_a_phraser_is_refused(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", "queries", *SMALL, "--out", str(tmp_path / "q.jsonl"), *words]) == 2
    assert "Give both" in capsys.readouterr().err
