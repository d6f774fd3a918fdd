"""Training in several processes: one command starts them, waits, and speaks for them.

The process that was called keeps the run: its lock, its manifest, its progress bars. It starts workers that train in the stage's
partial directory, and reads one JSON object a line from the first of them: progress, then the result or an error.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from star import plugins, strictyaml
from star.errors import StarError, UsageError
from star.progress import Progress
from star.recipe import shipped_files
from star.records import plain, write_json
from star.settings import Launch, Recipe
from star.stage import Work

logger = logging.getLogger(__name__)

ORDER = "worker.json"
"""What the workers are to do, in the partial directory."""

Train = Callable[[Recipe, Work, Progress], None]


def processes(launch: Launch) -> int:
    """How many processes a launch means: as many as there are CUDA devices, and at least one, where it does not say."""
    if launch.processes is not None:
        return launch.processes
    torch = plugins.load("star.train.model:torch")
    return max(1, int(torch.cuda.device_count()))


def check(launch: Launch, who: str) -> None:
    """Raises StarError for an accelerate configuration that does not exist, or needs what is not installed."""
    if _configured(launch).get("distributed_type") == "DEEPSPEED":
        plugins.need("deepspeed", f"{who}: {launch.accelerate}")


def sharded(launch: Launch) -> bool:
    """Whether its accelerate configuration spreads one model over the processes: FSDP, or DeepSpeed's third stage."""
    configured = _configured(launch)
    stage = (configured.get("deepspeed_config") or {}).get("zero_stage")
    kind = configured.get("distributed_type")
    return kind == "FSDP" or (kind == "DEEPSPEED" and stage == 3)


def _configured(launch: Launch) -> dict[str, Any]:
    return {} if launch.accelerate is None else strictyaml.read(settings(launch.accelerate))


def train(target: str, launch: Launch, recipe: Recipe, work: Work, progress: Progress) -> None:
    """Do `target` ("module:function" of the type `Train`): here, or in as many processes as the launch says."""
    count = processes(launch)
    if count == 1 and launch.accelerate is None:
        run: Train = plugins.load(target)
        run(recipe, work, progress)
        return
    order = work.directory / ORDER
    write_json(order, {"target": target, "recipe": plain(recipe), "work": _written(work)})
    end = _follow([sys.executable, *_launcher(launch, count), "-m", "star.worker", str(order)], progress)
    order.unlink()
    for kind, name in end["made"].items():
        work.make(kind, name)
    for kind, rows in end["rows"].items():
        work.rows(kind, rows)
    work.metrics.update(end["metrics"])


def _written(work: Work) -> dict[str, Any]:
    inputs = plain(work.inputs)
    return {
        "job": plain(work.job), "directory": str(work.directory.resolve()), "resuming": work.resuming, "inputs": inputs,
        "root": str(work.root.resolve()),
    }  # fmt: skip


def _launcher(launch: Launch, count: int) -> list[str]:
    if launch.accelerate is None:
        return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    file = settings(launch.accelerate)
    number = [] if launch.processes is None else ["--num_processes", str(count)]
    return ["-m", "accelerate.commands.launch", "--config_file", str(file), *number]


def settings(name: str) -> Path:
    """An accelerate configuration by its path, or one of those that come with star by its name."""
    if Path(name).is_file():
        return Path(name).resolve()
    known = {path.stem: path for path in sorted((shipped_files() / "accelerate").glob("*.yaml"))}
    if name not in known:
        raise plugins.unknown(f"{name}: no such file, and no accelerate configuration of this name", name, known)
    return known[name]


def _follow(command: list[str], progress: Progress) -> dict[str, Any]:
    """Run the workers to their end; what the first of them leaves. Raises StarError with what it failed of."""
    logger.debug("starting %s", " ".join(command))
    end: dict[str, Any] = {}
    with _started(command) as running:
        for event in _events(running):
            if "progress" in event:
                progress(*event["progress"])
            else:
                end = event
    if "error" in end:
        kind = UsageError if end["exit_code"] == UsageError.exit_code else StarError
        raise kind(end["error"], end["fix"])
    if running.returncode or "made" not in end:
        raise StarError(f"the training processes ended with exit code {running.returncode}", "Their messages are above")
    return end


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A running command that ends with the block, whatever happens in it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        except BaseException:
            running.terminate()
            raise


def _events(running: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What the first worker says; lines of libraries go to the log."""
    assert running.stdout is not None
    for line in running.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict):
            yield event
        elif line.strip():
            logger.debug("%s", line.rstrip())
