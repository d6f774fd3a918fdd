"""Rollouts from an engine with a copy of the model. If this breaks, RL learns from stale weights or from probabilities of another
distribution, or a busy server ends a run.

The engine and the server are miniatures: transformers behind the same interface, one full forward pass a token.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from star import plugins
from star.algorithms.arpo import ARPO
from star.algorithms.grpo import GRPO
from star.errors import StarError, UsageError
from star.policies.drawing import Draws
from star.policies.engine import EnginePolicy, Request, Sampled, entropy
from star.policies.hf import HFPolicy
from star.protocols import Conversation
from star.recipe import load
from star.rollout import Group, Rollout
from star.settings import Limits, Lora
from star.train import model as models
from star.train import together
from star.train.grpo import StarGRPOTrainer
from star.train.samplers import Copied, Sampler, Source
from star.train.tokens import Renderer
from star.types import Trajectory

LIMITS = Limits(turns=5, turn_tokens=14, context=300)
Make = Callable[..., StarGRPOTrainer]


class Reference:
    """An engine over a copy of a model. `stale` never takes over weights."""

    def __init__(self, model: Any, likeliest: int = 20, stale: bool = False) -> None:
        self.model, self.likeliest, self.stale = model, likeliest, stale
        self.waiting: list[Request] = []
        self.seen: list[Request] = []
        self.updates = self.rests = 0
        self.closed = False

    def submit(self, request: Request) -> None:
        self.waiting.append(request)
        self.seen.append(request)

    def wait(self) -> dict[str, Sampled]:
        """One turn at a time, the latest first."""
        request = self.waiting.pop()
        return {request.key: self.sample(request, self.likeliest)}

    def update(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        assert not self.waiting
        found = dict(weights)
        assert len(found) == len(list(self.model.parameters())), "what is shared comes once"
        self.updates += 1
        if not self.stale:
            self.model.load_state_dict(found, strict=False)

    def rest(self) -> None:
        self.rests += 1

    def close(self) -> None:
        self.closed = True

    @torch.no_grad()
    def sample(self, request: Request, likeliest: int) -> Sampled:
        draw = torch.Generator().manual_seed(request.seed)
        ids: list[int] = []
        logprobs: list[float] = []
        rows: list[tuple[float, ...]] = []
        while len(ids) < request.limit and ids[-1:] != [request.end]:
            logits = self.model(input_ids=torch.tensor([request.ids + ids]), use_cache=False).logits[0, -1].float()
            found = torch.log_softmax(logits / (request.temperature or 1.0), -1)
            ordered, order = found.sort(descending=True)
            found[order[ordered.exp().cumsum(0) - ordered.exp() >= request.top_p]] = float("-inf")
            found = torch.log_softmax(found, -1)
            chosen = found.argmax() if request.temperature == 0 else found.exp().multinomial(1, generator=draw)[0]
            ids.append(int(chosen))
            logprobs.append(float(found[chosen]))
            rows.append(tuple(found.topk(likeliest).values.tolist()))
        return Sampled(tuple(ids), tuple(logprobs), tuple(rows), "stop" if ids[-1] == request.end else "length")


class Server(ThreadingHTTPServer):
    """vLLM's HTTP interface over a reference engine, as far as star uses it. `faults` go wrong first, one a request."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, engine: Reference, **settings: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine, self.guard = engine, threading.Lock()
        self.settings = {"dtype": "float32", "logprobs_mode": "processed_logprobs", "max_model_len": 4096, **settings}
        self.faults: list[str] = []
        self.closed: set[str] = set()
        """Paths that do not exist here."""
        self.asked: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A cut connection is meant."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.guard:
            server.asked[self.path] += 1
            fault = server.faults.pop(0) if server.faults else ""
        if self.path in server.closed:
            self.reply(404, {"error": {"message": "Not Found"}})
        elif fault == "cut":
            self.close_connection = True
        elif fault.isdigit():
            self.reply(int(fault), {"error": {"message": "told to fail"}})
        elif self.path == "/v1/completions":
            self.complete(body, fault)
        elif self.path == "/reset_prefix_cache":
            self.reply(200, {"success": True})
        else:
            self.load(body)

    def complete(self, body: dict[str, Any], fault: str) -> None:
        neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        asked = {"ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True, **neutral}
        assert {name: body[name] for name in asked} == asked
        request = Request(
            "", body["prompt"], body["max_tokens"], body["stop_token_ids"][0], body["temperature"], body["top_p"], body["seed"]
        )
        with self.server.guard:
            sampled = self.server.engine.sample(request, body["logprobs"])
        tops = [{f"token_id:{n}": max(v, -9999.0) for n, v in enumerate(row)} for row in sampled.likeliest]
        for top, logprob in zip(tops, sampled.logprobs, strict=True):
            if logprob < min(top.values()):
                top["token_id:sampled"] = logprob
        found = {"token_logprobs": list(sampled.logprobs), "top_logprobs": tops}
        choice = {"text": "", "logprobs": found, "finish_reason": sampled.finish, "token_ids": list(sampled.ids)}
        if fault == "abort":
            choice["finish_reason"] = fault
        if fault == "no ids":
            del choice["token_ids"]
        self.reply(200, {"choices": [choice]})

    def load(self, body: dict[str, Any]) -> None:
        assert body["method"] == "star_load"
        files = list(Path(body["args"][0]).glob("*.safetensors"))
        if not files:
            self.reply(500, {"error": {"message": f"no safetensors files in {body['args'][0]}"}})
            return
        self.server.engine.update(load_file(files[0]).items())
        self.reply(200, {"results": [self.server.settings]})

    def reply(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@dataclass
class Plugin:
    """A sampler over the miniature engine."""

    stale: bool = False

    def open(self, source: Source) -> Sampler:
        model = source.model()
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        fresh = Qwen2ForCausalLM(base.config).eval()
        fresh.load_state_dict(dict(models.weights(model)), strict=False)
        return Copied(source, Reference(fresh, stale=self.stale))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.TABLE["sampler"], "reference", f"{__name__}:Plugin")


@pytest.fixture
def server(student: Any) -> Iterator[Server]:
    """It starts with other weights than the student's."""
    other = copy.deepcopy(student)
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(0.5)
    found = Server(Reference(other))
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def checkpoint(student: Any, renderer: Renderer, tmp_path: Path) -> Path:
    models.save(student, renderer.tokenizer, tmp_path / "student", "tiny", 0)
    return tmp_path / "student"


def policy(engine: Any, renderer: Renderer, limits: Limits = LIMITS, **settings: Any) -> EnginePolicy:
    return EnginePolicy(engine, renderer, len(renderer.tokenizer), Draws(limits, **settings))


def over_http(server: Server, **settings: Any) -> dict[str, Any]:
    return {"name": "vllm_server", "url": server.url, "wait_seconds": 0.001, "tries": 3, **settings}


def opened(spec: dict[str, Any], checkpoint: Path, context: int = LIMITS.context) -> Any:
    return plugins.build("sampler", spec).open(models.source(checkpoint, context))


def play(policy: Any, world: Any, batch: int = 64, count: int = 3, size: int = 2, algorithm: Any = None) -> list[Trajectory]:
    rollout = Rollout(policy, world, LIMITS, world.score, algorithm, batch)
    groups = [Group(query, size, f"g/{query.id}") for query in world.queries("dev", count, 0)]
    return [row for group in rollout.run(groups) for row in group]


def texts(rows: list[Trajectory]) -> dict[str, list[tuple[int, ...]]]:
    return {row.id: [turn.completion.token_ids for turn in row.turns] for row in rows}


@torch.no_grad()
def gaps(model: Any, renderer: Renderer, rows: list[Trajectory], temperature: float = 1.0) -> list[float]:
    """Distance of each recorded log-probability from one plain forward pass over the whole rollout."""
    found = []
    for row in rows:
        flat = renderer.flatten(row)
        ids = torch.tensor([flat.prompt_ids + flat.completion_ids])
        logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float() / temperature, -1)
        start = len(flat.prompt_ids) - 1
        for index in (index for index, own in enumerate(flat.mask) if own):
            found.append(abs(float(logprobs[start + index, flat.completion_ids[index]]) - flat.logprobs[index]))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_a_policy_records_what_the_engine_sampled(student: Any, renderer: Renderer, world: Any, temperature: float) -> None:
    rows = play(policy(Reference(student), renderer, temperature=temperature), world)
    assert max(len(row.turns) for row in rows) > 2 and (not temperature or "answer" in {row.stop for row in rows})
    assert max(gaps(student, renderer, rows, temperature or 1.0)) < 1e-4
    if not temperature:
        assert texts(rows) == texts(play(HFPolicy(student, renderer, Draws(LIMITS, 0.0)), world))


