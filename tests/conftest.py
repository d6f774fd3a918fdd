"""A hand-made travel world of six cities, a query of each length with a plan that passes, and where shared data is."""

from __future__ import annotations

import copy
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from star.worlds.travel.database import Database
from star.worlds.travel.tables import Distance, Flight, Hotel, Restaurant, Sight, Tables

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded; as the command line does
os.environ.setdefault("TRACKIO_DIR", str(Path(tempfile.gettempdir()) / "star-trackio"))  # before trl loads trackio


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from a run that does not ask for them: what most tests say holds of a CPU's arithmetic, and of one process."""
    if not re.search(r"(?<!not )\b(gpu|vllm|deepspeed)\b", config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


STATES = {
    "Springfield": "Ohio",
    "Wichita": "Kansas",
    "Wichita Falls": "Kansas",
    "Salina": "Kansas",
    "Topeka": "Kansas",
    "Boulder": "Colorado",
}
CUISINES = (
    "Mexican, Cafe",
    "Indian",
    "Chinese, Desserts",
    "French",
    "American",
    "Italian",
    "Mediterranean, Tea",
    "BBQ",
)
DATES = tuple(f"2022-03-{day:02d}" for day in range(1, 8))
SHARED = Path(__file__).resolve().parents[2] / "shared"


def _flights() -> tuple[Flight, ...]:
    routes = [(a, b) for a in STATES for b in STATES if a != b]
    return tuple(
        Flight(
            number=f"F1{index:04d}{day}0",
            price=100.0 + day,
            departure="09:00",
            arrival="11:00",
            elapsed="2 hours 0 minutes",
            date=date,
            origin=origin,
            destination=destination,
            distance=600.0,
        )
        for index, (origin, destination) in enumerate(routes)
        for day, date in enumerate(DATES, 1)
    )


def _hotels(city: str) -> tuple[Hotel, ...]:
    return (
        Hotel("Quiet Loft", "Entire home/apt", 90.0, 1.0, 4.0, "No parties", 2, city),
        Hotel("Quiet Loft Annex", "Entire home/apt", 80.0, 6.0, 4.0, "No parties", 2, city),
        Hotel("Garden Room", "Private room", 50.0, 2.0, 3.0, "No smoking & No pets", 1, city),
        Hotel("Bunk House", "Shared room", 20.0, 1.0, 2.0, "No visitors & No children under 10", 1, city),
        Hotel("Twin Name", "Private room", 60.0, 1.0, 2.0, "No pets", 1, city),
        Hotel("Twin Name", "Private room", 60.0, 4.0, 2.0, "No pets", 1, city),
    )


def _distance(origin: str, destination: str) -> Distance:
    if "Boulder" in (origin, destination):
        return Distance(origin, destination, "1 day 2 hours", "2,900 km")
    return Distance(origin, destination, "5 hours 10 mins", "1,040 km")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"no reference data at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def database() -> Database:
    roads = tuple(_distance(a, b) for a in STATES for b in STATES if a != b and "Topeka" not in (a, b))
    names = [f"Diner {n}" for n in range(1, 8)] + ["Soup, Salad & Co."]
    return Database(
        Tables(
            flights=_flights(),
            hotels=tuple(hotel for city in STATES for hotel in _hotels(city)),
            restaurants=tuple(
                Restaurant(name, city, cuisines, 10.0, 4.0)
                for city in STATES
                for name, cuisines in zip(names, CUISINES, strict=True)
            ),
            sights=tuple(
                Sight(f"{kind} of {city}", 1.0, 2.0, "1 Main St", "555", "https://example.org", city)
                for city in STATES
                for kind in ("Museum", "Garden", "Tower", "Zoo")
            ),
            distances=roads,
            states=STATES,
        )
    )


def flight(database: Database, origin: str, destination: str, day: int) -> str:
    row = database.flights(origin, destination, DATES[day - 1])[0]
    return f"Flight Number: {row.number}, from {origin} to {destination}, Departure Time: 09:00, Arrival Time: 11:00"


def _travel(number: int, origin: str, destination: str, transport: str, last: bool) -> dict[str, Any]:
    return {
        "days": number,
        "current_city": f"from {origin} to {destination}",
        "transportation": transport,
        "breakfast": "-" if number == 1 else f"Diner 4, {origin}",
        "attraction": f"Museum of {destination}, {destination};" if not last else "-",
        "lunch": "-",
        "dinner": f"Diner 1, {destination}" if not last else "-",
        "accommodation": "-" if last else f"Quiet Loft, {destination}",
    }


def _stay(number: int, city: str) -> dict[str, Any]:
    return {
        "days": number,
        "current_city": city,
        "transportation": "-",
        "breakfast": f"Diner 2, {city}",
        "attraction": f"Garden of {city}, {city};Tower of {city}, {city};",
        "lunch": f"Diner 3, {city}",
        "dinner": f"Soup, Salad & Co., {city}",
        "accommodation": f"Quiet Loft, {city}",
    }


def _facts(days: int, dest: str) -> dict[str, Any]:
    return {
        "org": "Springfield",
        "dest": dest,
        "days": days,
        "visiting_city_number": (days - 1) // 2,
        "date": list(DATES[:days]),
        "people_number": 2,
        "local_constraint": {
            "house rule": "smoking",
            "cuisine": ["Mexican", "Indian"],
            "room type": "entire room",
            "transportation": "no self-driving",
        },
        "budget": 5000,
        "level": "hard",
    }


@pytest.fixture
def facts() -> dict[str, Any]:
    """Three days in one city, with every kind of constraint."""
    return _facts(3, "Wichita")


@pytest.fixture
def plan(database: Database) -> list[dict[str, Any]]:
    """A plan for `facts` that passes in every mode."""
    out, back = flight(database, "Springfield", "Wichita", 1), flight(database, "Wichita", "Springfield", 3)
    days = [_travel(1, "Springfield", "Wichita", out, False), _stay(2, "Wichita")]
    return copy.deepcopy([*days, _travel(3, "Wichita", "Springfield", back, True)])


@pytest.fixture
def long_facts() -> dict[str, Any]:
    """Five days in two cities of a state."""
    return _facts(5, "Kansas")


@pytest.fixture
def long_plan(database: Database) -> list[dict[str, Any]]:
    """A plan for `long_facts` that passes in every mode."""
    legs = [("Springfield", "Wichita", 1), ("Wichita", "Salina", 3), ("Salina", "Springfield", 5)]
    first, second, third = (_travel(day, start, end, flight(database, start, end, day), day == 5) for start, end, day in legs)
    return [first, _stay(2, "Wichita"), second, _stay(4, "Salina"), third]


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, int], AbstractContextManager[str]]:
    """Starts a vLLM server for a model directory and a context length, and gives its address."""

    @contextmanager
    def serve(model: Path, context: int) -> Iterator[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        flags = {
            "model": model, "host": "127.0.0.1", "port": port, "dtype": "float32", "max-model-len": context,
            "logprobs-mode": "processed_logprobs", "worker-extension-cls": "star.policies.vllm.Worker",
            "kv-cache-memory-bytes": 50_000_000,
        }  # fmt: skip
        # As `vllm serve`, which does not start where the package has another name, as builds for CPUs have.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        command += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        root = Path(__file__).resolve().parents[1]
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(root), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        said, url = tmp_path_factory.mktemp("vllm") / "log", f"http://127.0.0.1:{port}"
        with said.open("wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
            try:
                _wait_for(url, process, said)
                yield url
            finally:
                process.terminate()

    return serve


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("the server does not start")
