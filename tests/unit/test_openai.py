"""A teacher on an unreliable server. If this breaks, paid episodes are lost, doubled, or hang a synthesis for ever."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from star import plugins
from star.endpoint import OVER_BUDGET
from star.errors import UsageError
from star.journal import play_singly
from star.policies.openai import OpenAIPolicy
from star.protocols import Conversation
from star.records import to_json
from star.rollout import Group, Rollout
from star.settings import Limits
from star.types import Completion, Trajectory, Turn
from star.worlds.travel.world import TravelWorld

WORLD = TravelWorld(days=(3,), size={"cities": 6})
COUNT = 80
QUERIES = WORLD.queries("train", COUNT, 0)
EXPERTS = {query.text: WORLD.expert(query) for query in QUERIES}
SEEN = Turn(Completion("..."), "seen")
FAULTS = ("429", "500", "hang", "cut", "malformed", "empty")
GROUPS = [Group(query, 1, f"t/{query.id}") for query in QUERIES]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10}
Scripted = tuple[int, dict[str, str], Any]
PATIENCE, HANG = 2.0, 2.5
"""Seconds: a call that hangs is longer than what its client waits."""
KEY = "sk-very-secret"


def completion(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": USAGE}


def said(messages: list[dict[str, str]]) -> str:
    """The first call of the expert, then its answer."""
    begun = any(message["role"] == "assistant" for message in messages)
    return EXPERTS[messages[1]["content"]]([SEEN] * 99 if begun else [])


class Server(ThreadingHTTPServer):
    """Says what the expert would say, but fails at random; or replies from a script: (status, headers, value) in turn."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self, rate: float = 0.0, slow: float = 0.0, gate: int = 0, faults: Sequence[str] = FAULTS, script: Sequence[Scripted] = ()
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rate, self.slow, self.rng, self.guard = rate, slow, random.Random(5), threading.Lock()
        self.kinds, self.gate, self.barrier = faults, gate, threading.Barrier(max(gate, 1), timeout=20)
        self.script, self.seen = list(script), list[tuple[dict[str, Any], str | None]]()
        self.faults: Counter[str] = Counter()
        self.flying = self.most = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients give up on hanging replies."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.guard:
            fault = server.rng.choice(server.kinds) if server.rng.random() < server.rate else ""
            gated = server.faults.total() < server.gate
            server.faults[fault] += 1
            server.seen.append((body, self.headers.get("Authorization")))
            server.flying += 1
            server.most = max(server.most, server.flying)
        try:
            if gated:
                server.barrier.wait()
            time.sleep(server.slow)
            if server.script:
                self.send(*(server.script.pop(0) if len(server.script) > 1 else server.script[0]))
            else:
                self.reply(fault, body["messages"])
        finally:
            with server.guard:
                server.flying -= 1

    def reply(self, fault: str, messages: list[dict[str, str]]) -> None:
        if fault == "hang":
            time.sleep(HANG)
            return
        message = {"role": "assistant", "content": "" if fault == "empty" else said(messages)}
        self.send(int(fault) if fault.isdigit() else 200, {}, completion(message), fault)

    def send(self, status: int, headers: dict[str, str], value: Any, fault: str = "") -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        if fault == "malformed":
            data = b"{" * len(data)
        if "X-Drip" in headers:
            for byte in data:
                self.wfile.write(bytes([byte]))
                time.sleep(0.1)
        self.wfile.write(data[:40] if fault == "cut" else data)


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[Server] = []

    def start(*arguments: Any, **settings: Any) -> Server:
        server = Server(*arguments, **settings)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def teacher(server: Server, **settings: Any) -> OpenAIPolicy:
    patience = PATIENCE if server.rate else 60.0  # only some servers hang; a slow machine makes the others wait
    usual = {"model": "m", "url": server.url, "call_seconds": patience, "wait_seconds": 0.01}
    return plugins.build("policy", {"name": "openai", **usual, **settings})  # type: ignore[no-any-return]


