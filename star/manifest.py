"""The manifest of a run: which stages are finished, from what, with what, leaving what.

A stage works in `<stage>.partial/`. When it is finished, the directory is sealed with its entry, renamed to `<stage>/`,
and only then `manifest.json` is replaced. A process that dies at any moment leaves the old state or the new one; the
next writer clears away what is between.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from star import artifacts, provenance
from star.errors import ManifestError
from star.progress import Progress, silent
from star.recipe import SNAPSHOT, changes
from star.records import parse, plain, read_json, write_json
from star.settings import Recipe
from star.stage import Entry, Input, Job, StageState, Work, achieved, digest, fingerprint, finite, goal, grown

__all__ = ["Entry", "Input", "Job", "Run", "StageState", "Work"]

log = logging.getLogger(__name__)

JOB, ENTRY = ".job.json", ".entry.json"
"""Files inside a stage's directory: what it set out to do, and what it did."""

IDENTITY = ("name", "world", "seed")
"""Settings that make a run another run. All others only make stages stale."""


class Run:
    """A run directory. Reading is free; one process at a time may write."""

    def __init__(self, directory: Path, recipe: Recipe, ancestor: Run | None = None) -> None:
        self.directory = directory
        self.recipe = recipe
        self.ancestor = ancestor
        self.progress: Progress = silent
        """Where rooms report how far they are."""
        self._writing = False

    @classmethod
    def open(cls, directory: Path, recipe: Recipe | None = None, ancestor: Path | None = None) -> Run:
        """Open a run, or begin one; without a recipe it must exist. Creates nothing before the first stage works.

        Raises ManifestError if the directory is no run, or the run of another recipe.
        """
        snapshot = directory / SNAPSHOT
        if not snapshot.exists():
            if recipe is None:
                raise ManifestError(f"{directory}: is not a run directory", "Name one, such as runs/demo")
            if directory.exists() and not (directory.is_dir() and _is_empty(directory)):
                raise ManifestError(f"{directory}: exists, but is not a run directory", "Choose another with --run")
            return cls(directory, recipe, cls.open(ancestor) if ancestor else None)
        before = read_json(snapshot)
        if recipe is None:
            recipe = parse(Recipe, before, str(snapshot))
        differing = [key for key in changes(before, plain(recipe)) if key.partition(".")[0] in IDENTITY]
        if differing:
            what = f"{directory}: holds the run of another recipe; it differs in {', '.join(differing)}"
            raise ManifestError(what, f"Choose another directory with --run, or remove {directory}")
        run = cls(directory, recipe, cls.open(ancestor) if ancestor else None)
        run._recover_if_idle()
        return run

    def entries(self) -> dict[str, Entry]:
        """The finished stages, in the order in which they were finished first."""
        path = self.directory / "manifest.json"
        if not path.exists():
            return {}
        stages = parse(dict[str, Any], read_json(path), str(path)).get("stages")
        return parse(dict[str, Entry], stages, f"{path}: stages")

    def path(self, stage: str, kind: str) -> Path:
        """Where an artifact of a finished stage lies, unchecked."""
        entry = self.entries().get(stage)
        if entry is None:
            raise ManifestError(f"{self.directory}: stage {stage} is not finished", f"Run: {self._walk(stage)}")
        return self.directory / entry.output(kind).path

    def perform(self, job: Job, body: Callable[[Work], None]) -> Entry:
        """Do a stage, unless it is done already.

        `body` writes the outputs it declares with `work.make`. If it raises, or the process dies, the partial directory
        stays and the same job resumes in it. Raises ManifestError for a missing or tampered input, or a second writer.
        """
        done = self._up_to_date(job)
        if done is not None:
            log.info("%s: up to date", job.stage)
            return done
        with self._lock():
            inputs = self._inputs(job)
            if not (self.directory / SNAPSHOT).exists():
                write_json(self.directory / SNAPSHOT, self.recipe)
            entry = self._adopt(job, inputs) or self._work(job, inputs, body)
            self._commit(entry)
            # A stage that failed leaves the recipe of a run as it was.
            write_json(self.directory / SNAPSHOT, self.recipe)
        return entry

    def share(self, jobs: Sequence[Job]) -> None:
        """Adopt from the ancestor, in this order, every job that it has done and that would be equal work here."""
        for job in jobs:
            try:
                self._share(job)
            except ManifestError as error:
                log.debug("%s: not shared: %s", job.stage, error)

    def _share(self, job: Job) -> None:
        if self._up_to_date(job) is not None:
            return
        with self._lock():
            if not (self.directory / SNAPSHOT).exists():
                write_json(self.directory / SNAPSHOT, self.recipe)
            entry = self._adopt(job, self._inputs(job))
            if entry is not None:
                self._commit(entry)

    def status(self, jobs: Sequence[Job] = (), verify: bool = False) -> list[StageState]:
        """The state of each stage: of `jobs`, in their order, then of all others in the manifest.

        With jobs, a stage is also stale if its settings differ from the job's. `verify` hashes directories as well.
        """
        entries = self.entries()
        wanted = {job.stage: job for job in jobs}
        states: dict[str, StageState] = {}
        for stage in (*wanted, *(stage for stage in entries if stage not in wanted)):
            states[stage] = self._state(stage, wanted.get(stage), states, verify)
        return list(states.values())

    def verify(self) -> list[StageState]:
        """`status` with the full check of every artifact."""
        return self.status(verify=True)

    def _state(self, stage: str, job: Job | None, before: dict[str, StageState], verify: bool) -> StageState:
        """Derived from what is on disk, never from a flag; `before` are the states of the stages it builds on."""
        entries = self.entries()
        entry = entries.get(stage)
        if entry is None:
            partial = self._partial(stage).is_dir()
            return StageState(stage, "partial" if partial else "missing", "began, not finished" if partial else "")
        for artifact in entry.outputs:
            fault = artifacts.fault(artifact, self.directory / artifact.path, full=verify)
            if fault:
                return StageState(stage, "tampered" if "changed" in fault else "missing", f"{artifact.path} {fault}")
        differing = changes(entry.config, plain(dict(job.config))) if job else []
        if differing:
            return StageState(stage, "stale", f"{', '.join(differing)} changed")
        if job and (job.seed != entry.seed or set(job.takes) != {i.label for i in entry.inputs}):
            return StageState(stage, "stale", "its seed or the set of its inputs changed")
        for i in entry.inputs:
            maker = entries.get(i.stage)
            now = next((a.sha256 for a in maker.outputs if a.kind == i.artifact.kind), None) if maker else None
            if now != i.artifact.sha256:
                return StageState(stage, "stale", f"{i.label} of {i.stage} changed")
            if i.stage in before and before[i.stage].state != "done":
                return StageState(stage, "stale", f"{i.stage} is {before[i.stage].state}")
        return StageState(stage, "done")

    def _up_to_date(self, job: Job) -> Entry | None:
        inputs = self._inputs(job)
        entry = self.entries().get(job.stage)
        if entry is None:
            return None
        whole = all(artifacts.fault(a, self.directory / a.path, full=False) is None for a in entry.outputs)
        return entry if whole and entry.fingerprint == fingerprint(job, inputs) else None

    def _inputs(self, job: Job) -> list[Input]:
        """The inputs of a job, each found in the manifest and checked on disk."""
        entries = self.entries()
        found = []
        for label, stage in job.takes.items():
            kind = label.rpartition("/")[2]
            makers = [e for e in entries.values() if e.stage == (stage or e.stage) and any(a.kind == kind for a in e.outputs)]
            if len(makers) != 1:
                by = f"stage {stage} has not made" if stage else f"{len(makers) or 'no'} stages have made"
                raise ManifestError(f"{job.stage}: needs {kind}, which {by} in {self.directory}", f"Run: {self._walk(stage)}")
            artifact = makers[0].output(kind)
            fault = artifacts.fault(artifact, self.directory / artifact.path, full=False)
            if fault:
                remake = shlex.join(makers[0].command)
                raise ManifestError(f"{job.stage}: its input {self.directory / artifact.path} {fault}", f"Remake it: {remake}")
            found.append(Input(label, makers[0].stage, artifact))
        return found

    def _work(self, job: Job, inputs: list[Input], body: Callable[[Work], None]) -> Entry:
        partial = self._partial(job.stage)
        aim = goal(job, inputs)
        resuming = self._resume(partial, job, aim)
        work = Work(job, partial, resuming, inputs, self.directory, self._extended(job, aim))
        start = time.monotonic()
        try:
            body(work)
        finally:
            if {path.name for path in partial.iterdir()} <= {JOB}:
                shutil.rmtree(partial)
        commit, dirty = provenance.git()
        entry = Entry(
            stage=job.stage,
            command=list(job.command),
            config=aim["config"],
            seed=job.seed,
            fingerprint=fingerprint(job, inputs),
            inputs=inputs,
            outputs=work.seal(self.directory / job.stage),
            metrics=finite(plain(work.metrics)),
            versions=provenance.versions(),
            commit=commit,
            dirty=dirty,
            host=provenance.host(),
            seconds=round(time.monotonic() - start, 3),
            resumed=resuming,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        return replace(entry, fresh=True)

    def _extended(self, job: Job, aim: dict[str, Any]) -> Entry | None:
        """The finished stage that a job only extends, if it is whole."""
        entry = self.entries().get(job.stage)
        if entry is None or not job.grows or not grown(changes(achieved(entry), aim), job):
            return None
        whole = all(artifacts.fault(a, self.directory / a.path, full=False) is None for a in entry.outputs)
        return entry if whole else None

    def _resume(self, partial: Path, job: Job, aim: dict[str, Any]) -> bool:
        """Prepare the partial directory; whether it holds the beginning of this aim, or of one that it only extends."""
        if (partial / JOB).exists() and not grown(changes(read_json(partial / JOB), aim), job):
            self._set_aside(partial, aim)
        for begun in (partial, *sorted(self.directory.glob(f"{job.stage}.*.partial"))):
            differing = changes(read_json(begun / JOB), aim) if (begun / JOB).exists() else ["everything"]
            if grown(differing, job):
                os.replace(begun, partial)
                log.info("%s: resuming%s", job.stage, f"; {', '.join(differing)} changed" if differing else "")
                write_json(partial / JOB, aim)
                return True
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_json(partial / JOB, aim)
        return False

    def _set_aside(self, partial: Path, aim: dict[str, Any]) -> None:
        """Keep unfinished work of another aim for when it is wanted again: it may have taken days."""
        begun = read_json(partial / JOB)
        aside = partial.with_suffix(f".{digest(begun)[:8]}.partial")
        what = f"its unfinished work differs in {', '.join(changes(begun, aim))}"
        log.warning("%s: %s; the command that began it will find it in %s", aim["stage"], what, aside)
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(partial, aside)

    def _adopt(self, job: Job, inputs: list[Input]) -> Entry | None:
        """Share the finished stage of the ancestor if it did the same work."""
        entry = self.ancestor.entries().get(job.stage) if self.ancestor else None
        if self.ancestor is None or entry is None or entry.fingerprint != fingerprint(job, inputs):
            return None
        source, partial = self.ancestor.directory, self._partial(job.stage)
        broken = next((a.path for a in entry.outputs if artifacts.fault(a, source / a.path, full=False)), None)
        if broken:
            log.warning("%s: not shared from %s, where %s was changed", job.stage, source, broken)
            return None
        aim = goal(job, inputs)
        if (partial / JOB).exists() and changes(read_json(partial / JOB), aim):
            self._set_aside(partial, aim)
        shutil.rmtree(partial, ignore_errors=True)
        for artifact in entry.outputs:
            artifacts.share(source / artifact.path, partial / Path(artifact.path).relative_to(job.stage))
        log.info("%s: shared from %s", job.stage, source)
        return replace(entry, inputs=inputs, adopted=str(source))

    def _commit(self, entry: Entry) -> None:
        """Put the partial directory in its place and record it."""
        partial, final, old = self._places(entry.stage)
        write_json(partial / ENTRY, entry.stored())
        artifacts.sync(partial)
        if final.exists():
            os.replace(final, old)
        os.replace(partial, final)
        self._record(entry)
        shutil.rmtree(old, ignore_errors=True)

    def _record(self, entry: Entry) -> None:
        stages = {stage: done.stored() for stage, done in {**self.entries(), entry.stage: entry}.items()}
        write_json(self.directory / "manifest.json", {"format": 1, "run": self.recipe.name, "stages": stages})

    def _recover_if_idle(self) -> None:
        try:
            with self._lock():
                pass
        except (ManifestError, OSError):
            log.debug("%s: not tidied, another process is writing", self.directory)

    def _recover(self) -> None:
        """Finish or undo a commit that a dying process left half-way, and remove drafts. Needs the lock."""
        for draft in self.directory.glob(".*.tmp"):
            draft.unlink(missing_ok=True)
        for old in self.directory.glob("*.old"):
            final = old.with_suffix("")
            if final.exists():
                shutil.rmtree(old)
            else:
                os.replace(old, final)
        entries = self.entries()
        for path in self.directory.glob(f"*/{ENTRY}"):
            sealed = path.parent.suffix != ".partial"
            entry = parse(Entry, read_json(path), str(path))
            if sealed and entry != entries.get(entry.stage):
                self._record(entry)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Be the only writer; a second one is refused at once. A lock dies with its process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._writing:
            raise ManifestError(f"{self.directory}: a stage is being written", "One stage at a time")
        with (self.directory / ".lock").open("a+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                what = f"{self.directory}: another process is writing this run (process {owner})"
                raise ManifestError(what, "Wait for it, end it, or choose another directory with --run") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._writing = True
            try:
                self._recover()
                yield
            finally:
                self._writing = False

    def _places(self, stage: str) -> tuple[Path, Path, Path]:
        return self._partial(stage), self.directory / stage, self.directory / f"{stage}.old"

    def _partial(self, stage: str) -> Path:
        return self.directory / f"{stage}.partial"

    def _walk(self, stage: str | None) -> str:
        until = f" --until {stage}" if stage else ""
        return f"star run {self.directory / SNAPSHOT} --run {self.directory}{until}"


def _is_empty(directory: Path) -> bool:
    """Whether there is nothing but drafts and a lock of star's own."""
    return all(path.name.startswith(".") for path in directory.iterdir())
