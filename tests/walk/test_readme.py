"""Every command that README.md prints works. If one breaks, the first thing a newcomer types fails.

The star commands run for real, in order, in an empty directory whose recipe `demo` is a minute version of the shipped one. The
make targets set up an environment of their own, so only their bodies are resolved here; what they call is run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.partition("#")[0].strip()
]
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def minute_recipe() -> str:
    """The demo with everything made small."""
    recipe = yaml.safe_load((ROOT / "pipelines/demo.yaml").read_text(encoding="utf-8"))
    recipe["synth"] = {"train": 24, "rl": 8, "dev": 2, "validation": 4}
    recipe["sft"] |= {"steps": 4, "tiny": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 32}}
    limits = {"turns": 3, "turn_tokens": 24, "context": 700}
    recipe["rl"] |= {"group": 4, "queries": 2, "steps": 1, "micro_batch": 4, "eval_steps": 1, "save_steps": 1, "limits": limits}
    recipe["eval"] |= {"limits": limits}
    return yaml.safe_dump(recipe)


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    words = [sys.executable, "-m", "star", *words[1:]] if words[0] == "star" else words
    return subprocess.run(words, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)


def test_only_known_kinds_of_commands_are_printed() -> None:
    assert SHELL
    assert {shlex.split(line)[0] for line in SHELL} == {"make", "star"}


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("make ")])
def test_make_targets_resolve(line: str) -> None:
    target = line.split()[1]
    printed = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    assert re.search(r"\bstar run (demo|paper-1\.5b)\b|\bpytest\b", printed.stdout)


@pytest.mark.walk
def test_star_commands_run(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text(minute_recipe(), encoding="utf-8")
    for line in SHELL:
        if line.startswith("star "):
            done = run(line, tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr[-2000:]}"
    assert (tmp_path / "runs/demo/report/report.html").stat().st_size > 10_000


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
def test_python_examples_run(block: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