def test_draws_do_not_depend_on_the_batch(student: Any, renderer: Renderer, world: Any) -> None:
    engine = Reference(student)
    expected = texts(play(policy(engine, renderer), world))
    assert len({request.seed for request in engine.seen}) == len(engine.seen), "every turn of every rollout draws for itself"
    assert all(0 <= request.seed < 2**56 for request in engine.seen)
    for batch, patience in ((1, 0.5), (3, 0.0), (64, 0.9)):
        assert texts(play(policy(Reference(student), renderer, patience=patience), world, batch)) == expected
    assert texts(play(policy(Reference(student), renderer, seed=1), world)) != expected


def test_forks_draw_anew_from_what_they_share(student: Any, renderer: Renderer, world: Any) -> None:
    rows = play(
        policy(Reference(student), renderer, patience=0.0), world, size=6, algorithm=ARPO(initial=0.3, alpha=0.6, beta=0.0)
    )
    by_id = {row.id: row for row in rows}
    forks = [row for row in rows if row.parent is not None]
    assert forks and max(gaps(student, renderer, rows)) < 1e-4
    for row in forks:
        assert row.turns[: row.forked_at] == by_id[row.parent or ""].turns[: row.forked_at]
    assert any(row.turns != by_id[row.parent or ""].turns for row in forks)


