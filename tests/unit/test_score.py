"""`star score` takes whatever holds plans, counts what the queries say, and writes a verdict a plan or nothing at all."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from star import answers, cli, pipeline
from star.chat import Client
from star.endpoint import Endpoint
from star.errors import DataError, StarError
from star.manifest import Run, Work
from star.progress import Patient
from star.records import write_json, write_jsonl
from star.settings import Recipe
from star.types import MODES, Query
from star.worlds.travel import store
from star.worlds.travel.database import Database
from star.worlds.travel.formatter import Formatter
from star.worlds.travel.plan import typed
from star.worlds.travel.submission import faults, rows
from star.worlds.travel.world import TravelWorld

Star = Callable[..., tuple[int, str, str]]
Facts = dict[str, Any]
Plan = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Database) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tables = database._tables
    assert tables is not None
    store.write(tables, tables.flights, tmp_path / "travel.sqlite")
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def star(capsys: pytest.CaptureFixture[str]) -> Star:
    def star(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return star


@pytest.fixture
def asked(facts: Facts, long_facts: Facts) -> list[Query]:
    return [
        Query("val-1", "Three days in Wichita.", facts, "hard", 3, "validation"),
        Query("val-2", "Five days in Kansas.", {**long_facts, "level": "easy"}, "easy", 5, "validation"),
    ]


def verdicts(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def judged(star: Star, *words: object) -> dict[str, Any]:
    code, out, err = star("score", *words, "--database", "travel.sqlite", "--out", "out.jsonl", "--json")
    assert code == 0, err
    result: dict[str, Any] = json.loads(out)
    return result


def test_plans_with_their_facts(star: Star, facts: Facts, plan: Plan) -> None:
    bad = copy.deepcopy(plan)
    bad[1]["dinner"] = "Nowhere, Wichita"
    write_jsonl(Path("plans.jsonl"), [{"id": "a", "query": facts, "plan": plan}, {"query": facts, "plan": bad}])
    result = judged(star, "plans.jsonl", "--mode", "all")
    assert [report["mode"] for report in result["reports"]] == list(MODES)
    for report in result["reports"]:
        assert report["n"] == 2
        passed = {name: (rate["passed"], rate["n"]) for name, rate in report["metrics"].items()}
        assert passed["commonsense_micro"] == (15, 16)
        assert passed["hard_micro"] == (5, 10), "hard constraints of a plan outside the sandbox earn nothing"
        assert passed["success"] == (1, 2)
    lines = verdicts()
    assert [(line["id"], line["mode"], line["success"]) for line in lines] == [
        (name, mode, name == "a") for mode in MODES for name in ("a", 2)
    ]
    keys = ["id", "mode", "commonsense", "hard", "hard_counts", "total_cost", "success", "reasons"]
    assert all(list(line) == keys for line in lines)
    assert lines[1]["hard_counts"] is False
    assert lines[1]["reasons"]["is_valid_information_in_sandbox"].startswith("day 2 dinner 'Nowhere, Wichita'")
    assert lines[1]["commonsense"]["is_valid_information_in_sandbox"] is False


def test_the_table_has_levels_and_days(star: Star, asked: list[Query], plan: Plan, long_plan: Plan) -> None:
    both = enumerate(zip(asked, (plan, long_plan), strict=True))
    inline = [{**query.facts, "idx": n, "query": query.text, "plan": days} for n, (query, days) in both]
    write_jsonl(Path("plans.jsonl"), inline)
    code, out, _ = star("score", "plans.jsonl", "--database", "travel.sqlite")
    assert code == 0
    head, sizes, delivery, *_, success = [line.split() for line in out.splitlines()[1:]]
    assert out.startswith("plans, strict\n")
    assert head[5:] == ["easy", "hard", "3", "days", "5", "days"]
    assert sizes == ["n", "2", "1", "1", "1", "1"]
    assert delivery[:3] == ["delivery", "100.0", "2/2"]
    assert success[:3] == ["success", "100.0", "2/2"]


@pytest.mark.parametrize("shape", ["star", "facts", "csv"])
def test_a_query_without_an_answer_counts(star: Star, shape: str, asked: list[Query], plan: Plan) -> None:
    path = Path("queries.csv" if shape == "csv" else "queries.jsonl")
    if shape == "star":
        write_jsonl(path, asked)
    elif shape == "facts":
        write_jsonl(path, [{"idx": q.id, "query": q.text, **q.facts} for q in asked])
    else:
        path.write_text(published(asked), encoding="utf-8")
    name = "1" if shape == "csv" else "val-1"
    write_jsonl(Path("answers.jsonl"), [{"query_id": name, "answer": f"My plan:\n{json.dumps(plan)}"}])
    report = judged(star, "answers.jsonl", "--queries", path, "--mode", "official")["reports"][0]
    counted = {key: (rate["passed"], rate["n"]) for key, rate in report["metrics"].items()}
    assert counted["success"] == counted["delivery"] == (1, 2)
    assert (counted["commonsense_micro"], counted["hard_micro"]) == ((8, 16), (5, 10))
    assert verdicts()[0]["id"] == name


def published(queries: list[Query]) -> str:
    """Queries as the published CSV has them."""
    columns = ["org", "dest", "days", "visiting_city_number", "date", "people_number", "local_constraint", "budget", "level"]
    lines = [",".join([*columns, "query"])]
    for query in queries:
        cells = [*(str(query.facts[name]) for name in columns), query.text]
        lines.append(",".join('"' + cell.replace('"', '""') + '"' for cell in cells))
    return "\n".join(lines) + "\n"


def test_a_submission_is_matched_by_the_wording(star: Star, asked: list[Query], plan: Plan) -> None:
    write_jsonl(Path("queries.jsonl"), asked)
    lines = [{"idx": 1, "query": asked[1].text, "plan": None}, {"idx": 2, "query": asked[0].text, "plan": plan}]
    write_jsonl(Path("submission.jsonl"), lines)
    report = judged(star, "submission.jsonl", "--queries", "queries.jsonl")["reports"][0]
    assert report["by_days"]["3"]["success"]["passed"] == 1
    assert report["by_days"]["5"]["delivery"]["passed"] == 0
    assert [(line["id"], line["success"]) for line in verdicts()] == [(1, False), (2, True)]


def finished_run(asked: list[Query], plan: Plan) -> Run:
    """A run whose validation was played in two passes."""
    recipe = Recipe(name="demo", world={"name": "travel", "database": str(Path("travel.sqlite").absolute())})
    run = Run.open(Path("runs/demo"), recipe)

    def queries(work: Work) -> None:
        write_jsonl(work.make("queries-validation", "validation.jsonl"), asked)

    run.perform(pipeline.job(recipe, "queries", ["star"]), queries)
    rows = [
        {
            "pass": name,
            "query_id": query.id,
            "trajectory_id": f"{name}/{query.id}",
            "answer": answer,
            "plan": None,
            "stop": "answer",
        }
        for name in ("greedy", "sampled")
        for query, answer in ((asked[0], json.dumps(plan) if name == "greedy" else "no"), (asked[1], None))
    ]

    def predictions(work: Work) -> None:
        write_jsonl(work.make("predictions", "predictions.jsonl"), rows)

    stage = pipeline.Stage("eval-base", "", ("eval",), {"queries-validation": "queries"}, ("predictions",))
    run.perform(pipeline.job(recipe, stage, ["star"]), predictions)
    return run


@pytest.mark.parametrize("source", ["runs/demo", "runs/demo/eval-base/predictions.jsonl"])
def test_a_finished_run_is_scored_again(star: Star, source: str, asked: list[Query], plan: Plan) -> None:
    run = finished_run(asked, plan)
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    code, out, err = star("score", source, "--json", "--out", "out.jsonl")
    assert code == 0, err
    reports = json.loads(out)["reports"]
    assert [report["run"].split()[-1] for report in reports] == ["greedy", "sampled"]
    assert [report["metrics"]["success"]["passed"] for report in reports] == [1, 0]
    assert all(report["n"] == 2 and report["split"] == "validation" for report in reports)
    assert [line["id"] for line in verdicts()] == ["greedy/val-1", "greedy/val-2", "sampled/val-1", "sampled/val-2"]
    assert before == {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}, "a run is only read"


GOOD = '{"query": {"days": 3}, "plan": []}\n'


@pytest.mark.parametrize(
    ("text", "words", "code", "message"),
    [
        (GOOD + '{"query": {"days": 3}, "pl', [], 1, "plans.jsonl:2: not a JSON line"),
        (GOOD + '{"colour": "red"}\n', [], 1, "plans.jsonl:2: not a row of an answer (it has colour). A row has query"),
        (GOOD + "[1, 2]\n", [], 1, "plans.jsonl:2: not a row of an answer"),
        (GOOD + "\xff\n", [], 1, "plans.jsonl:2: not a JSON line"),
        ("", [], 1, "plans.jsonl:1: holds no answer"),
        ('{"query_id": "q1", "answer": "x"}\n', [], 1, "plans.jsonl:1: it answers a query that is not stated here"),
        ('{"idx": 1, "query": "Hi", "plan": []}\n', [], 1, "Name the file of the queries with --queries"),
        ('{"query_id": "q9", "answer": "x"}\n', ["--queries", "q.jsonl"], 1, "plans.jsonl:1: it answers 'q9', which"),
        (GOOD, ["--queries", "q.jsonl"], 2, "--queries: has no effect"),
        (GOOD, ["--queries", "torn.jsonl"], 1, "torn.jsonl:1: no query"),
        (GOOD, ["--mode", "lenient"], 2, "--mode lenient: unknown judge mode"),
        (GOOD, ["--formatter-url", "http://127.0.0.1:9"], 2, "one has no effect without the other"),
        (GOOD, ["--formatter-url", "ftp://x", "--formatter-model", "m"], 2, "ftp://x: is no address of a server"),
        (GOOD, ["--set", "seed=2"], 2, "--set: has no effect without --recipe"),
        (GOOD, ["--database", "nowhere"], 1, "nowhere: no such file or folder"),
        (GOOD, ["--recipe", "demoo"], 2, "demoo: no such recipe"),
    ],
)
def test_a_refusal_leaves_nothing(star: Star, text: str, words: list[str], code: int, message: str) -> None:
    Path("plans.jsonl").write_bytes(text.encode("latin-1"))
    write_jsonl(Path("q.jsonl"), [Query("q1", "text", {"org": "a", "local_constraint": {}}, "easy", 3, "dev")])
    Path("torn.jsonl").write_text('{"org": "a"}\n')
    words = words if "--database" in words else ["--database", "travel.sqlite", *words]
    got, out, err = star("score", "plans.jsonl", "--out", "out.jsonl", *words)
    assert (got, out) == (code, ""), err
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err, err
    assert not Path("out.jsonl").exists()


def test_without_a_database_it_says_how_to_get_one(star: Star) -> None:
    Path("plans.jsonl").write_text(GOOD)
    code, _, err = star("score", "plans.jsonl")
    assert code == 2 and "star data fetch, then star data build" in err
    Path("data/travelplanner").mkdir(parents=True)
    Path("travel.sqlite").rename("data/travelplanner/travel.sqlite")
    assert star("score", "plans.jsonl")[0] == 0
    assert star("score", "plans.jsonl", "--database", "data/travelplanner")[0] == 0


def test_a_run_without_evaluation(star: Star) -> None:
    Run.open(Path("runs/x"), Recipe(name="x")).directory.mkdir(parents=True)
    write_json(Path("runs/x/recipe.json"), Recipe(name="x"))
    code, _, err = star("score", "runs/x")
    assert code == 1 and "no evaluation is finished. Run: star eval --run runs/x" in err
    assert star("score", "runs")[0] == 1


def test_verdicts_of_the_reference(star: Star, shared: Path, tmp_path: Path) -> None:
    """What the command writes is, cell by cell, what both published evaluators say."""
    source = shared / "parity" / "plans.jsonl"
    words = ("score", source, "--mode", "all", "--database", shared / "travelplanner", "--out", "out.jsonl", "--json")
    code, out, err = star(*words)
    assert code == 0, err
    assert [report["n"] for report in json.loads(out)["reports"]] == [1478] * 3
    recorded = {row["id"]: row for row in map(json.loads, source.read_text(encoding="utf-8").splitlines())}
    compared = 0
    for line in verdicts():
        reference = recorded[line["id"]].get(line["mode"].replace("-", "_"))
        if reference is None or reference["commonsense"] is None:
            continue
        assert line["success"] is bool(reference["success"]) and line["total_cost"] == reference["total_cost"]
        for kind in ("commonsense", "hard"):
            cells = {name: cell for name, cell in reference[kind].items() if cell in (True, False)}
            assert {name: line[kind][name] for name in cells} == cells
            compared += len(cells)
    assert compared > 25_000


def test_a_split_without_public_facts_is_for_the_leaderboard(star: Star, asked: list[Query], plan: Plan) -> None:
    Path("test.csv").write_text("days,query,level\n3,Three days in Wichita.,hard\n5,Five days in Kansas.,easy\n")
    write_jsonl(Path("answers.jsonl"), [{"query_id": "1", "answer": json.dumps(plan[:2])}])
    code, out, err = star("score", "answers.jsonl", "--queries", "test.csv", "--database", "travel.sqlite")
    assert (code, out) == (1, "") and "only the leaderboard can. Write the file for it: star data export" in err
    code, out, err = star("data", "export", "answers.jsonl", "--queries", "test.csv", "--to", "hand-in.jsonl")
    assert code == 0, err
    assert out.startswith("hand-in.jsonl: 1 plans for 2 queries") and "only the leaderboard can score" in out
    lines = verdicts("hand-in.jsonl")
    assert [(line["idx"], line["query"], len(line["plan"])) for line in lines] == [(1, asked[0].text, 2), (2, asked[1].text, 0)]
    assert lines[0]["plan"][1] == plan[1]
    code, _, err = star("score", "hand-in.jsonl", "--queries", "test.csv", "--database", "travel.sqlite")
    assert code == 1 and "The file has the right format" in err
    write_jsonl(Path("hand-in.jsonl"), reversed(lines))
    code, _, err = star("score", "hand-in.jsonl", "--queries", "test.csv", "--database", "travel.sqlite")
    assert code == 1 and "would refuse line 1: is not about query 1" in err


def test_the_format_of_a_submission(asked: list[Query], plan: Plan) -> None:
    loose = copy.deepcopy(plan)
    loose[1]["attraction"] = "Garden of Wichita, Wichita; Tower of Wichita, Wichita"
    lines = list(rows(asked, {"val-1": json.dumps(loose)}))
    assert lines[0]["plan"][1]["attraction"].endswith("Tower of Wichita, Wichita;"), "else the official judge drops the last"
    assert lines[0]["plan"][2]["attraction"] == "-"
    assert not list(faults(list(enumerate(lines, 1)), asked))
    day = lines[0]["plan"][0]
    for broken, message in (
        ({"idx": 1, "query": asked[0].text}, "has the fields idx, query and plan"),
        ({**lines[0], "plan": "none"}, "plan is not a list of days"),
        ({**lines[0], "plan": [[]]}, "day 1 is not a record"),
        ({**lines[0], "plan": [day, {k: v for k, v in day.items() if k != "lunch"}]}, "day 2 lacks lunch"),
        ({**lines[0], "plan": [{**day, "dinner": None}]}, "day 1 dinner is not text"),
    ):
        assert f"1: {message}" == next(faults([(1, broken), (2, lines[1])], asked)).replace("a line ", "")
    assert "1 lines for a split of 2" in next(faults([(1, lines[0])], asked))


def test_synthesised_queries_with_plans(star: Star) -> None:
    """Rows of a sampled query file, with a plan put in, are scored as they are."""
    world = TravelWorld()
    queries = world.queries("validation", 3, 0)
    write_jsonl(Path("plans.jsonl"), [{**json.loads(json.dumps(vars_of(q))), "plan": None} for q in queries])
    code, out, err = star("score", "plans.jsonl", "--recipe", "demo", "--json")
    assert code == 0, err
    assert json.loads(out)["reports"][0]["metrics"]["delivery"] == {"value": 0.0, "passed": 0, "n": 3, **intervals(out)}


def vars_of(query: Query) -> dict[str, Any]:
    return {name: getattr(query, name) for name in Query.__slots__}


def intervals(out: str) -> dict[str, float]:
    rate = json.loads(out)["reports"][0]["metrics"]["delivery"]
    return {"low": rate["low"], "high": rate["high"]}


def test_only_work_that_takes_long_is_heard() -> None:
    heard: list[tuple[str, int, int]] = []

    def listen(label: str, done: int, total: int, note: str = "") -> None:
        heard.append((label, done, total))

    quick, slow = Patient(listen, seconds=60.0), Patient(listen, seconds=0.0)
    for done in range(3):
        quick("work", done, 2)
    assert heard == []
    slow("work", 1, 2)
    assert heard == [("work", 1, 2)]


class Server(ThreadingHTTPServer):
    """A chat server whose replies are scripted: a status, or the text of a completion."""

    def __init__(self, replies: list[int | str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.seen = replies, list[dict[str, Any]]()
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        reply = self.server.replies.pop(0) if len(self.server.replies) > 1 else self.server.replies[0]
        data = json.dumps({"choices": [{"message": {"content": reply}}], "error": {"message": "not today"}}).encode()
        if reply == "torn":
            data = b'{"choices": ['
        if reply == "slow":
            threading.Event().wait(1.0)
        self.send_response(reply if isinstance(reply, int) else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[int | str]], Server]]:
    servers: list[Server] = []
    rest = asyncio.sleep
    monkeypatch.setattr("star.chat.asyncio.sleep", lambda seconds: rest(0))
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def start(replies: list[int | str]) -> Server:
        servers.append(Server(replies))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_formatter_puts_words_into_a_plan(star: Star, serve: Any, monkeypatch: Any, facts: Facts, plan: Plan) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server = serve([503, json.dumps(plan)])
    words = "We fly out on the first day, and it will be grand."
    write_jsonl(Path("plans.jsonl"), [{"query": facts, "plan": p} for p in (words, json.dumps(plan), plan, None, words)])
    options = ("--formatter-url", server.url, "--formatter-model", "small")
    result = judged(star, "plans.jsonl", *options)
    assert result["formatter"] == "small"
    assert [line["success"] for line in verdicts()] == [True, True, True, False, True]
    assert [line.get("formatter") for line in verdicts()] == ["small", None, None, None, "small"], "typed plans are left alone"
    assert len(server.seen) == 2, "one busy reply, one answer for both equal texts"
    assert server.seen[0]["messages"][1] == {"role": "user", "content": words}
    assert "5000" not in json.dumps(server.seen), "the facts stay hidden"
    assert server.keys[0] == "Bearer secret"
    judged(star, "plans.jsonl", *options)
    assert len(server.seen) == 2, "the second time it comes from the disk"
    judged(star, "plans.jsonl", "--formatter-url", server.url, "--formatter-model", "large")
    assert len(server.seen) == 3, "another model is asked anew"
    assert not any("secret" in path.read_text() for path in Path("cache").rglob("*.json"))


@pytest.mark.parametrize(
    ("reply", "tries", "message"),
    [
        (401, 1, "no reply of small (HTTP 401 not today)"),
        (503, 4, "no reply of small (4 tries: HTTP 503 not today)"),
        ("torn", 4, "what it answers is no chat completion"),
    ],
)
def test_a_formatter_that_fails(star: Star, serve: Any, facts: Facts, reply: int | str, tries: int, message: str) -> None:
    server = serve([reply])
    write_jsonl(Path("plans.jsonl"), [{"query": facts, "plan": "some words"}])
    words = ("--database", "travel.sqlite", "--out", "out.jsonl", "--formatter-url", server.url, "--formatter-model", "small")
    code, out, err = star("score", "plans.jsonl", *words)
    assert (code, out) == (1, "") and message in err and len(server.seen) == tries
    assert not Path("out.jsonl").exists()


def test_a_formatter_that_hangs_or_is_not_there(serve: Any) -> None:
    def ask(url: str, **settings: Any) -> str:
        return Formatter(Client(Endpoint(url=url, model="m", **settings))).plan("text")

    with pytest.raises(StarError, match="timed out"):
        ask(serve(["slow"]).url, call_seconds=0.2, tries=1)
    with pytest.raises(StarError, match="no reply of m .*Connect call failed"):
        ask("http://127.0.0.1:9/v1", tries=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"current_city": "A"}]', True),
        ('Here: {"plan": [{"lunch": "x"}]} done', True),
        ("[{'current_city': 'A'}]", True),
        (json.dumps('[{"current_city": "A"}]'), True),
        ("Day 1:\nLunch: Diner, A", False),
        ("", False),
        ("[" * 5000, False),
    ],
)
def test_typed(text: str, expected: bool) -> None:
    assert typed(text) is expected


def test_two_queries_with_one_id() -> None:
    write_jsonl(Path("queries.jsonl"), [{"idx": 1, "query": "a"}, {"idx": 1, "query": "b"}])
    Path("x.jsonl").write_text('{"query_id": "1", "answer": null}\n')
    with pytest.raises(DataError, match="two queries have the id '1'"):
        answers.read(Path("x.jsonl"), Path("queries.jsonl"))
