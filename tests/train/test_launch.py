"""How a training comes to its processes. If this breaks, a configuration is read by nobody, or queries are played
twice or never."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from transformers import TrainingArguments

import star
from star import launch
from star.actions import call_text
from star.algorithms.grpo import GRPO
from star.errors import StarError, UsageError
from star.progress import silent
from star.recipe import load, shipped_files
from star.rl import world_of
from star.settings import Launch, Recipe, Rl, Sft
from star.stage import Job, Work
from star.train import arguments, ranks, sft, together
from star.types import ToolCall

SHIPPED = sorted((shipped_files() / "accelerate").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configurations_are_accelerates(path: Path) -> None:
    found = load_config_from_file(str(path))
    kinds = {"ddp": DistributedType.MULTI_GPU, "fsdp2": DistributedType.FSDP, "zero3": DistributedType.DEEPSPEED}
    assert found.distributed_type == kinds[path.stem]
    assert launch.settings(path.stem) == path
    if path.stem == "fsdp2":
        assert found.fsdp_config["fsdp_version"] == 2
    if path.stem == "zero3":
        assert found.deepspeed_config["zero_stage"] == 3


def test_a_configuration_is_named_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("")
    assert launch.settings(str(tmp_path / "own.yaml")) == tmp_path / "own.yaml"
    with pytest.raises(UsageError, match="no accelerate configuration of this name"):
        launch.settings("fsdp")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_what_is_dealt_out_is_dealt_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    values = list(range(10))
    monkeypatch.setenv("WORLD_SIZE", str(count))
    shares = []
    for number in range(count):
        monkeypatch.setenv("RANK", str(number))
        shares.append(list(ranks.dealt(values)))
    assert [value for share in shares for value in share] == values
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("kind", "plugin", "sharded"),
    [
        (DistributedType.NO, None, False),
        (DistributedType.MULTI_GPU, None, False),
        (DistributedType.FSDP, None, True),
        (DistributedType.DEEPSPEED, SimpleNamespace(zero_stage=3), True),
        (DistributedType.DEEPSPEED, SimpleNamespace(zero_stage=2), False),
    ],
)
def test_a_model_in_shards_is_known(kind: DistributedType, plugin: Any, sharded: bool) -> None:
    accelerator: Any = SimpleNamespace(distributed_type=kind, state=SimpleNamespace(deepspeed_plugin=plugin))
    assert together.sharded(accelerator) is sharded


@pytest.mark.parametrize(
    ("processes", "queries", "micro", "fits"), [(2, 4, 8, True), (2, 3, 8, False), (2, 4, 16, False), (4, 4, 4, True)]
)
def test_a_process_has_whole_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processes: int, queries: int, micro: int, fits: bool
) -> None:
    monkeypatch.setattr(arguments, "size", lambda: processes)
    settings = Rl(queries=queries, group=4, micro_batch=micro, steps=1)
    if fits:
        found = arguments.config(settings, GRPO(), 100, 0, tmp_path)
        local = found.per_device_train_batch_size * found.steps_per_generation
        assert local * processes == queries * 4 and local % 4 == 0
        return
    with pytest.raises(UsageError, match="are not whole groups"):
        arguments.config(settings, GRPO(), 100, 0, tmp_path)


def test_a_process_that_trains_alone_uses_one_device(make: Any, conversations: Any, renderer: Any, student: Any, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """transformers spreads the batches of a single process over all GPUs that it sees, which TRL refuses."""
    looked = TrainingArguments._setup_devices.func

    def eight(args: Any) -> Any:
        device = looked(args)
        args._n_gpu = 8
        return device

    found = cached_property(eight)
    found.__set_name__(TrainingArguments, "_setup_devices")
    monkeypatch.setattr(TrainingArguments, "_setup_devices", found)
    assert TrainingArguments(str(tmp_path)).n_gpu == 8
    trainer = make(GRPO(), steps=1)
    trainer.train()
    settings = Sft(steps=2, batch=4, micro_batch=2)
    data = [dict(zip(("input_ids", "labels"), renderer.example(messages), strict=True)) for messages in conversations]
    _, steps, _ = sft.train(student, renderer, data, settings, tmp_path / "sft", 0, lambda *_: None)
    assert (trainer.state.global_step, steps) == (1, 2)
    assert trainer.args.train_batch_size == trainer.setup.settings.micro_batch


WORKER = """
import json, sys
order = json.load(open(sys.argv[-1]))
for event in json.loads(order["recipe"]["name"].replace("~", '"')):
    print(event if isinstance(event, str) else json.dumps(event), flush=True)
