"""A teacher on an unreliable server. If this breaks, paid episodes are lost, doubled, or hang a synthesis for ever."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from star import plugins
from star.errors import UsageError
from star.journal import play_singly
from star.policies.openai import OpenAIPolicy
from star.recipe import Limits
from star.records import to_json
from star.rollout import Group, Rollout
from star.types import Completion, Trajectory, Turn
from star.worlds.travel.world import TravelWorld

WORLD = TravelWorld(days=(3,), size={"cities": 6})
QUERIES = WORLD.queries("train", 96, 0)
EXPERTS = {query.text: WORLD.expert(query) for query in QUERIES}
FAULTS = ("429", "500", "hang", "cut", "malformed", "empty")
GROUPS = [Group(query, 1, f"t/{query.id}") for query in QUERIES]


def said(messages: list[dict[str, str]]) -> str:
    """What the expert would say next."""
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    return EXPERTS[messages[1]["content"]]([Turn(Completion(text), "seen") for text in replies])


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, rate: float, slow: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rate, self.slow, self.rng, self.guard = rate, slow, random.Random(5), threading.Lock()
        self.faults: Counter[str] = Counter()
        self.flying = self.most = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients give up on hanging replies."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.guard:
            fault = server.rng.choice(FAULTS) if server.rng.random() < server.rate else ""
            server.faults[fault] += 1
            server.flying += 1
            server.most = max(server.most, server.flying)
        try:
            time.sleep(server.slow)
            self.reply(fault, body["messages"])
        finally:
            with server.guard:
                server.flying -= 1

    def reply(self, fault: str, messages: list[dict[str, str]]) -> None:
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        message = {"role": "assistant", "content": "" if fault == "empty" else said(messages)}
        data = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}).encode()
        if fault == "hang":
            time.sleep(5)
            return
        self.send_response(int(fault) if fault.isdigit() else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault == "malformed":
            data = b"{" * len(data)
        self.wfile.write(data[:40] if fault == "cut" else data)


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[Server] = []

    def start(rate: float, slow: float = 0.0) -> Server:
        server = Server(rate, slow)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def teacher(server: Server, **settings: Any) -> OpenAIPolicy:
    usual = {"model": "m", "url": f"http://127.0.0.1:{server.server_port}/v1", "call_seconds": 4.0, "wait_seconds": 0.01}
    return plugins.build("policy", {"name": "openai", **usual, **settings})  # type: ignore[no-any-return]


def run(policy: OpenAIPolicy, journal: Path, batch: int = 64) -> list[Trajectory]:
    rollout = Rollout(policy, WORLD, Limits(), WORLD.score, batch=batch, enough=lambda: policy.spent)
    return [row for rows in play_singly(rollout, GROUPS, journal, lambda rows: None) for row in rows]


def test_every_query_ends_as_exactly_one_row_whatever_the_server_does(serve: Any, tmp_path: Path) -> None:
    server = serve(0.2, slow=0.2)
    policy = teacher(server, tries=12)
    rows = run(policy, tmp_path / "j.jsonl")
    assert [row.query_id for row in rows] == [query.id for query in QUERIES]
    assert all(row.score is not None and row.score.success for row in rows)
    assert set(server.faults) == {"", *FAULTS} and 48 <= server.most <= 64
    assert policy.usage.calls == server.faults.total() and policy.usage.retries == policy.usage.calls - server.faults[""]


def test_a_call_that_keeps_failing_is_a_row_with_its_error(serve: Any, tmp_path: Path) -> None:
    rows = run(teacher(serve(0.6), tries=2), tmp_path / "j.jsonl")
    assert [row.query_id for row in rows] == [query.id for query in QUERIES]
    failed = [row for row in rows if row.stop == "error"]
    assert len(failed) > 30 and all("(2 tries)" in str(row.error) for row in failed)
    assert all(row.score is not None and row.score.success for row in rows if row.stop != "error")


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import test_openai as t
policy = t.OpenAIPolicy(model="m", url=sys.argv[1], call_seconds=4.0, wait_seconds=0.01, tries=12)
t.run(policy, Path(sys.argv[2]), batch=12)
"""


def test_a_kill_in_the_middle_loses_and_doubles_nothing(serve: Any, tmp_path: Path) -> None:
    server, journal = serve(0.2, slow=0.03), tmp_path / "j.jsonl"
    words = [sys.executable, "-c", SCRIPT, f"http://127.0.0.1:{server.server_port}/v1", str(journal), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": str(Path(plugins.__file__).parents[1])}
    process = subprocess.Popen(words, env=environment)
    while not (journal.exists() and journal.stat().st_size) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    held = journal.read_bytes().count(b"\n")
    assert 1 <= held < 96
    rows = run(teacher(server, tries=12), journal, batch=12)
    whole = run(teacher(serve(0.0)), tmp_path / "other.jsonl")
    assert [to_json(row) for row in rows] == [to_json(row) for row in whole]
    ids = [json.loads(line)["id"] for line in journal.read_text(encoding="utf-8").splitlines()]
    assert len(ids) == len(set(ids)) == 96


def test_tokens_are_paid_for_and_spending_stops(serve: Any, tmp_path: Path) -> None:
    policy = teacher(serve(0.0), price_in=10.0, price_out=100.0, max_cost=0.1, concurrency=4)
    rows = run(policy, tmp_path / "j.jsonl", batch=4)
    assert 0.1 <= policy.usage.dollars < 0.1 + 4 * 0.002 + 1e-9
    assert policy.usage.prompt_tokens == 10 * policy.usage.completion_tokens
    cut = [row for row in rows if row.stop == "error"]
    assert {row.error for row in cut} <= {"the budget of $0.1 is spent"} and len(cut) <= 4, "those in flight"
    assert 4 < len(rows) < 96 and all(row.stop == "answer" for row in rows if row not in cut), "no further query begins"


def test_an_episode_has_a_time_limit(serve: Any, tmp_path: Path) -> None:
    rows = run(teacher(serve(0.0, slow=0.3), episode_seconds=0.5), tmp_path / "j.jsonl")
    assert len(rows) == 96 and {row.stop for row in rows} == {"error"}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "<answer>a</answer>", "reasoning_content": "hm"}, "<think>hm</think>\n<answer>a</answer>"),
        ({"content": "<think>own</think><answer>a</answer>", "reasoning": "hm"}, "<think>own</think><answer>a</answer>"),
        (
            {"content": None, "tool_calls": [{"function": {"name": "SearchCity", "arguments": '{"state": "Ohio"}'}}]},
            '<think></think>\n<tool_call>{"name": "SearchCity", "arguments": {"state": "Ohio"}}</tool_call>',
        ),
    ],
)
def test_replies_become_turns(message: dict[str, Any], text: str) -> None:
    policy = OpenAIPolicy(model="m", url="http://localhost:1")
    assert policy._read({"choices": [{"message": message}]}).text == text


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"url": "nowhere"}, "no address"), ({"concurrency": 0}, "positive"), ({"max_cost": 1.0}, "no effect")],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plugins.build("policy", {"name": "openai", "model": "m", "url": "http://localhost:1", **settings})
