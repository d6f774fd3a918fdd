"""Training in several processes, and from rollouts that were played before. If this breaks, more devices train another model, a
dead command leaves workers behind, or recorded rollouts are credited to the wrong policy."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.walk

Star = Callable[..., subprocess.CompletedProcess[str]]
Kill = Callable[..., None]
TWO = ("--set", "rl.launch.processes=2")


def weights(run: Path, stage: str) -> dict[str, torch.Tensor]:
    return load_file(run / stage / "model" / "model.safetensors")


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def steps(run: Path) -> list[dict[str, Any]]:
    return [row for row in json.loads((run / "rl" / "log.json").read_text())["steps"] if "grad_norm" in row]


@pytest.fixture(scope="session")
def two(place: Path, whole: Path, good: Star) -> Path:
    """The same run, whose RL had two processes."""
    done = good("rl", "-r", "mini.yaml", "--run", "two", "--from", "whole", "--processes", "2")
    assert "no tries" not in done.stderr, "what rollouts share is computed once, here too"
    return place / "two"


def test_two_processes_train_the_same_model_by_rl(whole: Path, two: Path) -> None:
    assert [row["grad_norm"] > 0 for row in steps(two)] == [row["grad_norm"] > 0 for row in steps(whole)]
    for one, other in zip(steps(whole), steps(two), strict=True):
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3, abs=1e-6)
        for name in ("reward", "rewards/success/mean", "rollout/turns", "rollout/tokens", "rollout/masked"):
            assert other[name] == pytest.approx(one[name], rel=1e-5)
    assert distance(weights(whole, "sft"), weights(whole, "rl")) > 1e-3, "it learned"
    assert distance(weights(whole, "rl"), weights(two, "rl")) < 1e-5
    best = [
        [(row["step"], row["label"], row["trajectory"]["query_id"]) for row in rows(r / "rl" / "rollouts.jsonl")]
        for r in (whole, two)
    ]
    assert best[0] == best[1]


def test_two_processes_agree_on_which_groups_are_replaced(place: Path, whole: Path, good: Star) -> None:
    """DAPO's refill: queries are chosen over all processes."""
    for name, count in (("dapo-one", "1"), ("dapo-two", "2")):
        pairs = ("--set", "rl.group=2", "--set", "rl.micro_batch=2", "--set", "rl.steps=3")
        dapo = ("--algo", "dapo", "--reward", "success", "--processes", count)
        good("rl", "-r", "mini.yaml", "--run", name, "--from", "whole", *dapo, *pairs)
    one, two = steps(place / "dapo-one"), steps(place / "dapo-two")
    assert sum(row["rollout/refilled_groups"] for row in one) > 0
    assert [row["rollout/refilled_groups"] for row in one] == [row["rollout/refilled_groups"] for row in two]
    assert distance(weights(place / "dapo-one", "rl"), weights(place / "dapo-two", "rl")) < 1e-5


def test_two_processes_train_the_same_model_by_sft(place: Path, whole: Path, good: Star) -> None:
    good(
        "sft",
        "-r",
        "mini.yaml",
        "--run",
        "two-sft",
        "--from",
        "whole",
        "--set",
        "sft.launch.processes=2",
        "--set",
        "sft.micro_batch=2",
    )
    assert distance(weights(whole, "sft"), weights(place / "two-sft", "sft")) < 1e-3
    assert distance(weights(whole, "sft"), load_file(whole / "sft" / "base" / "model.safetensors")) > 0.1


def test_two_processes_go_on_after_a_kill(place: Path, two: Path, good: Star, kill: Kill) -> None:
    walk = ("rl", "-r", "mini.yaml", "--run", "two-cut", "--from", "whole", *TWO)
    kill("two-cut/rl.partial/trainer/checkpoint-4/files.json", *walk)
    deadline = time.monotonic() + 30
    while workers("two-cut") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers("two-cut"), "workers die with the command that started them"
    assert "rl: resuming" in good(*walk).stderr
    assert distance(weights(two, "rl"), weights(place / "two-cut", "rl")) == 0.0