@pytest.mark.parametrize("patience", [0.0, 0.5, 0.9])
def test_a_call_returns_as_soon_as_enough_turns_have_ended(student: Any, renderer: Renderer, world: Any, patience: float) -> None:
    found = policy(Reference(student), renderer, patience=patience)
    queries = world.queries("dev", 10, 0)
    conversations = [Conversation(f"c/{q.id}", q, world.open(q, "k").prompt, ()) for q in queries]
    answers = found.complete(conversations)
    assert sum(answer is None for answer in answers) == int(patience * 10)
    again = [c for c, answer in zip(conversations, answers, strict=True) if answer is None]
    assert all(answer is not None for answer in policy(found.engine, renderer, patience=0.0).complete(again))


def test_limits_end_a_turn(student: Any, renderer: Renderer, world: Any) -> None:
    query = world.queries("dev", 1, 0)[0]
    conversation = Conversation("k", query, world.open(query, "k").prompt, ())
    room = len(renderer.prompt_ids(conversation.prompt))
    for turn_tokens, context, said, finish in ((2, 300, 2, "length"), (50, room + 1, 1, "length"), (50, room, 0, "context")):
        limits = Limits(turns=3, turn_tokens=turn_tokens, context=context)
        completion = policy(Reference(student), renderer, limits).complete([conversation])[0]
        assert completion is not None
        assert (len(completion.token_ids), completion.finish) == (said, finish)


def test_an_entropy_is_a_lower_bound_that_closes(student: Any, renderer: Renderer, world: Any) -> None:
    vocabulary = len(renderer.tokenizer)
    exact = HFPolicy(student, renderer, Draws(LIMITS, 0.0))
    wanted = [v for row in play(exact, world, count=2, size=1) for turn in row.turns for v in turn.completion.entropies]
    by_count = []
    for count in (5, 20, vocabulary):
        rows = play(policy(Reference(student, count), renderer, temperature=0.0), world, count=2, size=1)
        by_count.append([v for row in rows for turn in row.turns for v in turn.completion.entropies])
    for few, more, all_ids, true in zip(*by_count, wanted, strict=True):
        assert few <= more + 1e-9 and more <= true + 1e-5
        assert all_ids == pytest.approx(true, abs=1e-4)
    assert entropy([math.log(0.5), math.log(0.5), float("-inf")], 4) == pytest.approx(0.5), "what top_p dropped counts nothing"


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8), (0.0, 1.0)])
def test_a_server_samples_what_its_engine_does(
    server: Server, checkpoint: Path, student: Any, renderer: Renderer, world: Any, temperature: float, top_p: float
) -> None:
    sampler = opened(over_http(server, tries=5), checkpoint)
    server.faults = ["503", "cut", "429", "500"]  # one turn may meet them all
    draws = Draws(LIMITS, temperature, top_p, seed=3)
    rows = play(sampler.policy(draws), world)
    assert not server.faults and server.asked["/v1/completions"] > len(texts(rows))
    direct = play(policy(Reference(student), renderer, **{**vars(draws), "limits": LIMITS}), world)
    assert texts(rows) == texts(direct)
    for one, other in zip(rows, direct, strict=True):
        for mine, theirs in zip(one.turns, other.turns, strict=True):
            assert mine.completion.logprobs == pytest.approx(theirs.completion.logprobs, abs=1e-6)
            assert mine.completion.entropies == pytest.approx(theirs.completion.entropies, abs=1e-6)


