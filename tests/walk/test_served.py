"""A teacher on a real server: `transformers serve` with a model of ours that knows some trips by heart. If this breaks, the
client fits only the servers that the other tests script."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from star.cli import main
from star.dataset import messages_of
from star.policies.expert import ExpertPolicy
from star.records import read_jsonl
from star.rollout import Group, Rollout
from star.settings import Limits, Tiny
from star.train import model as models
from star.train import tiny
from star.train.tokens import Renderer
from star.types import Trajectory
from star.worlds.travel.world import TravelWorld

pytest.importorskip("fastapi", reason="transformers serve needs fastapi and uvicorn")
pytest.importorskip("uvicorn", reason="transformers serve needs fastapi and uvicorn")
pytestmark = [pytest.mark.walk, pytest.mark.slow]

Star = Callable[..., tuple[int, str, str]]
SIZE = {"cities": 4, "restaurants": 6, "hotels": 4, "sights": 4, "flights": 2, "season": 7}
KNOWN, STEPS = 2, 60
"""Trips that the model learns by heart, and in how many steps."""
RECIPE = f"name: small\nworld: {json.dumps({'name': 'travel', 'days': [3], 'size': SIZE, 'varied_thoughts': False})}\n"
SERVE = "import sys; from transformers.cli.transformers import main; sys.argv[0] = 'transformers'; main()"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    world = TravelWorld(days=(3,), size=SIZE, varied_thoughts=False)
    groups = [Group(query, 1, query.id) for query in world.queries("train", 30, 0)]
    played = Rollout(ExpertPolicy(world=world), world, Limits(), world.score).run(groups)
    conversations = [messages_of(rows[0]) for rows in played]
    tokenizer = tiny.tokenizer(conversations, world.names(), 2400)
    learner = tiny.model(Tiny(hidden=64, layers=1, heads=2, kv_heads=2, intermediate=128), tokenizer, 0)
    rows = [Renderer(tokenizer).example(messages) for messages in conversations[:KNOWN]]
    ids, labels = (
        _padded(part, fill) for part, fill in zip(zip(*rows, strict=True), (tokenizer.pad_token_id, -100), strict=True)
    )
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-2)
    for _ in range(STEPS):
        learner(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    directory = tmp_path_factory.mktemp("served") / "model"
    models.save(learner, tokenizer, directory, "tiny", STEPS)
    return directory


def _padded(rows: Sequence[list[int]], fill: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with (model.parent / "server.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE, *words], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 120
        while not _healthy(port):
            assert process.poll() is None and time.monotonic() < until, (model.parent / "server.log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.fixture
def star(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Star:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def star(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return star


def recipe(model: Path, url: str, **settings: Any) -> None:
    teacher = {"name": "openai", "model": str(model), "url": url, "temperature": 0.0, **settings}
    synth = {"train": 2 * KNOWN, "rl": 1, "dev": 1, "validation": 1, "teacher": teacher}
    Path("small.yaml").write_text(f"{RECIPE}synth: {json.dumps(synth)}\n")


def test_a_served_model_teaches(star: Star, model: Path, url: str) -> None:
    recipe(model, url, max_tokens=160, tries=1)
    code, _, err = star("synth", "--recipe", "small.yaml")
    assert code == 0, err
    rows = read_jsonl(Path("runs/small/trajectories/trajectories.jsonl"), Trajectory)
    assert [row.query_id for row in rows] == [f"train-{number:05d}" for number in range(2 * KNOWN)]
    good = [row for row in rows if row.score is not None and row.score.success]
    assert good == rows[:KNOWN], "it knows these by heart, and nothing of the others"
    assert max(len(row.turns) for row in good) > 2, "conversations of several turns"
    renderer = Renderer(AutoTokenizer.from_pretrained(model))
    for row in good:
        for turn in row.turns:
            assert turn.completion.tokens == len(renderer.completion_ids(turn.completion.text)), "the server counts as we do"
    code, out, _ = star("synth", "stats", "--run", "runs/small", "--json")
    found = json.loads(out)
    assert found["tokens_counted_by"] == "the teacher's server"
    assert found["teacher"]["calls"] == sum(len(row.turns) for row in rows)
    assert found["teacher"]["failures"] == sum(row.stop == "error" for row in rows) == sum(found["failed_for"].values())
    assert found["teacher"]["completion_tokens"] == sum(turn.completion.tokens or 0 for row in rows for turn in row.turns)
    assert found["teacher"]["prompt_tokens"] > found["teacher"]["completion_tokens"]
    assert found["rejected_for"] and sum(found["stops"].values()) == 2 * KNOWN


def test_a_token_limit_is_seen(star: Star, model: Path, url: str) -> None:
    """Its calls are shorter than this limit, its answers longer."""
    recipe(model, url, max_tokens=20, tries=1)
    code, _, err = star("synth", "--recipe", "small.yaml")
    assert code == 1 and f"accepted none of {2 * KNOWN}" in err
    rows = read_jsonl(Path("runs/small/trajectories.partial/trajectories.jsonl"), Trajectory)
    assert len(rows) == 2 * KNOWN
    for row in rows[:KNOWN]:
        assert row.stop == "tokens" and len(row.turns) > 2 and row.turns[-1].completion.tokens == 20, row.error
        assert all(turn.completion.finish == "stop" and turn.call for turn in row.turns[:-1])


def test_what_the_server_refuses_is_a_row(star: Star, model: Path, url: str) -> None:
    recipe(model, url, extra={"temperature": "hot"}, tries=1)
    code, _, _ = star("synth", "--recipe", "small.yaml")
    rows = read_jsonl(Path("runs/small/trajectories.partial/trajectories.jsonl"), Trajectory)
    assert code == 1 and len(rows) == 2 * KNOWN
    assert all(row.stop == "error" and str(row.error).startswith("HTTP ") for row in rows), {row.error for row in rows}
