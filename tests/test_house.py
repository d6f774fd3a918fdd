"""The laws of the house. If one breaks, either the code has lost its shape, or the law should be changed on purpose."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from star import plugins
from star.recipe import find, load, shipped

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "star"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}

LAYERS = [
    {"", "errors", "records", "progress", "strictyaml"},
    {"types"},
    {"protocols", "actions"},
    {"settings", "plugins", "recipe", "artifacts", "provenance", "stage", "manifest"},
    {"endpoint", "post", "chat", "extensions"},
    {"tools", "stepping", "rewards", "metrics", "worlds", "policies", "algorithms"},
    {"rollout", "journal"},
    {"train"},
    {
        "pipeline",
        "launch",
        "dataset",
        "corpus",
        "synth",
        "draw",
        "sft",
        "rl",
        "eval",
        "report",
        "charts",
        "talks",
        "ablate",
        "score",
        "answers",
        "data",
        "fetch",
        "options",
        "console",
    },
    {"cli", "worker"},
    {"__main__"},
]
"""Imports go to an equal or an earlier layer only."""

APART = {"worlds", "policies", "algorithms"}
HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "openai", "pandas"}
TORCH_PLACES = re.compile(r"train/|policies/(hf|attention|vllm|vllm_server)\.py")
CLIENT = "star/chat.py"
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(module: str) -> str:
    """star.train.sft -> train; star -> the empty word."""
    return module.partition(".")[2].partition(".")[0]


def layer_of(room: str) -> int:
    found = [number for number, rooms in enumerate(LAYERS) if room in rooms]
    assert found, f"{room}: give this module a place in LAYERS"
    return found[0]


def imports(tree: ast.AST) -> Iterator[str]:
    """Full names of everything a module imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name lives"
            base = node.module or ""
            yield from (f"{base}.{alias.name}" if base == "star" else base for alias in node.names)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func), node.lineno


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, without those of the functions inside it."""
    own = (function.end_lineno or 0) - function.lineno + 1
    return own - sum((f.end_lineno or 0) - f.lineno + 1 for f in functions(function) if f in function.body)


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Deepest level of blocks inside a function; an elif is no level of its own."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        block = isinstance(child, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try)
        chained = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        deepest = max(deepest, nesting(child, depth + (block and not chained)))
    return deepest


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    here = room_of(module)
    for target in imports(TREES[path]):
        if target != "star" and not target.startswith("star."):
            continue
        there = room_of(target)
        assert layer_of(there) <= layer_of(here), f"{module} imports {target}, which lies above it"
        assert not (here != there and {here, there} <= APART), f"{module} imports {target}; these never meet"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_torch_lives_in_train_and_in_policies_of_models(path: Path) -> None:
    if not TORCH_PLACES.search(name_of(path)):
        found = {target.partition(".")[0] for target in imports(TREES[path])} & HEAVY
        assert found == ({"openai"} if name_of(path) == CLIENT else set())


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_stand_at_the_top(path: Path) -> None:
    """Laziness has one place, plugins.load, which command bodies go through."""
    lazy = [n.lineno for f in functions(TREES[path]) for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert lazy == []
    dynamic = [line for name, line in calls(TREES[path]) if name.endswith("import_module") or name == "__import__"]
    assert dynamic == [] or path.name == "plugins.py"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_are_small_and_named_for_what_they_hold(path: Path) -> None:
    assert path.stem not in BANNED_NAMES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    assert len(path.relative_to(PACKAGE).parts) <= 3
    hinted = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in TREES[path].body)
    assert not hinted or "from __future__ import annotations" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_are_small(path: Path) -> None:
    for function in functions(TREES[path]):
        where = f"{name_of(path)}:{function.lineno} {function.name}"
        assert length(function) <= 50, f"{where}: over 50 lines"
        assert nesting(function) <= 3, f"{where}: over 3 levels of nesting"
        taken = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        taken = [argument for argument in taken if argument.arg not in ("self", "cls")]
        assert len(taken) <= 7, f"{where}: over 7 parameters"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_global_state_no_code_from_data(path: Path) -> None:
    assert not any(isinstance(node, ast.Global) for node in ast.walk(TREES[path]))
    found = [name for name, _ in calls(TREES[path]) if name in ("eval", "exec", "compile", "__import__")]
    assert found == []
    assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & set(imports(TREES[path]))


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.name not in ("cli.py", "__main__.py", "worker.py")], ids=name_of
)
def test_the_library_never_prints_reads_argv_or_exits(path: Path) -> None:
    banned = {"print", "input", "exit", "quit", "sys.exit", "sys.stdout.write", "sys.stderr.write", "os._exit"}
    assert {name for name, _ in calls(TREES[path])} & banned == set()
    assert not any(ast.unparse(n) == "sys.argv" for n in ast.walk(TREES[path]) if isinstance(n, ast.Attribute))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_work_at_import(path: Path) -> None:
    """At the top of a module nothing loops, opens or waits."""
    for node in TREES[path].body:
        assert not isinstance(node, ast.For | ast.While | ast.With | ast.Try), f"{name_of(path)}:{node.lineno}"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=ROOT)


def loaded_by(code: str) -> set[str]:
    """Top-level packages in memory after some code in a fresh interpreter."""
    done = python("-c", f"{code}\nimport json, sys\nprint(json.dumps([m.partition('.')[0] for m in sys.modules]))")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_the_command_line_loads_nothing_heavy() -> None:
    assert loaded_by("import star.cli") & (HEAVY | {"rich", "jinja2", "numpy", "huggingface_hub", "sqlite3"}) == set()


def test_loading_a_recipe_loads_nothing_heavy() -> None:
    assert loaded_by("from star.recipe import load, shipped\n[load(p) for p in shipped().values()]") & HEAVY == set()


def test_the_client_of_servers_is_loaded_for_those_who_name_one() -> None:
    code = "import star.draw, star.score, star.synth, star.policies.openai\nfrom star.plugins import check\n"
    code += "check('policy', {'name': 'openai', 'model': 'm', 'url': 'http://localhost:1'})"
    assert loaded_by(code) & (HEAVY | {"tenacity"}) == set()


def test_help_is_quick() -> None:
    """Counted in modules, which are what it costs: 300 take half a second, and a clock would measure the machine."""
    code = "import sys\nfrom star.cli import main\nmain(['--help'])\nprint(len(sys.modules))"
    done = python("-c", code)
    assert done.returncode == 0 and "Usage" in done.stdout, done.stderr
    assert int(done.stdout.split()[-1]) < 350, "modules loaded by `star --help`"


def test_every_plugin_in_the_table_exists() -> None:
    for kind, table in plugins.TABLE.items():
        for name, target in table.items():
            module, _, attribute = target.partition(":")
            path = ROOT / (module.replace(".", "/") + ".py")
            assert path in TREES, f"{kind} {name}: there is no {path}"
            classes = {node.name for node in TREES[path].body if isinstance(node, ast.ClassDef)}
            assert attribute in classes, f"{kind} {name}: {module} has no class {attribute}"


def test_every_shipped_recipe_loads() -> None:
    assert {"demo", "paper-1.5b", "paper-3b", "paper-7b"} <= shipped().keys()
    for name in shipped():
        assert load(find(name)).name == name.rpartition("/")[2]


def targets() -> dict[str, list[str]]:
    """Targets of the Makefile and the lines of their bodies."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        head = re.match(r"([A-Za-z0-9_.%/-]+):(?!=)", line)
        if head:
            current = found.setdefault(head[1], [])
        elif line.startswith("\t"):
            current.append(line)
    return found


