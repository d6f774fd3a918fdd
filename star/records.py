"""Records in and out of JSON and JSONL files: exact on the way out, checked on the way in, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from star.errors import DataError

T = TypeVar("T")


@lru_cache(maxsize=64)
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(record: Any) -> str:
    """One line of JSON with a fixed key order, so that equal records have equal bytes."""
    return json.dumps(plain(record), ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def plain(record: Any) -> Any:
    """Dataclasses, tuples and paths as JSON values."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: plain(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, dict):
        return {str(key): plain(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [plain(value) for value in record]
    return str(record) if isinstance(record, Path) else record


def parse(kind: type[T], value: Any, where: str) -> T:
    """Check a decoded JSON value against a record type; raise DataError naming `where` and the first fault."""
    try:
        return _adapter(kind).validate_python(value)  # type: ignore[arg-type,no-any-return]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "row"
        raise DataError(f"{where}: {place}: {first['msg']}", f"A {kind.__name__} row is expected there") from None


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", "Check the path, or run the stage that writes it") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a directory, not a JSON file", "Name the file inside it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError(f"{path}:{line}: not JSON ({error})", "Restore or regenerate the file") from None


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, decoded value) of a JSONL file; a torn or foreign line raises DataError with its number."""
    if not path.is_file():
        raise DataError(f"{path}: no such file", "Check the path, or run the stage that writes it")
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                yield number, json.loads(raw.decode("utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
                fix = "Regenerate the file; it was probably cut off while it was written"
                raise DataError(f"{path}:{number}: not a JSON line ({error})", fix) from None


def read_jsonl(path: Path, kind: type[T]) -> list[T]:
    return [parse(kind, value, f"{path}:{number}") for number, value in read_lines(path)]


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> int:
    """Write all rows or none; return how many."""
    lines = [to_json(row) for row in rows]
    write_text(path, "".join(line + "\n" for line in lines))
    return len(lines)
