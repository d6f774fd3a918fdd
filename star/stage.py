"""A stage on paper and at work: what is to be done, what was done, and what it sees while it is being done."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from star import artifacts
from star.artifacts import Artifact
from star.errors import ManifestError
from star.records import plain


@dataclass(frozen=True, slots=True)
class Job:
    """A stage to be done."""

    stage: str
    command: list[str]
    """The command line that asked for it, for the record and for error messages."""
    config: Mapping[str, Any]
    """The settings it depends on, as JSON values."""
    takes: Mapping[str, str | None]
    """Label of an input -> the stage that makes it, None for whichever has made it.

    A label is a kind, or `anything/kind` where a stage takes several artifacts of one kind.
    """
    seed: int
    grows: tuple[str, ...] = ()
    """Dotted keys of settings, and labels of inputs after "inputs.", that may change without loss of what was done before."""


@dataclass(frozen=True, slots=True)
class Input:
    label: str
    stage: str
    """The stage that made it."""
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished stage."""

    stage: str
    command: list[str]
    config: dict[str, Any]
    seed: int
    fingerprint: str
    """Hash of stage, config, seed and the hashes of the inputs: equal fingerprints mean equal work."""
    inputs: list[Input]
    outputs: list[Artifact]
    metrics: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    dirty: bool
    host: str
    seconds: float
    """Of the process that finished it; an interrupted attempt before is not counted."""
    resumed: bool
    finished: str
    """ISO 8601, UTC."""
    adopted: str | None = None
    """The run directory it was shared from."""
    fresh: bool = False
    """Whether this very call did the work; not stored."""

    def stored(self) -> dict[str, Any]:
        """The entry as the manifest keeps it."""
        values: dict[str, Any] = plain(self)
        del values["fresh"]
        return values

    def output(self, kind: str) -> Artifact:
        found = next((a for a in self.outputs if a.kind == kind), None)
        if found is None:
            kinds = ", ".join(a.kind for a in self.outputs)
            raise ManifestError(f"stage {self.stage} has no artifact {kind!r}", f"It has: {kinds}")
        return found


@dataclass(frozen=True, slots=True)
class StageState:
    stage: str
    state: Literal["done", "stale", "partial", "missing", "tampered"]
    why: str = ""


@dataclass
class Work:
    """What a stage sees while it works."""

    job: Job
    directory: Path
    """The partial directory; files of its own that help to resume may lie there."""
    resuming: bool
    """Whether the directory holds the beginning of this very job."""
    inputs: list[Input]
    root: Path
    earlier: Entry | None = None
    """The finished stage that this job only extends; its files are still in place."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Summary numbers for the manifest."""
    _made: dict[str, Path] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)

    def take(self, label: str) -> Path:
        """Path of an input. It was checked when the stage began."""
        found = next((i for i in self.inputs if i.label == label), None)
        if found is None:
            raise KeyError(f"stage {self.job.stage} does not declare that it takes {label!r}")
        return self.root / found.artifact.path

    def make(self, kind: str, filename: str) -> Path:
        """Where to write an output; it must exist when the stage ends."""
        if kind in self._made and self._made[kind].name != filename:
            raise KeyError(f"stage {self.job.stage} makes {kind!r} twice")
        self._made[kind] = self.directory / filename
        return self._made[kind]

    def rows(self, kind: str, count: int) -> None:
        """Note how many records an output has."""
        self._rows[kind] = count

    def made(self) -> dict[str, Any]:
        """The outputs that were declared so far, by their names, and how many records they have."""
        return {"made": {kind: path.name for kind, path in self._made.items()}, "rows": dict(self._rows)}

    def seal(self, final: Path) -> list[Artifact]:
        """The outputs as artifacts that lie in `final`, relative to the run."""
        sealed = []
        for kind, path in self._made.items():
            if not path.exists():
                raise ManifestError(f"stage {self.job.stage} ended without its {kind} ({path.name})", "This is a bug")
            place = (final / path.name).relative_to(self.root).as_posix()
            sealed.append(replace(artifacts.seal(kind, path, self._rows.get(kind)), path=place))
        return sealed


def fingerprint(job: Job, inputs: Sequence[Input]) -> str:
    """Equal for equal work: stage, settings, seed and the bytes of the inputs."""
    return digest(goal(job, inputs))


def digest(goal: dict[str, Any]) -> str:
    """Hash of a goal, equal for equal ones."""
    return hashlib.sha256(json.dumps(goal, sort_keys=True, allow_nan=False).encode()).hexdigest()


def goal(job: Job, inputs: Sequence[Input]) -> dict[str, Any]:
    """All that decides the outcome of a job, as JSON values."""
    hashes = {i.label: i.artifact.sha256 for i in inputs}
    config: dict[str, Any] = json.loads(json.dumps(plain(dict(job.config)), allow_nan=False))
    return {"stage": job.stage, "config": config, "seed": job.seed, "inputs": hashes}


def achieved(entry: Entry) -> dict[str, Any]:
    """The `goal` of the job that was done."""
    hashes = {i.label: i.artifact.sha256 for i in entry.inputs}
    return {"stage": entry.stage, "config": entry.config, "seed": entry.seed, "inputs": hashes}


def grown(differing: Sequence[str], job: Job) -> bool:
    """Whether a job only extends one whose goal differs in these keys."""
    return all(key.removeprefix("config.") in job.grows for key in differing)


def finite(value: Any) -> Any:
    """JSON has no NaN: a metric that is not finite is kept as its name."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
