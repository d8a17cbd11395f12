"""A module that calls itself PURE gets time, chance and I/O as arguments: neither it nor what it imports has any."""

import ast
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = frozenset(
    {"aiohttp", "asyncio", "concurrent", "fastapi", "fcntl", "http", "httpx", "io", "logging", "multiprocessing", "os"}
    | {"prometheus_client", "pynvml", "random", "rich", "secrets", "select", "selectors", "shutil", "signal", "socket"}
    | {"ssl", "structlog", "subprocess", "sys", "tempfile", "threading", "time", "tokenizers", "transformers", "typer"}
    | {"urllib3", "uuid", "uvicorn", "uvloop"}
)
ALLOWED = {
    ("engine.diagnosis.signs.death", "signal"): "names of signals",
    ("engine.diagnosis.log_cause", "signal"): "names of signals",
    ("engine.plan.samples", "prometheus_client"): "its parser",
    ("gateway.endpoints.mistakes", "http"): "names of statuses",
    ("gateway.endpoints.replies", "http"): "names of statuses",
}
CALLS = frozenset(
    {"now", "utcnow", "today"}
    | {"cwd", "exists", "expanduser", "glob", "home", "is_dir", "is_file", "iterdir", "mkdir", "open", "read_bytes"}
    | {"read_text", "resolve", "rglob", "stat", "touch", "unlink", "write_bytes", "write_text"}
)
"""Methods of `datetime` and `Path` that read a clock or a disk: both are imported for their values, too."""


def claiming() -> Iterator[tuple[str, ast.Module]]:
    for package in ("engine", "gateway"):
        for file in sorted((ROOT / package).rglob("*.py")):
            module = ast.parse(file.read_text())
            if (ast.get_docstring(module) or "").startswith("PURE"):
                yield ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), module


PURE = dict(claiming())


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    graph = grimp.build_graph(
        "engine",
        "gateway",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )
    for importer, imported in ALLOWED:
        assert graph.direct_import_exists(importer=importer, imported=imported), "an exception that nobody needs"
        graph.remove_import(importer=importer, imported=imported)
    return graph


@pytest.mark.parametrize("name", PURE)
def test_what_calls_itself_pure_reaches_no_clock_no_chance_and_no_io(name: str, imports: grimp.ImportGraph) -> None:
    reached = FORBIDDEN & imports.find_upstream_modules(name)
    assert [imports.find_shortest_chain(name, one) for one in sorted(reached)] == []


@pytest.mark.parametrize("name", PURE)
def test_what_calls_itself_pure_asks_no_clock_and_no_disk(name: str) -> None:
    calls = [node.func for node in ast.walk(PURE[name]) if isinstance(node, ast.Call)]
    asked = [call.attr for call in calls if isinstance(call, ast.Attribute) and call.attr in CALLS]
    assert asked == []
    assert not any(isinstance(call, ast.Name) and call.id in {"open", "input", "print"} for call in calls)


def test_the_parts_that_decide_call_themselves_pure() -> None:
    """A claim that is dropped is not checked any more."""
    assert len(PURE) > 60
    assert {
        "engine.judgement",
        "engine.program_lifecycle",
        "engine.memory_ladder",
        "engine.plan.planner",
        "engine.room",
    } <= PURE.keys()
    assert {"gateway.endpoints.health", "gateway.serve.hang_restarts", "gateway.serve.rollout"} <= PURE.keys()
