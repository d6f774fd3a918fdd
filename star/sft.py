"""SFT: fine-tune a model on the accepted trajectories."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from star.corpus import spread
from star.manifest import Entry, Run
from star.pipeline import job
from star.recipe import Recipe, build_world
from star.records import read_jsonl, write_json
from star.stage import Work
from star.train import model as models
from star.train import sft as trainer
from star.train import tiny
from star.train.tokens import Renderer
from star.types import Example


def sft(recipe: Recipe, run: Run, command: list[str]) -> Entry:
    """Train and leave the checkpoint; with the embedded model also leave the untrained one."""

    def body(work: Work) -> None:
        examples = read_jsonl(work.take("dataset"), Example)
        model, tokenizer = _start(recipe, work, examples)
        renderer = Renderer(tokenizer)
        data, dropped = trainer.rows(examples, renderer, recipe.sft.max_tokens)
        if recipe.sft.lora is not None:
            model = models.lora(model, recipe.sft.lora)
        scratch = work.directory / "trainer"
        log, steps = trainer.train(model, renderer, data, recipe.sft, scratch, recipe.seed, partial(run.progress, "sft"))
        models.save(model, tokenizer, work.make("sft-checkpoint", "model"), recipe.sft.model, steps)
        write_json(work.make("sft-log", "log.json"), log)
        tokens = [len(row["input_ids"]) for row in data]
        trained = [sum(label != -100 for label in row["labels"]) for row in data]
        work.metrics.update(
            steps=steps,
            conversations=len(data),
            dropped_for_length=dropped,
            tokens=sum(tokens),
            trained_tokens=sum(trained),
            conversation={"tokens": spread(tokens), "trained_tokens": spread(trained)},
            vocabulary=len(tokenizer),
            parameters=sum(p.numel() for p in model.parameters()),
            loss=next((row["loss"] for row in reversed(log) if "loss" in row), None),
        )
        trainer.discard(scratch)

    return run.perform(job(recipe, "sft", command), body)


def _start(recipe: Recipe, work: Work, examples: list[Example]) -> tuple[Any, Any]:
    """The model to train. The embedded one is built from the dataset once and kept as the base checkpoint."""
    if recipe.sft.model != "tiny":
        return models.load(recipe.sft.model, recipe.sft.bf16)
    base: Path = work.make("base", "base")
    if not (base / "config.json").exists():
        conversations = [example.messages for example in examples]
        tokenizer = tiny.tokenizer(conversations, build_world(recipe).names(), recipe.sft.tiny.vocabulary)
        draft = base.with_name("base.draft")
        trainer.discard(draft)
        models.save(tiny.model(recipe.sft.tiny, tokenizer, recipe.seed), tokenizer, draft, "tiny", 0)
        draft.rename(base)
    return models.load(base)