def test_makefile_bodies_are_one_line() -> None:
    for target, body in targets().items():
        assert len(body) <= 1 and not any(line.endswith("\\") for line in body), target


def documented() -> list[list[str]]:
    """Command lines in the shell blocks of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:sh|bash|console|shell)\n(.*?)```", text, re.DOTALL)
    lines = [line.partition(" #")[0].removeprefix("$ ").split() for block in blocks for line in block.splitlines()]
    return [words for words in lines if words[:1] in (["star"], ["make"])]


def test_readme_commands_exist() -> None:
    known = set(targets()) | {f"reproduce-{scale}" for scale in ("1.5b", "3b", "7b")}
    for words in documented():
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= known, words
            continue
        path = [word for word in words[1:3] if word.isalpha() and word.islower()]
        command = path if path[:1] == ["synth"] else path[:1]
        done = python("-m", "star", *command, "--help")
        assert done.returncode == 0, words
        for option in (word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)):
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", done.stdout), f"{' '.join(words)}: {option}"


def test_make_commands_exist() -> None:
    for body in targets().values():
        for command in re.findall(r"bin/star ([a-z]+)|\(BIN\)/star ([a-z]+)", " ".join(body)):
            name = "".join(command)
            assert python("-m", "star", name, "--help").returncode == 0, name
