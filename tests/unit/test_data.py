"""The published data comes whole or not at all, and a store is replaced only by a better one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from star import cli, data
from star.errors import DataError
from star.worlds.travel import store
from star.worlds.travel.csv_tables import COLUMNS, FILES, STATES
from star.worlds.travel.database import Database
from star.worlds.travel.published import SOURCES, SPLITS
from star.worlds.travel.splits import FACTS, read_queries

Star = Callable[..., tuple[int, str, str]]
REVISION = "a" * 40
ROWS = {
    "flights": [f"F{n},100,09:00,11:00,2 hours 0 minutes,2022-03-01,Wichita,Salina,90.0" for n in range(2000)],
    "hotels": ["Loft,Private room,50.0,2.0,4.0,No pets,2,Wichita"],
    "restaurants": ["Café,Wichita,Tea,46,4.8"],
    "sights": ["Zoo,1.5,-2,Main St,5,http://x,Salina"],
    "distances": ['Wichita,Salina,1 hour,"1,044 km"'],
}
TRAIN = (
    "org,dest,days,visiting_city_number,date,people_number,local_constraint,budget,query,level,annotated_plan\n"
    "Salina,Wichita,3,1,\"['2022-03-16', '2022-03-17', '2022-03-18']\",1,"
    "\"{'house rule': None, 'cuisine': ['Italian'], 'room type': 'not shared room', 'transportation': None}\","
    "1700,Please plan a trip.,medium,[]\n"
)


def published() -> dict[str, bytes]:
    """Path inside the hub -> bytes of every file."""
    tables = {name: "\n".join([",".join(COLUMNS[table]), *ROWS[table], ""]) for table, (name, _) in FILES.items()}
    split = "days,query,level\n3,Please plan another.,easy\n"
    texts = {"train.csv": TRAIN, "validation.csv": TRAIN, "test.csv": split, STATES[0]: "Wichita\tKansas\nSalina\tKansas"}
    files: dict[str, bytes] = {}
    for source in (source for group in SOURCES.values() for source in group):
        for path in source.files:
            name = Path(path).name
            text = tables.get(name) or texts.get(name) or '{"query": "Go.", "days": 3}\n'
            files[f"{source.repo}/{path}"] = text.encode()
    return files


class Hub(ThreadingHTTPServer):
    """The little of the hub's API that a download needs; large files have a sha256, small ones the id of a git blob."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.cut: dict[str, int] = {}
        """Name of a file -> how many bytes come before the connection breaks; taken out after use."""
        self.status: int | None = None
        self.ranges: list[str | None] = []
        self.served: list[str] = []
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if "/osunlp/" in path or "/xxwu/" in path:
            self.server.tokens.add(self.headers.get("Authorization"))
        if self.server.status:
            self._send(self.server.status, b'{"error": "refused"}')
        elif found := re.fullmatch(r"/api/(?:datasets|spaces)/([^/]+/[^/]+)(?:/revision/.*)?", path):
            self._json({"id": found[1], "sha": REVISION, "siblings": [], "tags": []})
        elif found := re.fullmatch(rf"/(?:datasets|spaces)/([^/]+/[^/]+)/resolve/{REVISION}/(.+)", path):
            self._file(f"{found[1]}/{found[2]}")
        else:
            self._send(404, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        found = re.fullmatch(rf"/api/(?:datasets|spaces)/([^/]+/[^/]+)/paths-info/{REVISION}", self.path)
        if found is None or self.server.status:
            self._send(self.server.status or 404, b'{"error": "refused"}')
            return
        wanted = parse_qs(body)["paths"]
        self._json([self._entry(path, data) for path in wanted if (data := self.server.files.get(f"{found[1]}/{path}"))])

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": blob}
        if len(content) > 10_000:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 100}
        return entry

    def _file(self, name: str) -> None:
        content = self.server.files[name]
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        self.server.ranges.append(asked)
        self.server.served.append(Path(name).name)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        end = self.server.cut.pop(Path(name).name, len(content))
        with contextlib.suppress(OSError):
            self.wfile.write(content[start:end])
        self.close_connection = True

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(published())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def star(capsys: pytest.CaptureFixture[str]) -> Star:
    def star(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return star


def write(folder: Path, **changed: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for table, (name, _) in FILES.items():
        text = changed.get(table) or "\n".join([",".join(COLUMNS[table]), *ROWS[table], ""])
        (folder / name).write_text(text, encoding="utf-8")
    (folder / STATES[0]).write_text("Wichita\tKansas\nSalina\tKansas", encoding="utf-8")
    return folder


def test_fetch_build_and_info(star: Star, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    code, out, err = star("data", "fetch")
    assert code == 0, err
    folder = Path("data/travelplanner")
    assert "15 files fetched, 0 already there" in out
    assert (folder / "database" / STATES[0]).read_text() == "Wichita\tKansas\nSalina\tKansas"
    assert hub.tokens == {"Bearer hf_secret"}
    record = json.loads((folder / "files.json").read_text())["files"]
    assert len(record) == 15 and "hf_secret" not in json.dumps(record)
    for place, entry in record.items():
        assert entry["sha256"] == hashlib.sha256((folder / place).read_bytes()).hexdigest()
        assert entry["revision"] == REVISION and entry["repo"] and entry["licence"]

    served = len(hub.served)
    code, out, _ = star("data", "fetch", "--json")
    assert code == 0 and len(json.loads(out)["kept"]) == 15 and len(hub.served) == served, "nothing comes twice"

    code, out, err = star("data", "build", "--json")
    assert code == 0, err
    assert json.loads(out)["store"]["rows"]["flights"] == 2000
    code, out, err = star("data", "info", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert {state["state"] for state in found["files"].values()} == {"verified"}
    assert found["splits"]["train"] == {"queries": 1, "commonsense": 8, "hard": 3}
    assert found["splits"]["test"]["hard"] is None
    assert "not public" in star("data", "info")[1]
    assert Database.open(folder).flights_numbered("F7")[0].origin == "Wichita"


def test_one_part_of_the_data(star: Star, hub: Hub) -> None:
    code, out, _ = star("data", "fetch", "--only", "splits", "--to", "here", "--json")
    assert code == 0 and sorted(json.loads(out)["fetched"]) == ["splits/test.csv", "splits/train.csv", "splits/validation.csv"]
    assert sorted(p.name for p in Path("here/splits").iterdir()) == ["test.csv", "train.csv", "validation.csv"]


def test_a_cut_download_goes_on_at_once(star: Star, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    name = FILES["flights"][0]
    hub.cut[name] = 5000
    code, _, err = star("data", "fetch", "--only", "database", "--to", "here")
    assert code == 0, err
    assert hub.served.count(name) == 2 and any(asked and asked.startswith("bytes=5000-") for asked in hub.ranges)
    assert (Path("here/database") / name).read_bytes() == hub.files[f"xxwu/Agent-STAR-TravelDatabase/{name}"]


def test_an_interrupted_download_goes_on_in_the_next_process(star: Star, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import star.fetch as room

    name = FILES["flights"][0]
    real = room._get

    def dies(url: str, file: Any, *rest: Any) -> None:
        if name in url:
            file.write(hub.files[f"xxwu/Agent-STAR-TravelDatabase/{name}"][:7000])
            file.flush()
            raise KeyboardInterrupt
        real(url, file, *rest)

    monkeypatch.setattr(room, "_get", dies)
    assert star("data", "fetch", "--only", "database", "--to", "here")[0] == 130
    assert not (Path("here/database") / name).exists()
    code, _, err = star("data", "build", "--from", "here/database", "--to", "travel.sqlite")
    assert code == 1 and f"here/database/{name}: is downloaded in part only. Go on: star data fetch" in err
    monkeypatch.setattr(room, "_get", real)
    code, _, err = star("data", "fetch", "--only", "database", "--to", "here")
    assert code == 0, err
    assert any(asked and asked.startswith("bytes=7000-") for asked in hub.ranges)
    assert (Path("here/database") / name).read_bytes() == hub.files[f"xxwu/Agent-STAR-TravelDatabase/{name}"]
    assert not list(Path("here").rglob("*.part"))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "does not exist or is private (HTTP 401). Set HF_TOKEN, or check HF_ENDPOINT"),
        (403, "not allowed (HTTP 403)"),
        (404, "no such repository or file (HTTP 404)"),
        (418, "HTTP 418"),
    ],
)
def test_a_refusal_of_the_hub(star: Star, hub: Hub, status: int, message: str) -> None:
    hub.status = status
    code, out, err = star("data", "fetch", "--to", "here")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {hub.url}: xxwu/Agent-STAR-TravelDatabase: ") and err.count("\n") == 1, err
    assert message in err
    assert not Path("here").exists()


def test_no_connection(star: Star, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, _, err = star("data", "fetch", "--to", "here")
    assert code == 1 and "http://127.0.0.1:9: xxwu/Agent-STAR-TravelDatabase" in err.splitlines()[-1]
    assert "Check the network and HF_ENDPOINT" in err


def test_offline(star: Star, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = star("data", "fetch", "--to", "here", "--only", "splits")
    assert code == 2 and err == (
        "error: here/splits/train.csv: is not there, and HF_HUB_OFFLINE forbids to fetch it. "
        "Unset HF_HUB_OFFLINE, or copy the files there; data/README.md lists them\n"
    )
    assert hub.served == [] and hub.tokens == set()


def test_a_file_that_is_gone_and_one_that_is_not_as_stated(star: Star, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = hub.files.pop("osunlp/TravelPlanner/test.csv")
    code, _, err = star("data", "fetch", "--only", "splits", "--to", "here")
    assert code == 1 and "osunlp/TravelPlanner has no file test.csv" in err
    hub.files["osunlp/TravelPlanner/test.csv"] = gone
    entry = Handler._entry
    monkeypatch.setattr(Handler, "_entry", lambda self, path, content: {**entry(self, path, content), "oid": "0" * 40})
    code, _, err = star("data", "fetch", "--only", "splits", "--to", "here")
    assert code == 1 and "here/splits/train.csv: does not match the checksum that the hub states; it was thrown away" in err
    assert [path for path in Path("here").rglob("*") if path.is_file()] == []


def test_what_changed_on_the_hub_is_fetched_again(star: Star, hub: Hub) -> None:
    star("data", "fetch", "--only", "splits", "--to", "here")
    hub.files["osunlp/TravelPlanner/test.csv"] += b"3,One more.,easy\n"
    code, out, _ = star("data", "fetch", "--only", "splits", "--to", "here", "--json")
    assert code == 0 and json.loads(out)["fetched"] == ["splits/test.csv"]
    Path("here/splits/train.csv").write_text("other")
    code, out, _ = star("data", "info", "here", "--json")
    assert (code, out) == (1, "")
    Path("here/splits/train.csv").unlink()
    code, out, _ = star("data", "info", "here", "--json")
    assert json.loads(out)["files"]["splits/train.csv"] == {"state": "missing"}


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("flights", lambda text: text.replace("Price", "Cost"), "clean_Flights_2022.csv:1: no column 'Price'"),
        ("flights", lambda text: text[: len(text) - 30], "clean_Flights_2022.csv:2001: 6 cells where the header has 9"),
        ("flights", lambda text: text.replace("F7,100", "F7,cheap"), "clean_Flights_2022.csv:9: "),
        ("hotels", lambda text: text.replace(",2,Wichita", ",0,Wichita"), "clean_accommodations_2022.csv:2: "),
        ("restaurants", lambda text: "\x00" * 50, "clean_restaurant_2022.csv:1: "),
    ],
)
def test_a_broken_table_leaves_the_old_store(star: Star, table: str, change: Callable[[str], str], message: str) -> None:
    folder = write(Path("csv"))
    assert star("data", "build", "--from", folder, "--to", "travel.sqlite")[0] == 0
    before = Path("travel.sqlite").read_bytes()
    path = folder / FILES[table][0]
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    code, out, err = star("data", "build", "--from", folder, "--to", "travel.sqlite")
    assert (code, out) == (1, "") and message in err and err.count("\n") == 1, err
    assert Path("travel.sqlite").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["csv", "travel.sqlite"]


def test_a_table_in_another_encoding(star: Star) -> None:
    folder = write(Path("csv"))
    path = folder / FILES["restaurants"][0]
    path.write_bytes(path.read_bytes().decode().encode("latin-1"))
    code, _, err = star("data", "build", "--from", folder, "--to", "travel.sqlite")
    assert code == 1 and "clean_restaurant_2022.csv:2: not UTF-8. Save the file in UTF-8" in err
    assert not Path("travel.sqlite").exists()


def test_a_table_that_ends_early_at_a_line(star: Star, hub: Hub) -> None:
    """Cut between two lines it is a valid table, so that only the record of what was fetched can tell."""
    star("data", "fetch", "--only", "database", "--to", "here")
    path = Path("here/database") / FILES["flights"][0]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1000]))
    code, _, err = star("data", "build", "--from", "here/database", "--to", "travel.sqlite")
    assert code == 1 and "clean_Flights_2022.csv:1000: the file is not the one that was fetched" in err
    assert star("data", "fetch", "--only", "database", "--to", "here")[0] == 0
    assert star("data", "build", "--from", "here/database", "--to", "travel.sqlite")[0] == 0


def test_a_database_without_states(star: Star) -> None:
    folder = write(Path("csv"))
    (folder / STATES[0]).unlink()
    code, _, err = star("data", "build", "--from", folder)
    assert code == 1 and "citySet_with_states.txt: no such file" in err


def test_progress_of_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "STEP", 500)
    monkeypatch.setattr("star.progress.time.monotonic", iter(range(0, 10_000, 3)).__next__)
    heard: list[tuple[str, int, int]] = []
    data.build(write(Path("csv")), Path("travel.sqlite"), lambda label, done, total, note="": heard.append((label, done, total)))
    assert heard == [("flights", done, 2000) for done in (500, 1000, 1500, 2000, 2000)]
    assert store.Store(Path("travel.sqlite")).counts() == {
        "flights": 2000, "hotels": 1, "restaurants": 1, "sights": 1, "distances": 1, "states": 2
    }  # fmt: skip


