"""SFT: fine-tune a model on the accepted trajectories."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from star import launch
from star.corpus import spread
from star.manifest import Entry, Run
from star.pipeline import job
from star.progress import Progress
from star.recipe import build_world
from star.records import read_jsonl, write_json
from star.settings import Recipe
from star.stage import Work
from star.train import model as models
from star.train import ranks, tiny, together
from star.train import sft as trainer
from star.train.tokens import Renderer
from star.types import Example

BASE = "base"
"""Directory of the untrained embedded model, in the stage's own."""


def check(recipe: Recipe) -> None:
    """Raises what would stop SFT on this machine and is known before it has data."""
    settings = recipe.sft
    launch.check(settings.launch, "sft.launch")
    if settings.launch.accelerate is None:
        trainer.passes(settings, launch.processes(settings.launch))


def sft(recipe: Recipe, run: Run, command: list[str]) -> Entry:
    """Train and leave the checkpoint; with the embedded model also leave the untrained one."""

    def body(work: Work) -> None:
        check(recipe)
        if recipe.sft.model == "tiny":
            _embedded(recipe, work)
        launch.train("star.sft:train", recipe.sft.launch, recipe, work, run.progress)

    return run.perform(job(recipe, "sft", command), body)


def train(recipe: Recipe, work: Work, progress: Progress) -> None:
    """SFT in one process, or as one of several; the first one writes."""
    settings = recipe.sft
    examples = read_jsonl(work.take("dataset"), Example)
    own = settings.model == "tiny"
    base = str(work.directory / BASE) if own else settings.model
    model, tokenizer = models.load(base, models.halved(settings))
    renderer = Renderer(tokenizer)
    data, dropped = trainer.rows(examples, renderer, settings.max_tokens)
    parameters = sum(p.numel() for p in model.parameters())
    if settings.lora is not None:
        model = models.lora(model, settings.lora)
    scratch = work.directory / "trainer"
    log, steps, last = trainer.train(model, renderer, data, settings, scratch, recipe.seed, partial(progress, "sft"))
    if ranks.rank():
        return
    together.alone()
    name = f"{work.job.stage}/{BASE}" if own else base
    models.save(models.stored(last, settings.bf16, base), tokenizer, work.make("sft-checkpoint", "model"), name, steps)
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
        parameters=parameters,
        loss=next((row["loss"] for row in reversed(log) if "loss" in row), None),
    )
    trainer.discard(scratch)


def _embedded(recipe: Recipe, work: Work) -> None:
    """The embedded model, built from the dataset once and kept as the base checkpoint."""
    base: Path = work.make("base", BASE)
    if (base / "config.json").exists():
        return
    conversations = [example.messages for example in read_jsonl(work.take("dataset"), Example)]
    tokenizer = tiny.tokenizer(conversations, build_world(recipe).names(), recipe.sft.tiny.vocabulary)
    draft = base.with_name("base.draft")
    trainer.discard(draft)
    models.save(tiny.model(recipe.sft.tiny, tokenizer, recipe.seed), tokenizer, draft, "tiny", 0)
    draft.rename(base)