sys.exit(int(order["target"]))
"""
"""Stands for torchrun and its workers: says what it is told to."""


def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[Any], code: int, progress: Any = silent) -> Work:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(launch, "_launcher", lambda *_: [str(tmp_path / "worker.py")])
    work = Work(Job("rl", [], {}, {}, 0), tmp_path, False, [], tmp_path)
    recipe = Recipe(name=json.dumps(said).replace('"', "~"))
    launch.train(str(code), Launch(processes=2), recipe, work, progress)
    return work


def test_the_command_speaks_for_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    end = {"made": {"log": "log.json"}, "rows": {"log": 3}, "metrics": {"steps": 2}}
    said = [{"progress": ["rl", 1, 2, "so far"]}, "a library talks", end]
    work = events(tmp_path, monkeypatch, said, 0, lambda *words: heard.append(words))
    assert heard == [("rl", 1, 2, "so far")]
    assert work.made() == {"made": {"log": "log.json"}, "rows": {"log": 3}} and work.metrics == {"steps": 2}
    assert not (tmp_path / launch.ORDER).exists()


@pytest.mark.parametrize(
    ("said", "code", "kind", "message"),
    [
        ([{"error": "it is wrong", "fix": "Mend it", "exit_code": 2}], 1, UsageError, "it is wrong. Mend it"),
        ([{"error": "it broke", "fix": "", "exit_code": 1}], 1, StarError, "it broke"),
        ([], 0, StarError, "ended with exit code 0"),
        (["Traceback"], 3, StarError, "ended with exit code 3"),
    ],
)
def test_a_fault_of_the_workers_is_one_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[Any], code: int, kind: type[StarError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        events(tmp_path, monkeypatch, said, code)


def test_what_nobody_foresaw_in_a_worker_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.py").write_text('def fails(*_):\n    raise RuntimeError("the clock\\nhas stopped")\n')
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(star.__file__).parents[1]}")
    work = Work(Job("rl", [], {}, {}, 0), tmp_path, False, [], tmp_path)
    with pytest.raises(StarError, match="RuntimeError: the clock has stopped"):
        launch.train("odd:fails", Launch(processes=2), Recipe(), work, silent)
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize("connected", [1, 2])
def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch: pytest.MonkeyPatch, connected: int) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    accelerator: Any = SimpleNamespace(num_processes=connected)
    if connected == 2:
        together.check(accelerator)
        return
    with pytest.raises(StarError, match=r"2 processes were started, and accelerate connects 1 of them\. Correct"):
        together.check(accelerator)


def test_workers_end_when_the_command_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "pid"
    (tmp_path / "worker.py").write_text(
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\nprint('[1]', flush=True)\n"
        'print(\'{"progress": ["rl", 0, 1, ""]}\', flush=True)\ntime.sleep(60)\n'
    )

    def interrupt(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "_launcher", lambda *_: [str(tmp_path / "worker.py")])
    work = Work(Job("rl", [], {}, {}, 0), tmp_path, False, [], tmp_path)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch.train("0", Launch(processes=2), Recipe(), work, interrupt)
    assert time.monotonic() - begun < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_a_configuration_says_whether_the_model_is_in_shards() -> None:
    found = {name: launch.sharded(Launch(accelerate=name)) for name in (None, "ddp", "fsdp2", "zero3")}
    assert found == {None: False, "ddp": False, "fsdp2": True, "zero3": True}


def test_the_launchers_are_torchrun_and_accelerate(tmp_path: Path) -> None:
    assert launch._launcher(Launch(processes=3), 3)[1:] == ["torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    words = launch._launcher(Launch(processes=4, accelerate="fsdp2"), 4)
    assert words[1] == "accelerate.commands.launch" and words[-2:] == ["--num_processes", "4"]
    assert words[3].endswith("pipelines/accelerate/fsdp2.yaml")
    assert sys.executable


def test_processes_are_a_setting() -> None:
    assert load(None, ["rl.launch.processes=2", "sft.launch.accelerate=ddp"]).rl.launch == Launch(2)
    with pytest.raises(UsageError, match="rl.launch.processes"):
        load(None, ["rl.launch.processes=0"])


def test_tools_fail_as_often_as_rl_asks() -> None:
    """Of the calls in RL's world a share fails, in the same places each time; the recipe's own world keeps its rate."""
    recipe = load(None, ["rl.tool_failure_rate=0.5"])
    world = world_of(recipe)
    query = world.queries("rl", 1, 0)[0]
    call = call_text("", ToolCall("SearchRestaurant", {"city": query.facts["org"]}))
    faults = [world.open(query, f"rollout {number}").step(call).fault for number in range(200)]
    assert 70 < sum(fault is not None for fault in faults) < 130
    assert world_of(load(None)).open(query, "rollout 0").step(call).fault is None
    with pytest.raises(UsageError, match="Recorded rollouts call no tools"):
        load(None, ["rl.tool_failure_rate=0.5", "rl.recorded=groups.jsonl"])
