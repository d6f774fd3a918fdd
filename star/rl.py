"""RL: improve a checkpoint by playing queries and rewarding what the judge says."""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from star import plugins
from star.errors import StarError
from star.manifest import Entry, Run
from star.pipeline import job
from star.recipe import Recipe, build_world
from star.records import read_jsonl, write_json
from star.rollout import Group
from star.stage import Work
from star.train import model as models
from star.train.dev import Dev, Keep, Progress, Row
from star.train.grpo import Setup, StarGRPOTrainer
from star.train.tokens import Renderer
from star.types import Query


def rl(recipe: Recipe, run: Run, command: list[str]) -> Entry:
    """Train from the SFT checkpoint; leave the checkpoint that is best on the dev queries."""

    def body(work: Work) -> None:
        models.seeded(recipe.seed)
        model, tokenizer = models.load(work.take("sft-checkpoint"), recipe.rl.bf16)
        if recipe.rl.freeze_embeddings:
            model.get_input_embeddings().weight.requires_grad_(False)
        if recipe.rl.lora is not None:
            model = models.lora(model, recipe.rl.lora)
        setup = _setup(recipe, work, Renderer(tokenizer))
        scratch = work.directory / "trainer"
        scratch.mkdir(exist_ok=True)
        dev_queries = read_jsonl(work.take("queries-dev"), Query)
        dev = Dev(partial(_play_dev, dev_queries), recipe.rl.eval_steps, scratch)
        keep = Keep(work.make("rollouts", "rollouts.jsonl"))
        trainer = StarGRPOTrainer(model, setup, scratch, callbacks=[dev, keep, Progress(partial(run.progress, "rl"))])
        dev.trainer = keep.trainer = trainer
        with closing(trainer):
            _train(trainer, scratch)
        step = _save(trainer, dev, recipe, work)
        history = trainer.state.log_history
        write_json(work.make("rl-log", "log.json"), {"steps": history, "dev": dev.rows, "best": step})
        last: dict[str, Any] = next((row for row in reversed(history) if "reward" in row), {})
        work.metrics.update(steps=trainer.state.global_step, best_step=step, dev=dev.rows.get(step), last=_summary(last))
        shutil.rmtree(scratch)

    return run.perform(job(recipe, "rl", command), body)


def _setup(recipe: Recipe, work: Work, renderer: Renderer) -> Setup:
    world = build_world(recipe)
    return Setup(
        settings=recipe.rl,
        world=world,
        judge=partial(world.score, mode=recipe.rl.mode),
        algorithm=plugins.build("algorithm", recipe.rl.algo),
        reward=plugins.build("reward", recipe.rl.reward),
        renderer=renderer,
        queries=read_jsonl(work.take("queries-rl"), Query),
        seed=recipe.seed,
        checkpoint=str(work.take("sft-checkpoint")),
    )


def _train(trainer: StarGRPOTrainer, scratch: Path) -> None:
    models.finish(trainer, scratch)
    done, wanted = trainer.state.global_step, trainer.state.max_steps
    if done < wanted:
        raise StarError(f"RL ended at step {done} of {wanted}", "Run the same command again to go on")


def _play_dev(queries: list[Query], trainer: StarGRPOTrainer) -> Row:
    """Success on the dev queries, greedy and sampled; the value is their mean."""
    row: Row = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        policy = trainer.policy(temperature, trainer.setup.seed, "dev")
        groups = [Group(query, 1, f"dev-{name}/{query.id}") for query in queries]
        played = [group[0] for group in trainer.rollout(policy, None).run(groups)]
        trainer.sampler.rest()
        row[name] = sum(t.score is not None and t.score.success for t in played) / max(1, len(played))
    return {**row, "value": sum(row.values()) / len(row)}


def _save(trainer: StarGRPOTrainer, dev: Dev, recipe: Recipe, work: Work) -> int:
    """Leave the best model, or the last one where no dev queries are played; return its step."""
    tokenizer, target = trainer.setup.renderer.tokenizer, work.make("rl-checkpoint", "model")
    if not dev.rows:
        model: Any = trainer.accelerator.unwrap_model(trainer.model)
        models.save(model, tokenizer, target, recipe.sft.model, trainer.state.global_step)
        return int(trainer.state.global_step)
    model, _ = models.load(dev.best_directory, recipe.rl.bf16)
    models.save(model, tokenizer, target, recipe.sft.model, dev.best)
    return dev.best


def _summary(row: dict[str, Any]) -> dict[str, float]:
    names = ("reward", "entropy", "rewards/success/mean", "rollout/tool_calls", "rollout/forks", "frac_reward_zero_std")
    return {name: float(row[name]) for name in names if name in row}