def test_info_of_a_store_and_of_plain_tables(star: Star) -> None:
    folder = write(Path("csv"))
    star("data", "build", "--from", folder, "--to", "travel.sqlite")
    code, out, _ = star("data", "info", "travel.sqlite")
    assert code == 0 and "2,000" in out
    code, out, _ = star("data", "info", "csv", "--json")
    assert json.loads(out)["tables"]["flights"]["state"] == "there, not fetched by star"
    Path("travel.sqlite").write_text("SQLite format 3\0 and then nothing")
    assert star("data", "info", "travel.sqlite")[0] == 1


def test_the_gold_facts_are_data() -> None:
    Path("train.csv").write_text(TRAIN)
    query = read_queries(Path("train.csv"))[0]
    assert (query.id, query.difficulty, query.days, query.split) == ("1", "medium", 3, "train")
    assert query.facts["date"] == ["2022-03-16", "2022-03-17", "2022-03-18"]
    assert query.facts["local_constraint"]["cuisine"] == ["Italian"]
    assert (query.facts["budget"], query.facts["people_number"], query.facts["visiting_city_number"]) == (1700, 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{'house rule'", "{'house rule"), "train.csv:2: local_constraint: "),
        (("{'house rule': None", "{'house rule': __import__('os').getcwd()"), "is not a Python literal. It reads like"),
        (("['2022-03-16', '2022-03-17', '2022-03-18']", "'2022-03-16'"), "train.csv:2: date: \"'2022-03-16'\" is no list"),
        (("1700", "plenty"), "train.csv:2: budget: 'plenty' is not a number"),
        ((",medium", ""), "train.csv:2: 10 cells where the header has 11"),
        (("query", "wording"), "train.csv:2: no query"),
    ],
)
def test_a_broken_split_is_named_with_its_line(change: tuple[str, str], message: str) -> None:
    Path("train.csv").write_text(TRAIN.replace(*change))
    with pytest.raises(DataError) as caught:
        read_queries(Path("train.csv"))
    assert message in str(caught.value)


def as_published(path: Path) -> str:
    """A split of typed rows as the hub has it: a CSV file whose dates and constraints are Python literals."""
    columns = (*FACTS, "query")
    lines = [",".join([*columns, "reference_information"])]
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        cells = [*(str(row[name]) for name in columns), "x" * 200_000]
        lines.append(",".join('"' + cell.replace('"', '""') + '"' for cell in cells))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("split", "file"), [("train", "train.jsonl"), ("validation", "validation_queries.jsonl")])
def test_denominators_of_the_official_splits(shared: Path, split: str, file: str) -> None:
    source = shared / "travelplanner" / file
    Path(f"{split}.csv").write_text(as_published(source), encoding="utf-8")
    queries, common, hard = SPLITS[split]
    for path in (source, Path(f"{split}.csv")):
        assert data.info(path)["queries"] == {"queries": queries, "commonsense": common, "hard": hard}
    fields = ("org", "dest", "date", "local_constraint", "budget", "level")
    csv, typed = read_queries(Path(f"{split}.csv")), read_queries(source)
    assert [[q.facts[name] for name in fields] for q in csv] == [[q.facts[name] for name in fields] for q in typed]
    assert SPLITS["test"] == (1000, 8000, 2290)