def test_accelerate_may_start_them(place: Path, whole: Path, good: Star) -> None:
    (place / "one.yaml").write_text(
        'compute_environment: LOCAL_MACHINE\ndistributed_type: "NO"\nnum_processes: 1\nuse_cpu: true\n'
    )
    good("rl", "-r", "mini.yaml", "--run", "one", "--from", "whole", "--set", "rl.launch.accelerate=one.yaml")
    assert distance(weights(whole, "rl"), weights(place / "one", "rl")) == 0.0


def workers(run: str) -> list[str]:
    lines = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if "star.worker" in line and run in line]


def test_processes_that_do_not_share_a_batch_are_refused(place: Path, whole: Path, command: Star) -> None:
    done = command("rl", "-r", "mini.yaml", "--run", "odd", "--from", "whole", "--processes", "3")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1
    assert "2 queries of 4 rollouts on 3 processes are not whole groups" in errors[0]
    assert not (place / "odd" / "rl").exists()


@pytest.mark.parametrize("way", [[], ["--rollouts-only"], ["--processes", "2"]], ids=str)
def test_a_batch_larger_than_all_queries_is_refused_at_once(place: Path, whole: Path, command: Star, way: list[str]) -> None:
    done = command("rl", "-r", "mini.yaml", "--run", "large", "--from", "whole", *way, "--set", "rl.queries=18")
    assert done.returncode == 2 and "rl.queries = 18 is more than what large/queries/rl.jsonl holds, which is 16" in done.stderr
    assert not list((place / "large").glob("*.partial"))


@pytest.fixture(scope="session")
def groups(place: Path, whole: Path, good: Star) -> Path:
    good("rl", "-r", "mini.yaml", "--run", "played", "--from", "whole", "--rollouts-only", "--set", "rl.steps=2")
    return place / "played" / "rollouts" / "groups.jsonl"


def test_recorded_rollouts_train_as_played_ones_do(place: Path, whole: Path, good: Star, groups: Path) -> None:
    played = rows(groups)
    assert len(played) == 2 * 2 * 4 and all(turn["completion"]["token_ids"] for row in played for turn in row["turns"])
    good("rl", "-r", "mini.yaml", "--run", "taught", "--from", "whole", "--from-rollouts", groups, "--set", "rl.steps=2")
    live, taught = steps(whole)[0], steps(place / "taught")[0]
    assert taught["grad_norm"] == pytest.approx(live["grad_norm"], rel=1e-4) and live["grad_norm"] > 0
    assert taught["reward"] == live["reward"]
    assert [row["reward"] for row in steps(place / "taught")] == [
        pytest.approx(sum(reward(row) for row in played[start : start + 8]) / 8, rel=1e-5) for start in (0, 8)
    ]


def reward(row: dict[str, Any]) -> float:
    """STAR's SUM."""
    score = row["score"]
    if row["stop"] != "answer" or not score["delivered"]:
        return 0.0
    held = [value is not False for value in score["commonsense"].values()]
    hard = [value for value in score["hard"].values() if value is not None] if score["hard_counts"] else [False]
    parts = (sum(held) / len(held), all(held), sum(hard) / len(hard), all(hard), all(held) and all(hard))
    return float(sum(parts))


def test_a_model_in_shards_is_trained_the_same(place: Path, whole: Path, good: Star, groups: Path, in_shards: Star) -> None:
    words = ("--from-rollouts", groups, "--set", "rl.steps=2", "--set", "rl.eval_steps=0")
    good("rl", "-r", "mini.yaml", "--run", "held", "--from", "whole", *words)
    done = in_shards("rl", "-r", "mini.yaml", "--run", "shards", "--from", "whole", *words, "--processes", "2")
    assert done.returncode == 0 and "its parameters are sharded" in done.stderr, done.stderr
    assert distance(weights(place / "held", "rl"), weights(place / "shards", "rl")) < 1e-5
    assert distance(weights(place / "held", "rl"), weights(whole, "sft")) > 1e-4, "it learned"


