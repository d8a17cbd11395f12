"""What `make proof` would run, without running it: each command is one that the program behind it takes."""

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gateway.config.settings import Settings
from loadtests import proof
from loadtests.proof import COSTS, LOAD_TESTS, MODEL, OTHERS
from loadtests.run import parse

URLS = {"direct": "http://127.0.0.1:1", "limited": "http://127.0.0.1:2"}
SAID = {"engine.demo_model": "/models/random", "engine.interpreter": sys.executable}


class Starting(BaseHTTPRequestHandler):
    """A kvgate whose second engine is healthy only when it is asked again."""

    asked = 0

    def do_GET(self):
        Starting.asked += 1
        models = [MODEL, "limited"]
        endpoints = [
            {"models": [name], "url": url, "healthy": name == MODEL or Starting.asked > 1}
            for name, url in zip(models, URLS.values(), strict=True)
        ]
        body = json.dumps({"endpoints": endpoints}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def kvgate(monkeypatch):
    """A kvgate that is already there: its URL, and what would have been started."""
    Starting.asked = 0
    started = SimpleNamespace(settings=None, python=None, ended=False)

    @contextlib.contextmanager
    def child(argv, _core, log):
        started.settings = Settings.model_validate(yaml.safe_load(Path(argv[-1]).read_text()))
        python = next(word for word in argv if word.startswith("KVGATE_ENGINE_PYTHON=")).partition("=")[2]
        ask = "import os; print(*sorted(os.sched_getaffinity(0)))"
        started.cores = subprocess.check_output([python, "-c", ask], text=True).split()
        log.write_text("no such model\n")
        yield SimpleNamespace(poll=lambda: 1 if started.ended else None)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Starting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(proof, "START_SECONDS", 10)
    monkeypatch.setattr(proof, "child", child)
    monkeypatch.setattr(proof, "free_port", lambda: server.server_port)
    started.url = f"http://127.0.0.1:{server.server_port}"
    yield started
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the proof: the commands it would have run. `codes` are the exit codes of some modules."""

    def start(*arguments, codes=None):
        ran = []

        def instead(argv, *, check, stdout=None, text=None):
            assert argv[:2] == [sys.executable, "-m"]
            module, *rest = argv[2:]
            ran.append((module, rest))
            return SimpleNamespace(returncode=(codes or {}).get(module, 0), stdout=f"{SAID.get(module, 'a table')}\n")

        monkeypatch.setattr(sys, "argv", ["proof", "--out", str(tmp_path), *arguments])
        with monkeypatch.context() as patched:
            patched.setattr(proof, "subprocess", SimpleNamespace(run=instead, PIPE=subprocess.PIPE))
            proof.main()
        return ran

    return start


def test_each_load_test_is_one_that_the_runner_takes(run, kvgate, tmp_path):
    commands = [rest for module, rest in run("--only", *LOAD_TESTS, "--seconds", "120") if module == "loadtests.run"]
    assert len(commands) == len(LOAD_TESTS)
    for command, (name, test) in zip(commands, LOAD_TESTS.items(), strict=True):
        given, scenario, _ = parse(command)
        assert command[0] == test.scenario
        assert dict(given.target) == {target: {**URLS, "kvgate": kvgate.url}[target] for target in test.targets}, (
            "the last of them has the verdict"
        )
        assert [target for target, _ in given.target][-1] == "kvgate"
        assert given.metrics == [("kvgate", f"{URLS['direct']}/metrics")], "kvgate's own tell nothing of the engine"
        assert (given.model, given.out) == (MODEL, tmp_path / f"{name}.json")
        if name != "spike":
            assert scenario.duration == (60 if name == "half" else 120)


def test_two_engines_that_differ_by_vllms_own_limits_stand_behind_kvgate(run, kvgate):
    run("--only", "spike")
    first, second = kvgate.settings.models
    assert (first.name, second.name) == (MODEL, "limited")
    assert first.engine.model == second.engine.model == "/models/random"
    assert second.engine.args == (*first.engine.args, *proof.LIMITS)
    assert kvgate.settings.server.trusted_flow_header == "x-flow", "flows are told apart by it"


def test_engines_have_all_cores_but_the_last(run, kvgate):
    before = os.sched_getaffinity(0)
    run("--only", "spike")
    *others, last = map(str, sorted(before))
    assert kvgate.cores == (others or [last])
    assert os.sched_getaffinity(0) == before


def test_a_kvgate_that_ends_is_told_with_its_last_words(run, kvgate):
    kvgate.ended = True
    with pytest.raises(SystemExit, match="kvgate ended:\nno such model"):
        run("--only", "spike")


def test_the_other_measurements_are_modules_that_exist(run, tmp_path):
    ran = run("--only", *OTHERS, *COSTS)
    for module, rest in ran:
        assert importlib.util.find_spec(module), module
        if module == "pytest":
            assert Path(rest[-1]).exists()
    assert ("tests.proof.counting_cost", ["/models/random"]) in ran, "it needs a real tokenizer"
    assert ("tests.proof.workers", ["--seconds", "300", "--out", str(tmp_path / "workers.json")]) in ran
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        f"{name}.txt": "a table\n" for name in COSTS
    }


@pytest.mark.parametrize("name", ["rolling", "partitions"])
def test_what_a_tier_bears_is_measured_with_the_rest(run, name):
    assert run("--only", name) == [("engine.demo_model", [MODEL]), (f"tests.proof.{name}", [])]


def test_all_measurements_that_the_docs_name_are_run_but_for_those_marked(run, kvgate):
    table = Path(__file__).parents[3].joinpath("docs", "benchmarks.md").read_text().partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "(apart)" not in line]
    named = set(re.findall(r"python -m ((?:tests|loadtests)\.[\w.]+)", "\n".join(rows)))
    missing = named - {module for module, _ in run()}
    assert len(named) > 10
    assert not missing


def test_a_failed_verdict_stops_nothing_and_a_crash_does(run, tmp_path):
    codes = {"loadtests.relay_cost": 1, "tests.proof.kill_all": 1}
    modules = [module for module, _ in run("--only", "relay_cost", "kill_all", "plan_accuracy", codes=codes)]
    assert modules[-2:] == ["tests.proof.plan_accuracy", "tests.proof.kill_all"]
    assert (tmp_path / "kill_all.txt").read_text() == "a table\n", "the figures of a failure are kept, too"
    with pytest.raises(SystemExit) as stopped:
        run("--only", "relay_cost", "plan_accuracy", codes={"loadtests.relay_cost": 2})
    assert stopped.value.code == 2