def cut(row: Trajectory) -> bool:
    return row.error == OVER_BUDGET


def run(policy: OpenAIPolicy, journal: Path, batch: int = 64) -> list[Trajectory]:
    rollout = Rollout(policy, WORLD, Limits(), WORLD.score, batch=batch, enough=lambda: policy.spent)
    return [row for rows in play_singly(rollout, GROUPS, journal, cut=cut).tries for row in rows]


def test_every_query_ends_as_exactly_one_row_whatever_the_server_does(serve: Any, tmp_path: Path) -> None:
    server = serve(0.2, slow=0.05, gate=64)
    policy = teacher(server, tries=12)
    rows = run(policy, tmp_path / "j.jsonl")
    assert [row.query_id for row in rows] == [query.id for query in QUERIES]
    assert all(row.score is not None and row.score.success for row in rows)
    assert set(server.faults) == {"", *FAULTS} and server.most == 64
    assert all(turn.completion.tokens == 10 for row in rows for turn in row.turns)
    assert policy.usage.calls == server.faults.total() and policy.usage.failures == 0
    assert policy.usage.retries == policy.usage.calls - sum(len(row.turns) for row in rows) >= 0.1 * policy.usage.calls


def test_a_call_that_keeps_failing_is_a_row_with_its_error(serve: Any, tmp_path: Path) -> None:
    rows = run(teacher(serve(0.6, faults=[name for name in FAULTS if name != "hang"]), tries=2), tmp_path / "j.jsonl")
    assert [row.query_id for row in rows] == [query.id for query in QUERIES]
    failed = [row for row in rows if row.stop == "error"]
    assert len(failed) > 30 and all("2 tries: " in str(row.error) for row in failed)
    assert all(row.score is not None and row.score.success for row in rows if row.stop != "error")


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import test_openai as t
policy = t.OpenAIPolicy(model="m", url=sys.argv[1], call_seconds=t.PATIENCE, wait_seconds=0.01, tries=12)
t.run(policy, Path(sys.argv[2]))
"""


def test_a_kill_in_the_middle_loses_and_doubles_nothing(serve: Any, tmp_path: Path) -> None:
    server, journal = serve(0.2, slow=0.05, gate=64), tmp_path / "j.jsonl"
    words = [sys.executable, "-c", SCRIPT, server.url, str(journal), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": str(Path(plugins.__file__).parents[1])}
    process = subprocess.Popen(words, env=environment)
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 8) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert server.most == 64
    held = [json.loads(line)["id"] for line in journal.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert 8 <= len(held) < COUNT
    asked = server.faults.total()
    rows = run(teacher(server, tries=12), journal)
    assert set(server.faults) == {"", *FAULTS}
    later = {body["messages"][1]["content"] for body, _ in server.seen[asked:]}
    assert not later & {query.text for query in QUERIES if f"t/{query.id}/0" in held}, "what is on disk is not asked again"
    whole = run(teacher(serve()), tmp_path / "other.jsonl")
    assert [to_json(row) for row in rows] == [to_json(row) for row in whole]
    ids = [json.loads(line)["id"] for line in journal.read_text(encoding="utf-8").splitlines()]
    assert len(ids) == len(set(ids)) == COUNT


def test_tokens_are_paid_for_and_spending_stops(serve: Any, tmp_path: Path) -> None:
    policy = teacher(serve(), price_in=10.0, price_out=100.0, max_cost=0.1, concurrency=4)
    rows = run(policy, tmp_path / "j.jsonl", batch=4)
    assert 0.1 <= policy.usage.dollars < 0.1 + 4 * 0.002 + 1e-9
    assert policy.usage.prompt_tokens == 10 * policy.usage.completion_tokens
    cut = [row for row in rows if row.stop == "error"]
    assert {row.error for row in cut} <= {OVER_BUDGET} and len(cut) <= 4, "those in flight"
    assert 4 < len(rows) < COUNT and all(row.stop == "answer" for row in rows if row not in cut), "no further query begins"


def test_episodes_that_a_budget_cut_short_go_on_from_their_last_turn(serve: Any, tmp_path: Path) -> None:
    server, prices = serve(), {"price_in": 10.0, "price_out": 100.0}
    first = teacher(server, max_cost=0.05, **prices)
    short = [row for row in run(first, tmp_path / "j.jsonl") if cut(row)]
    assert any(len(row.turns) > 1 for row in short), "some had begun to speak"
    second = teacher(server, max_cost=10.0, **prices)
    second.usage = first.usage
    rows = run(second, tmp_path / "j.jsonl")
    whole = run(teacher(serve()), tmp_path / "other.jsonl")
    assert [to_json(row) for row in rows] == [to_json(row) for row in whole]
    assert server.faults.total() == 2 * COUNT == second.usage.calls, "every turn was paid once"
    assert second.usage.dollars == pytest.approx(2 * COUNT * 0.002)


def test_an_episode_has_a_time_limit(serve: Any, tmp_path: Path) -> None:
    rows = run(teacher(serve(slow=0.3), episode_seconds=0.5), tmp_path / "j.jsonl")
    assert len(rows) == COUNT and {row.stop for row in rows} == {"error"}
    assert all("the episode took over 0.5 s" in str(row.error) for row in rows)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "<answer>a</answer>", "reasoning_content": "hm"}, "<think>hm</think>\n<answer>a</answer>"),
        ({"content": "<think>own</think><answer>a</answer>", "reasoning": "hm"}, "<think>own</think><answer>a</answer>"),
        (
            {"content": None, "tool_calls": [{"function": {"name": "SearchCity", "arguments": '{"state": "Ohio"}'}}]},
            '<think></think>\n<tool_call>{"name": "SearchCity", "arguments": {"state": "Ohio"}}</tool_call>',
        ),
        (
            {
                "content": "<think>hm</think> I search.",
                "reasoning_content": "so",
                "tool_calls": [{"function": {"name": "SearchCity", "arguments": '{"state": "Ohio"}'}}],
            },
            '<think>so\nhm I search.</think>\n<tool_call>{"name": "SearchCity", "arguments": {"state": "Ohio"}}</tool_call>',
        ),
    ],
)
def test_replies_become_turns(serve: Any, message: dict[str, Any], text: str) -> None:
    assert ask(teacher(serve(script=[(200, {}, completion(message))]))) == Completion(text, tokens=10)


def ask(policy: OpenAIPolicy) -> Completion | None:
    """One turn."""
    prompt = WORLD.open(QUERIES[0], "k").prompt
    return policy.complete([Conversation("k/0", QUERIES[0], prompt, ())])[0]


def test_settings_reach_the_server(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = serve(script=[(200, {}, completion({"content": "hello"}))])
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    ask(teacher(server, url="", temperature=None, max_tokens=7, extra={"top_k": 3, "chat_template_kwargs": {"x": 1}}))
    body, authorization = server.seen[0]
    assert authorization == f"Bearer {KEY}"
    assert {key: value for key, value in body.items() if key != "messages"} == {
        "model": "m", "max_tokens": 7, "top_k": 3, "chat_template_kwargs": {"x": 1},
    }  # fmt: skip
    monkeypatch.delenv("OPENAI_API_KEY")
    ask(teacher(server, temperature=0.5))
    assert server.seen[1][0]["temperature"] == 0.5 and server.seen[1][1] is None


def test_a_key_is_written_nowhere(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level("DEBUG")
    caplog.set_level("DEBUG", logger="star")
    leaky = serve(script=[(500, {}, {"error": {"message": f"worker of {KEY} died"}})] * 2)
    rows = run(teacher(leaky, tries=2), tmp_path / "j.jsonl")
    assert {row.error for row in rows} == {"2 tries: HTTP 500 worker of *** died"}
    assert KEY not in (tmp_path / "j.jsonl").read_text() and KEY not in caplog.text and "trying again" in caplog.text


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a client would have waited between its tries."""
    found, rest = list[float](), asyncio.sleep

    def sleep(seconds: float) -> Any:
        found.append(seconds)
        return rest(0)

    monkeypatch.setattr("star.chat.asyncio.sleep", sleep)
    return found