def test_a_server_that_fails_ends_the_run(server: Server, checkpoint: Path, world: Any) -> None:
    sampler = opened(over_http(server), checkpoint)
    for faults, what in ((["503"] * 400, r"HTTP 503 told to fail \(3 tries\)"), (["400"] * 400, "refuses a turn .*told to fail")):
        server.faults = list(faults)
        with pytest.raises(StarError, match=what):
            play(sampler.policy(Draws(LIMITS, 1.0)), world)
    for fault in ("no ids", "abort"):
        server.faults = [fault] * 400
        with pytest.raises(StarError, match="no whole turn of token ids"):
            play(sampler.policy(Draws(LIMITS, 1.0)), world)
    server.faults = []
    assert play(sampler.policy(Draws(LIMITS, 1.0)), world)
    with pytest.raises(StarError, match="does not answer"):
        opened({"name": "vllm_server", "url": "http://127.0.0.1:9", "tries": 1}, checkpoint)


def test_a_server_that_takes_no_weights_is_refused(server: Server, checkpoint: Path, tmp_path: Path) -> None:
    server.closed = {"/collective_rpc"}
    with pytest.raises(StarError, match=r"takes no weights .*404.*VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls"):
        opened(over_http(server), checkpoint)
    server.closed = set()
    (checkpoint / "model.safetensors").rename(tmp_path / "away")
    with pytest.raises(StarError, match=r"no safetensors files.*rollouts\.directory"):
        opened(over_http(server), checkpoint)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"dtype": "bfloat16"}, "--dtype float32"),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"max_model_len": 299}, "--max-model-len 300"),
    ],
)
def test_a_server_that_samples_otherwise_is_refused(server: Server, checkpoint: Path, settings: Any, what: str) -> None:
    server.settings |= settings
    with pytest.raises(StarError, match=what):
        opened(over_http(server), checkpoint)


@pytest.mark.parametrize(
    ("algorithm", "lora"), [(GRPO(), None), (ARPO(alpha=0.6, beta=0.0), Lora(rank=4, alpha=8))], ids=["grpo", "arpo-lora"]
)
def test_training_samples_from_the_latest_weights(reference: None, make: Make, student: Any, algorithm: Any, lora: Any) -> None:
    model = models.lora(student, lora) if lora else student
    trainer = make(algorithm, model=model, rollouts={"name": "reference"}, steps=2, lr=1e-2, lora=lora)
    trainer.train()
    gaps = [row["sampling/logprob_gap_max"] for row in trainer.state.log_history if "sampling/logprob_gap_max" in row]
    assert len(gaps) == 2 and max(gaps) < 1e-4
    engine: Any = trainer.sampler
    assert engine.engine.updates == engine.engine.rests == 2
    trainer.close()
    assert engine.engine.closed


def test_stale_weights_stop_the_run(reference: None, make: Make) -> None:
    trainer = make(GRPO(), rollouts={"name": "reference", "stale": True}, steps=8, lr=2e-2)
    with pytest.raises(StarError, match=r"over rl\.max_gap = 0\.1.*did not take over the latest step"):
        trainer.train()
    assert 0 < trainer.state.global_step < 8, "the first batch was the policy's own"


def test_training_against_a_server(server: Server, checkpoint: Path, make: Make) -> None:
    trainer = make(GRPO(), rollouts=over_http(server), steps=2, lr=1e-2, checkpoint=str(checkpoint))
    trainer.train()
    gaps = [row["sampling/logprob_gap_max"] for row in trainer.state.log_history if "sampling/logprob_gap_max" in row]
    assert len(gaps) == 2 and max(gaps) < 1e-4
    assert server.asked["/collective_rpc"] == server.asked["/reset_prefix_cache"] == 3, "at the start and before each batch"


