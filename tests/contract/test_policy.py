"""What every policy promises. If this breaks, teacher, replay and trained model are no longer the same kind of thing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from star import plugins
from star.dataset import messages_of
from star.policies.drawing import Draws
from star.policies.hf import HFPolicy
from star.policies.replay import ReplayPolicy
from star.protocols import Conversation
from star.rollout import Group, Rollout
from star.settings import Limits, Tiny
from star.train import model as models
from star.train import tiny
from star.train.tokens import Renderer
from star.types import Completion, Query, Trajectory
from star.worlds.travel.world import TravelWorld

WORLD = TravelWorld(days=(3,), size={"cities": 4})
QUERIES = WORLD.queries("train", 4, 0)
LIMITS = Limits(turns=3, turn_tokens=12, context=900)


def teacher() -> Any:
    return plugins.build("policy", {"name": "expert"}, world=WORLD)


def play(policy: Any, queries: list[Query], limits: Limits = LIMITS, batch: int = 128) -> list[Trajectory]:
    rollout = Rollout(policy, WORLD, limits, WORLD.score, batch=batch)
    return [group[0] for group in rollout.run([Group(query, 1, f"p/{query.id}") for query in queries])]


class Parrot(BaseHTTPRequestHandler):
    """A chat server that knows one reply."""

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        data = json.dumps({"choices": [{"message": {"content": "<think>?</think><answer>[]</answer>"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    found = ThreadingHTTPServer(("127.0.0.1", 0), Parrot)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}/v1"
    found.shutdown()
    found.server_close()


@pytest.fixture(scope="module")
def policies(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each that comes with star."""
    rows = play(teacher(), QUERIES, Limits())
    tokenizer = tiny.tokenizer([messages_of(row) for row in rows] * 20, WORLD.names(), 2000)
    size = Tiny(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16)
    model = tiny.model(size, tokenizer, 0)
    directory = tmp_path_factory.mktemp("model")
    models.save(
        tiny.model(Tiny(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16), tokenizer, 0), tokenizer, directory, "", 0
    )
    recorded = {row.query_id: [turn.completion for turn in row.turns] for row in rows}
    return {
        "expert": teacher(),
        "replay": ReplayPolicy(recorded),
        "hf": HFPolicy(model, Renderer(tokenizer), Draws(LIMITS, name="hf")),
        "openai": plugins.build("policy", {"name": "openai", "model": "parrot", "url": server}),
        "local": plugins.build(
            "policy", {"name": "local", "model": str(directory), "turn_tokens": LIMITS.turn_tokens, "context": LIMITS.context}
        ),
    }


NAMES = [*plugins.TABLE["policy"], "replay", "hf"]


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_answers_every_conversation_in_order(policies: dict[str, Any], name: str) -> None:
    policy = policies[name]
    assert policy.name == name
    conversations = [Conversation(f"c/{q.id}", q, WORLD.open(q, q.id).prompt, ()) for q in QUERIES]
    said: dict[str, Completion] = {}
    for _ in range(LIMITS.turn_tokens + 1):
        asked = [c for c in conversations if c.id not in said]
        if not asked:
            break
        answers = policy.complete(asked)
        assert len(answers) == len(asked)
        assert any(answer is not None for answer in answers), "at least one is finished"
        said |= {c.id: answer for c, answer in zip(asked, answers, strict=True) if answer is not None}
    assert len(said) == len(conversations)
    for completion in said.values():
        assert len(completion.logprobs) == len(completion.entropies) == len(completion.token_ids)
        assert completion.finish in ("stop", "length")


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_repeats_itself_in_any_batch(policies: dict[str, Any], name: str) -> None:
    together = play(policies[name], QUERIES)
    alone = [play(policies[name], [query])[0] for query in QUERIES]
    assert [[t.completion.text for t in row.turns] for row in together] == [
        [t.completion.text for t in row.turns] for row in alone
    ]
    assert [row.stop for row in together] == [row.stop for row in alone]


def test_replay_plays_a_trajectory_again_word_for_word(policies: dict[str, Any]) -> None:
    first, again = play(policies["expert"], QUERIES, Limits()), play(policies["replay"], QUERIES, Limits())
    for one, other in zip(first, again, strict=True):
        assert one.turns == other.turns and one.score == other.score and one.score is not None and one.score.success


def test_beyond_its_record_a_replay_is_an_error_row(policies: dict[str, Any]) -> None:
    stranger = WORLD.queries("validation", 1, 0)[0]
    row = play(policies["replay"], [stranger])[0]
    assert row.stop == "error" and "no recorded turn 1" in str(row.error)