def test_waits_grow_and_never_fall_short_of_what_the_server_asks(serve: Any, waits: list[float]) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    asked = [{"Retry-After": "7.5"}, {"Retry-After": date}, {"Retry-After": "soon"}, {}, {}]
    script = [(429, headers, {}) for headers in asked] + [(200, {}, completion({"content": "hello"}))]
    policy = teacher(serve(script=script), wait_seconds=1.0)
    assert ask(policy) == Completion("hello", tokens=10)
    assert (policy.usage.calls, policy.usage.retries, policy.usage.failures) == (6, 5, 0)
    assert waits[0] == 7.5 and 80 < waits[1] <= 90
    for tried, wait in enumerate(waits[2:], 2):
        assert 2**tried <= wait <= 2**tried + 1


@pytest.mark.parametrize(
    ("status", "headers", "error", "reason"),
    [
        (401, {}, {"message": "who are you"}, "HTTP 401 who are you"),
        (404, {}, {"message": "no such model"}, "HTTP 404 no such model"),
        (429, {}, {"message": "pay first", "code": "insufficient_quota"}, "HTTP 429 pay first"),
        (503, {"Retry-After": "86400"}, {"message": "tomorrow"}, "HTTP 503 tomorrow"),
    ],
)
def test_what_no_waiting_mends_is_not_tried_again(
    serve: Any, waits: list[float], status: int, headers: dict[str, str], error: dict[str, str], reason: str
) -> None:
    policy = teacher(serve(script=[(status, headers, {"error": error})]))
    assert ask(policy) == Completion("", finish="error", error=reason)
    assert (policy.usage.calls, policy.usage.failures, waits) == (1, 1, [])


