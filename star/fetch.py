"""Fetch: bring the published data from the Hugging Face Hub, resumably, and record what came with its sha256.

HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere. An interrupted download goes on where it
stopped; a file that is there and whole is not fetched again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from huggingface_hub import HfApi, constants, errors, get_token, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from star.data import read_record
from star.errors import DataError, UsageError
from star.plugins import unknown
from star.progress import Patient, Progress, silent
from star.records import write_json
from star.worlds.travel.published import RECORD, SOURCES, Source

log = logging.getLogger(__name__)

TRANSPORT: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
"""What the hub's HTTP client raises if there is no connection."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as the hub describes it."""

    source: Source
    revision: str
    path: str
    size: int
    sha256: str | None
    """Known of large files only."""
    git: str
    """Id of the blob, which is known of small files."""

    @property
    def place(self) -> str:
        """Where it goes, inside the data folder."""
        return f"{self.source.folder}/{Path(self.path).name}"


def fetch(to: Path, only: str | None = None, progress: Progress = silent) -> dict[str, Any]:
    """Bring the database, the query sets and the official splits into a folder; `only` one of these."""
    if only is not None and only not in SOURCES:
        raise unknown(f"--only {only}: unknown part of the data", only, SOURCES)
    sources = [source for name, group in SOURCES.items() if only in (None, name) for source in group]
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES:
        _want_local(to, sources)
    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    api = HfApi(endpoint=endpoint.rstrip("/"), token=get_token())
    patient = Patient(progress)
    done = [(remote.place, _bring(api, remote, to, patient)) for source in sources for remote in _listed(api, source)]
    return {
        "folder": str(to),
        "fetched": [place for place, fresh in done if fresh],
        "kept": [place for place, fresh in done if not fresh],
    }


def _want_local(to: Path, sources: list[Source]) -> NoReturn:
    places = [to / source.folder / Path(path).name for source in sources for path in source.files]
    absent = [str(place) for place in places if not place.is_file()]
    if absent:
        what = f"{absent[0]}: is not there, and HF_HUB_OFFLINE forbids to fetch it"
        raise UsageError(what, "Unset HF_HUB_OFFLINE, or copy the files there; data/README.md lists them")
    raise UsageError("HF_HUB_OFFLINE forbids to fetch", f"All files are in {to} already; star data info checks them")


def _listed(api: HfApi, source: Source) -> list[Remote]:
    """The files of a source at the newest revision."""
    try:
        revision = api.repo_info(source.repo, repo_type=source.kind, timeout=30).sha or "main"
        found = api.get_paths_info(source.repo, list(source.files), repo_type=source.kind, revision=revision)
    except (errors.HfHubHTTPError, TRANSPORT, OSError) as error:
        _refuse(api, source, error)
    files = {file.path: file for file in found if isinstance(file, RepoFile)}
    absent = [path for path in source.files if path not in files]
    if absent:
        what = f"{api.endpoint}: {source.repo} has no file {absent[0]}"
        raise DataError(what, "It was renamed or removed there; fetch it by hand, as data/README.md says")
    wanted = [files[path] for path in source.files]
    return [Remote(source, revision, f.path, f.size, f.lfs.sha256 if f.lfs else None, f.blob_id) for f in wanted]


def _refuse(api: HfApi, source: Source, error: Exception) -> NoReturn:
    """Say in one line why the hub did not give something."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    where = f"{api.endpoint}: {source.repo}"
    if isinstance(error, errors.GatedRepoError) or status == 403:
        raise DataError(f"{where}: not allowed (HTTP {status})", "Accept its terms on the hub, and set HF_TOKEN") from None
    if status == 401:
        raise DataError(f"{where}: does not exist or is private (HTTP 401)", "Set HF_TOKEN, or check HF_ENDPOINT") from None
    if status == 404:
        raise DataError(f"{where}: no such repository or file (HTTP 404)", "Check HF_ENDPOINT") from None
    reason = f"HTTP {status}" if status else str(error).splitlines()[0] if str(error) else type(error).__name__
    raise DataError(f"{where}: {reason}", "Check the network and HF_ENDPOINT, then run it again: it goes on from there") from None


def _bring(api: HfApi, remote: Remote, to: Path, progress: Progress) -> bool:
    """Download one file unless it is there already; whether it had to be."""
    target = to / remote.place
    if target.is_file() and _fault(target, remote) is None:
        _note(to, remote, target)
        return False
    part = target.with_name(f".{target.name}.{remote.git[:12]}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    _download(api, remote, part, progress)
    fault = _fault(part, remote)
    if fault is not None:
        part.unlink()
        raise DataError(f"{target}: {fault}; it was thrown away", "Run it again")
    os.replace(part, target)
    for old in target.parent.glob(f".{target.name}.*.part"):
        old.unlink()
    _note(to, remote, target)
    return True


def _download(api: HfApi, remote: Remote, part: Path, progress: Progress) -> None:
    """Append what is missing to the part of a file that is there."""
    begun = part.stat().st_size if part.is_file() else 0
    if begun > remote.size:
        part.unlink()
        begun = 0
    kind, revision = remote.source.kind, remote.revision
    url = hf_hub_url(remote.source.repo, remote.path, repo_type=kind, revision=revision, endpoint=api.endpoint)
    headers = build_hf_headers(token=api.token)
    bar = _bar(lambda done: progress(f"fetch {remote.place} KiB", done // 1024, remote.size // 1024))
    if begun:
        log.info("%s: going on from %d of %d bytes", remote.place, begun, remote.size)
    with part.open("ab") as file:
        try:
            _get(url, file, begun, headers, remote.size, bar)
        except (errors.HfHubHTTPError, TRANSPORT, OSError) as error:
            _refuse(api, remote.source, error)


def _get(url: str, file: BinaryIO, begun: int, headers: dict[str, str], size: int, bar: Any) -> None:
    http_get(url, file, resume_size=begun, headers=headers, expected_size=size, tqdm_class=bar)


def _bar(report: Callable[[int], None]) -> type[Any]:
    """A class that the hub's client takes for its progress bar, and that only reports."""

    class Bar(AbstractContextManager["Bar"]):
        def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
            self.done = initial

        def __exit__(self, *_: object) -> None:
            return None

        def update(self, count: float | None = 1) -> None:
            self.done += int(count or 0)
            report(self.done)

        def close(self) -> None:
            return None

    return Bar


def _fault(path: Path, remote: Remote) -> str | None:
    """How a file differs from what the hub describes."""
    size = path.stat().st_size
    if size != remote.size:
        return f"has {size} bytes, not {remote.size}"
    digest = hashlib.sha256() if remote.sha256 else hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    same = digest.hexdigest() == (remote.sha256 or remote.git)
    return None if same else "does not match the checksum that the hub states"


def _note(to: Path, remote: Remote, path: Path) -> None:
    """Record a file that was verified."""
    record = read_record(to)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    entry = {"repo": remote.source.repo, "revision": remote.revision, "path": remote.path, "bytes": remote.size, "sha256": sha256}
    before = record.get(remote.place, {})
    if {key: before.get(key) for key in entry} != entry:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record[remote.place] = {**entry, "licence": remote.source.licence, "fetched": now}
        write_json(to / RECORD, {"files": dict(sorted(record.items()))})


def tables(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """What `fetch` did, as a table."""
    rows = [[place, state] for state in ("fetched", "kept") for place in result[state]]
    yield f"{result['folder']}: {len(result['fetched'])} files fetched, {len(result['kept'])} already there", ["file", ""], rows