@pytest.mark.parametrize("setting", ["rl.lora.rank=2", "rl.bf16=true", "rl.bf16=true rl.lora.rank=2"])
def test_adapters_and_bfloat16_in_shards(
    setting: str, place: Path, whole: Path, good: Star, groups: Path, in_shards: Star
) -> None:
    name, base = setting.replace(" ", "-"), weights(whole, "sft")
    words = ["--from-rollouts", groups, "--set", "rl.steps=2", "--set", "rl.eval_steps=0"]
    words += [word for part in setting.split() for word in ("--set", part)]
    good("rl", "-r", "mini.yaml", "--run", f"{name}-held", "--from", "whole", *words)
    done = in_shards("rl", "-r", "mini.yaml", "--run", f"{name}-shards", "--from", "whole", *words, "--processes", "2")
    assert done.returncode == 0 and "its parameters are sharded" in done.stderr, done.stderr
    held, shards = (weights(place / f"{name}-{kind}", "rl") for kind in ("held", "shards"))
    moved = [torch.cat([(now[layer].double() - base[layer]).flatten() for layer in base]) for now in (held, shards)]
    assert {tensor.dtype for tensor in held.values()} == {tensor.dtype for tensor in shards.values()}
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > (0.95 if "bf16" in setting else 1 - 1e-6)


def test_sft_of_a_model_in_shards_ends_at_the_same_weights(place: Path, whole: Path, in_shards: Star) -> None:
    pairs = ("--set", "sft.launch.processes=2", "--set", "sft.micro_batch=2")
    done = in_shards("sft", "-r", "mini.yaml", "--run", "sft-shards", "--from", "whole", *pairs)
    assert done.returncode == 0, done.stderr
    assert distance(weights(whole, "sft"), weights(place / "sft-shards", "sft")) < 1e-3


def test_a_model_in_shards_goes_on_after_a_kill(
    place: Path, whole: Path, in_shards: Star, shards: dict[str, str], kill: Kill, groups: Path
) -> None:
    words = ("--from-rollouts", groups, "--set", "rl.steps=4", "--set", "rl.eval_steps=0", "--processes", "2")
    walk = ("rl", "-r", "mini.yaml", "--from", "whole", *words)
    assert in_shards(*walk, "--run", "shards-whole").returncode == 0
    sign = "shards-cut/rl.partial/trainer/checkpoint-2/files.json"
    kill(sign, *walk, "--run", "shards-cut", variables=shards)
    done = in_shards(*walk, "--run", "shards-cut")
    assert done.returncode == 0 and "rl: resuming" in done.stderr, done.stderr
    assert distance(weights(place / "shards-whole", "rl"), weights(place / "shards-cut", "rl")) == 0.0


def test_a_model_in_shards_does_not_sample(whole: Path, in_shards: Star) -> None:
    done = in_shards("rl", "-r", "mini.yaml", "--run", "sampled", "--from", "whole", "--processes", "2")
    assert done.returncode == 1 and "hf cannot sample from a model that is in shards" in done.stderr
    assert "Set rl.rollouts to vllm, or start a vLLM server" in done.stderr


def test_foreign_rollouts_stop_the_run(place: Path, whole: Path, command: Star, groups: Path) -> None:
    """Those of another checkpoint: their log-probabilities are not this model's."""
    changed = rows(groups)
    for row in changed:
        for turn in row["turns"]:
            turn["completion"]["logprobs"] = [value - 0.5 for value in turn["completion"]["logprobs"]]
    (place / "foreign.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    done = command("rl", "-r", "mini.yaml", "--run", "foreign", "--from", "whole", "--from-rollouts", "foreign.jsonl")
    assert done.returncode == 1 and "sampler and trainer differ by 0.5" in done.stderr


def test_a_probe_leaves_out_what_teaches_nothing(place: Path, whole: Path, good: Star) -> None:
    drop = ("--set", "rl.probe=3", "--set", "rl.drop=[never]", "--set", "rl.steps=2")
    done = good("rl", "-r", "mini.yaml", "--run", "probed", "--from", "whole", *drop)
    shares = json.loads((place / "probed" / "rl" / "probe.json").read_text())
    kept = {name for name, share in shares.items() if share > 0}
    assert len(shares) == 16 and 2 <= len(kept) < 16
    assert f"probe: {len(kept)} of 16 queries are left" in done.stderr
    trained = {row["trajectory"]["query_id"] for row in rows(place / "probed" / "rl" / "rollouts.jsonl")}
    assert trained <= kept