@pytest.mark.parametrize(
    "value",
    [
        [], "text", 3, {}, {"choices": None}, {"choices": []}, {"choices": [None]}, {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 3}}]}, {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]},
        completion({"content": None, "tool_calls": [{"function": {"name": "SearchCity", "arguments": "{"}}]}),
        {"choices": [{"message": {"content": " "}}], "usage": "none"}, {"error": {"message": "in a 200"}},
    ],
)  # fmt: skip
def test_what_is_no_reply_is_asked_for_again(serve: Any, waits: list[float], value: Any) -> None:
    policy = teacher(serve(script=[(200, {}, value), (200, {}, completion({"content": "hello"}))]))
    assert ask(policy) == Completion("hello", tokens=10)
    assert policy.usage.retries == 1


def test_a_reply_that_ran_into_its_limit_is_a_turn(serve: Any) -> None:
    half = [{"function": {"name": "SearchCity", "arguments": '{"sta'}}]
    for message in ({"content": "", "reasoning": "hm, let me"}, {"content": None, "tool_calls": half}):
        policy = teacher(serve(script=[(200, {}, completion(message, finish="length"))]))
        found = ask(policy)
        assert found is not None and (found.finish, found.tokens, policy.usage.calls) == ("length", 10, 1)


def test_a_server_that_says_no_tokens_is_not_guessed_at(serve: Any) -> None:
    value = {"choices": [{"message": {"content": "hello"}}]}
    policy = teacher(serve(script=[(200, {}, value)]))
    assert ask(policy) == Completion("hello", tokens=None) and policy.usage.completion_tokens == 0


def test_a_dripping_reply_is_cut_off(serve: Any) -> None:
    server = serve(script=[(200, {"X-Drip": "yes"}, completion({"content": "hello"}))])
    found = ask(teacher(server, tries=1, call_seconds=0.5))
    assert found is not None and found.error == "timed out after 0.5 s"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"url": "nowhere"}, "no address"), ({"concurrency": 0}, "positive"), ({"max_cost": 1.0}, "no effect")],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plugins.build("policy", {"name": "openai", "model": "m", "url": "http://localhost:1", **settings})