def test_a_model_in_shards_is_not_sampled_by_itself(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "sharded", lambda accelerator: True)
    with pytest.raises(StarError, match=r"cannot sample from a model that is in shards .* rl.rollouts to vllm, or start"):
        make(GRPO()).policy(1.0, 0)


@pytest.mark.parametrize(("rank", "updates"), [("0", 1), ("1", 0)])
def test_the_first_process_hands_over_to_what_all_share(
    server: Server, checkpoint: Path, student: Any, monkeypatch: pytest.MonkeyPatch, rank: str, updates: int
) -> None:
    monkeypatch.setenv("RANK", rank)
    sampler = plugins.build("sampler", over_http(server)).open(models.source(checkpoint, 300))
    before = server.asked["/collective_rpc"]
    with closing(sampler):
        sampler.update(models.weights(student))
    assert server.asked["/collective_rpc"] - before == updates


def test_a_server_takes_the_whole_weights_of_a_model_in_shards(
    server: Server, checkpoint: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(GRPO(), steps=2, rollouts=over_http(server), checkpoint=str(checkpoint))
    monkeypatch.setattr(together, "sharded", lambda accelerator: True)
    trainer.train()
    assert max(row["sampling/logprob_gap"] for row in trainer.state.log_history if "sampling/logprob_gap" in row) < 1e-4


def test_weights_are_those_that_are_saved(student: Any, renderer: Renderer, tmp_path: Path) -> None:
    model = models.lora(student, Lora(rank=4, alpha=8))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = {name: tensor.clone() for name, tensor in models.weights(model)}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    models.save(model, renderer.tokenizer, tmp_path / "merged", "tiny", 0)
    saved = load_file(tmp_path / "merged/model.safetensors")
    assert found.keys() == saved.keys()
    assert max(float((found[name] - saved[name]).abs().max()) for name in saved) < 1e-6
    changed = [name for name in saved if not torch.equal(saved[name], before.get(f"base_model.model.{name}", saved[name] + 1))]
    assert any("q_proj" in name for name in changed)


def test_settings_are_checked_with_the_recipe() -> None:
    assert load(None, ["rl.rollouts=vllm", "rl.rollouts.kv_cache_gib=2"]).rl.rollouts == {"name": "vllm", "kv_cache_gib": 2}
    assert load(None).eval.rollouts == load(None).rl.rollouts == {"name": "hf"}
    for wrong, what in (
        (["rl.rollouts=vlm"], "Did you mean 'vllm'"),
        (["rl.rollouts=hf", "rl.rollouts.url=http://x"], "hf has no setting 'url'"),
        (["eval.rollouts=vllm", "eval.rollouts.url=http://x"], "vllm has no setting 'url'"),
        (["rl.rollouts=vllm_server", "rl.rollouts.url=x"], "no address of a server"),
        (["rl.rollouts=vllm", "rl.rollouts.likeliest=0"], "positive"),
        (["rl.rollouts=vllm_server", "rl.rollouts.tries=0"], "positive"),
    ):
        with pytest.raises(UsageError, match=what):
            load(None, wrong)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_the_error_says_how_to_install_it(checkpoint: Path) -> None:
    with pytest.raises(StarError, match=r"needs the package 'vllm'.*star-agents\[vllm\]"):
        opened({"name": "vllm"}, checkpoint)


def test_an_adapter_alone_is_refused(server: Server, checkpoint: Path) -> None:
    source = models.source(checkpoint, 300)
    (checkpoint / "adapter_config.json").write_text("{}")
    for spec in ({"name": "vllm"}, over_http(server)):
        with pytest.raises(StarError, match="holds an adapter without its model"):
            plugins.build("sampler", spec).open(source)
    with pytest.raises(StarError, match="no directory"):
        plugins.build("sampler", over_http(server)).open(replace(source, path="some/model"))


def test_a_teacher_may_be_served(server: Server, checkpoint: Path, world: Any) -> None:
    spec = {"name": "local", "model": str(checkpoint), "turn_tokens": 14, "context": 300, "rollouts": over_http(server)}
    rows = play(plugins.build("policy", spec), world)
    assert server.asked["/v1/completions"] and all(row.policy == "local" and row.stop != "error" for row in rows)
    with pytest.raises(UsageError, match="no setting 'urls'"):
        plugins.build("policy", {**spec, "rollouts": {"name": "vllm_server", "urls": 1}})
