"""`kvgate serve` with engines of its own, changed while it serves. The engines are fakes, which start in a second."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from tests.fakes.interpreter import made
from tests.integration.kvgate import serving
from tests.integration.load import Load
from tests.integration.relaying import CHAT, body
from tests.ports import free_port
from tests.unit.engine.processes import eventually, is_alive

pytestmark = pytest.mark.slow


class Served:
    """A kvgate that launched fakes, its configuration file, and the commands a person would type."""

    def __init__(self, folder, kvgate, environ):
        self.folder = folder
        self.kvgate = kvgate
        self.environ = environ
        self.url = kvgate.url

    @property
    def file(self):
        return self.folder / "kvgate.yaml"

    def configure(self, file=None, *, args=(), server=None, other=False, **engine):
        configured = configuration(self.folder, args, server or {}, engine, other=other)
        (file or self.file).write_text(yaml.safe_dump(configured))

    def reload(self, *arguments, timeout=60):
        """`kvgate reload`: its exit code and what it said."""
        command = [sys.executable, "-m", "gateway", "reload", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environ, timeout=timeout, check=False)
        return done.returncode, done.stdout + done.stderr

    def engines(self):
        """The ids of the engine processes that run now."""
        return [pid for pid in self.all_engines() if is_alive(pid)]

    def all_engines(self):
        return [int(line) for line in (self.folder / "pids").read_text().split()]

    def gateways(self):
        """The ids of the gateway processes that run now."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                is_one = words[1:4] == [b"-P", b"-m", b"gateway.serve.child"]
                if is_one and self.kvgate.process.pid in ancestors(int(process.name)) and is_alive(int(process.name)):
                    found.append(int(process.name))
        return found


def ancestors(pid):
    found = set()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(pid)
    return found


def configuration(folder, args=(), server=None, engine=None, health=None, *, other=False):
    """A model, and another one whose engine never changes."""
    model = folder / "model"
    given = ["--load-format=dummy", "--step-seconds=0.005", f"--fake-pids={folder}/pids", *args]
    engine = {
        "model": str(model),
        "python": str(folder / "python-with-fake-vllm"),
        "args": given,
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1"},  # so that /pause is there
        "reload": "surge",
        **(engine or {}),
    }
    models = [{"name": "fake", "tokenizer": "/nonexistent", "engine": engine}]
    if other:
        constant = {**engine, "args": ["--load-format=dummy", "--step-seconds=0.1", f"--fake-pids={folder}/pids"]}
        models.append({"name": "other", "tokenizer": "/nonexistent", "engine": constant})
    return {
        "server": server or {},
        "health": {"interval": 0.2, "hung_after": 2.0, **(health or {})},
        "admission": {"ttft_target": "none"},
        "models": models,
    }


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Starts a kvgate over fakes, with these changes to its configuration."""
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    made(tmp_path)
    with contextlib.ExitStack() as stack:

        def start(replicas=1, port=None, health=None, *, other=False, **engine):
            file = tmp_path / "kvgate.yaml"
            engine = {"replicas": replicas, **engine}
            file.write_text(yaml.safe_dump(configuration(tmp_path, engine=engine, health=health, other=other)))
            running = serving(tmp_path / "kvgate.log", port or free_port(), "--config", str(file))
            kvgate = stack.enter_context(running)
            kvgate.wait_healthy(replicas + other)
            return Served(tmp_path, kvgate, dict(os.environ))

        yield start


def too_large(url):
    """Whether a body that the settings of before took is refused."""
    return httpx.post(f"{url}{CHAT}", json=body(padding="x" * 2000)).status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE


async def test_settings_alone_and_then_a_surge_and_one_that_fails_cost_no_request(launched):
    kvgate = launched()
    (engine,), (gateway,) = kvgate.engines(), kvgate.gateways()
    async with Load(kvgate.url) as load:
        kvgate.configure(server={"max_body_bytes": 1000}, stop_timeout=20)
        code, said = await asyncio.to_thread(kvgate.reload)
        assert code == 0, said
        assert "gateway: changed server.max_body_bytes\n" in said
        assert "models[0].engine.stop_timeout: is for the next engine that takes this one's place" in said
        assert "The new settings are in force." in said
        assert (kvgate.engines(), kvgate.gateways()) == ([engine], [gateway]), "nothing was exchanged"
        assert too_large(kvgate.url)

        code, said = await asyncio.to_thread(kvgate.reload, "--set", "counting.threads=3")
        assert (code, "takes over from" in said) == (0, True)
        assert kvgate.engines() == kvgate.all_engines() == [engine]
        assert not is_alive(gateway)
        assert too_large(kvgate.url)

        kvgate.configure(args=["--max-num-seqs=100"])
        code, said = await asyncio.to_thread(kvgate.reload)
        assert code == 0, said
        assert said.index("engine fake #2: ready") < said.index("takes over from") < said.index("engine fake: stopping")
        assert not is_alive(engine)
        (engine,), (gateway,) = kvgate.engines(), kvgate.gateways()
        assert kvgate.kvgate.state()["endpoints"][0]["max_num_seqs"] == 100

        kvgate.configure(args=["--fake-fails=ValueError: Cannot find any model weights with x"])
        code, said = await asyncio.to_thread(kvgate.reload)
        assert code == 1
        assert "does not start" in said
        assert "weights" in said
        assert (kvgate.engines(), kvgate.gateways()) == ([engine], [gateway])
        await load.more(20)
    assert load.failures == []


async def test_in_place_says_what_it_costs_and_a_failure_brings_the_old_one_back(launched, tmp_path):
    """Though its own first start may fail, too: what ended before it may not have left all of its memory."""
    kvgate = launched(reload="in_place")
    (old,) = kvgate.engines()
    async with Load(kvgate.url) as load:
        fails_once = tmp_path / "fails-once"
        kvgate.configure(reload="in_place", args=["--max-num-seqs=100", f"--fake-fails-once={fails_once}"])
        code, said = await asyncio.to_thread(kvgate.reload)
        assert code == 0, said
        assert "in_place, as the settings say: requests for fake wait for those on it, and about" in said
        steps = ["wait for those on it", "engine fake: stopped", "engine fake #2: starting"]
        assert sorted(steps, key=said.index) == steps
        (new,) = kvgate.engines()
        assert new != old

        fails_once.write_text("ValueError: still no")
        kvgate.configure(reload="in_place", args=["--fake-fails=ValueError: no"])
        code, said = await asyncio.to_thread(kvgate.reload)
        assert code == 1
        assert "engine fake #2: started again as it was\nWhat ran before serves on." in said
        assert said.count("What ran before serves on.") == 1
        assert "ValueError: no" in said
        await load.more(20)
    assert load.failures == []
    assert not fails_once.exists()
    assert len(kvgate.engines()) == 1
    assert kvgate.kvgate.state()["endpoints"][0]["max_num_seqs"] == 100


async def test_a_stream_of_another_model_keeps_none_from_a_model_whose_engine_is_replaced_in_its_place(launched):
    kvgate = launched(reload="in_place", other=True)
    before = kvgate.engines()
    async with httpx.AsyncClient(base_url=kvgate.url, timeout=60, trust_env=False) as client:
        asked = body(tokens=80, model="other", stream=True)
        async with client.stream("POST", CHAT, json=asked) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            kvgate.configure(reload="in_place", other=True, args=["--max-num-seqs=100"])
            reloading = asyncio.create_task(asyncio.to_thread(kvgate.reload))
            ended = asyncio.create_task(_last(lines))
            while not ended.done():
                answer = await client.post(CHAT, json=body())
                assert answer.status_code == httpx.codes.OK
                assert answer.elapsed.total_seconds() < 4, "it does not wait for the stream"
            assert await ended == "data: [DONE]"
        code, said = await reloading
        assert code == 0, said
        assert (await client.post(CHAT, json=body())).status_code == httpx.codes.OK
    assert len({*before} & {*kvgate.engines()}) == 1
    assert said.index("takes over from") < said.index("engine fake: stopping") < said.index("engine fake #2: ready")


async def _last(lines):
    return [line async for line in lines if line][-1]


async def test_replicas_are_replaced_one_after_the_other_and_become_fewer(launched):
    kvgate = launched(replicas=2, reload="in_place")
    old = kvgate.engines()
    async with Load(kvgate.url) as load:
        kvgate.configure(replicas=2, reload="in_place", args=["--max-num-seqs=100"])
        code, said = await asyncio.to_thread(kvgate.reload)
        assert code == 0, said
        assert "served by 1 of 2 engines meanwhile" in said
        assert len(kvgate.engines()) == 2
        assert not set(old) & set(kvgate.engines())
        kvgate.configure(replicas=1, args=["--max-num-seqs=100"])
        assert (await asyncio.to_thread(kvgate.reload))[0] == 0
        assert len(kvgate.engines()) == 1
    assert load.failures == []
    assert len(kvgate.all_engines()) == 4


def test_wrong_settings_change_nothing_and_sighup_reloads_the_file_it_was_started_with(launched):
    kvgate = launched()
    engines, gateways = kvgate.engines(), kvgate.gateways()
    kvgate.file.write_text("admission: {kv_hihg: 1}")
    code, said = kvgate.reload()
    assert code == 2
    assert "admission.kv_hihg" in said
    assert "Nothing was changed." in said
    other = kvgate.folder / "other.yaml"
    kvgate.configure(other, server={"admin_port": free_port()})
    code, said = kvgate.reload("--config", str(other))
    assert (code, "server.admin_port: needs a restart" in said) == (0, True)
    assert httpx.get(f"{kvgate.url}/metrics").status_code == 200, "they are where they were"
    kvgate.configure(other)
    code, said = kvgate.reload("--config", str(other), "--set", "auth.admin_key_file=/nonexistent")
    assert (code, "/nonexistent: cannot read the key" in said) == (2, True)
    assert (kvgate.engines(), kvgate.gateways()) == (engines, gateways)

    kvgate.configure(server={"max_body_bytes": 1000})
    kvgate.kvgate.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: kvgate.kvgate.log.read_text().count("The new settings are in force.") == 2)
    assert too_large(kvgate.url)
    for size in range(3000, 3010):  # a file that is changed while it is read is read again
        kvgate.configure(server={"max_body_bytes": size})
        kvgate.kvgate.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: not too_large(kvgate.url))
    kvgate.configure(server={"max_body_bytes": 1000})
    kvgate.kvgate.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: too_large(kvgate.url))
    assert kvgate.engines() == engines
    assert kvgate.gateways() == gateways


def test_without_a_kvgate_reload_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "gateway", "reload"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no kvgate runs here" in done.stderr


async def test_killed_gateways_engines_that_hang_and_a_stop_during_a_reload(launched):
    kvgate = launched(hung_timeout=1.0, health={"timeout": 2.0})
    (engine,) = kvgate.engines()
    for _ in range(2):
        (gateway,) = kvgate.gateways()
        os.kill(gateway, signal.SIGKILL)
        async with httpx.AsyncClient(base_url=kvgate.url, timeout=60) as client:
            answers = await asyncio.gather(*(client.post(CHAT, json=body()) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}, "who connects waits"
        assert kvgate.engines() == [engine]

    async with httpx.AsyncClient(base_url=kvgate.url, timeout=60) as client:
        await client.post(f"{kvgate.kvgate.healthy()[0]}/pause")  # its core stands still, and /health answers
        answers = await asyncio.gather(*(client.post(CHAT, json=body()) for _ in range(2)))
        assert [answer.status_code for answer in answers] == [200] * 2, "who was on it is answered by its successor"
    assert "It hung: no progress for " in kvgate.kvgate.log.read_text()
    (again,) = kvgate.engines()
    assert again != engine
    engine = again
    # The gateway may know before the supervisor does; until then only `start_timeout` bounds it.
    log = kvgate.kvgate.log
    assert await asyncio.to_thread(eventually, lambda: log.read_text().count("engine fake: ready") == 2, 10)

    os.kill(engine, signal.SIGSTOP)
    assert await asyncio.to_thread(eventually, lambda: (told(kvgate)["cause"] or "").startswith("It hung: "), 60)
    assert await asyncio.to_thread(eventually, lambda: kvgate.engines() not in ([], [engine]), 60)
    await asyncio.to_thread(kvgate.kvgate.wait_healthy, 1, 60)
    assert await asyncio.to_thread(eventually, lambda: told(kvgate)["cause"] is None, 60), "it is ready again"
    assert kvgate.kvgate.log.read_text().count("engine fake: ended. It hung: ") == 2
    async with httpx.AsyncClient(base_url=kvgate.url, timeout=60) as client:
        assert (await client.post(CHAT, json=body())).status_code == 200

    kvgate.configure(args=["--max-num-seqs=100"])
    asking = asyncio.create_task(asyncio.to_thread(kvgate.reload))
    assert await asyncio.to_thread(eventually, lambda: "engine fake #2: starting" in log.read_text(), 30)
    kvgate.kvgate.process.terminate()
    code, said = await asking
    assert (code, "the reload was given up" in said) == (1, True)
    assert await asyncio.to_thread(kvgate.kvgate.process.wait, 30) == 0
    assert kvgate.engines() == kvgate.gateways() == []


async def test_one_silent_request_does_not_cost_an_engine_its_life(launched):
    """It ends alone, however long its engine may hang; a second one that is silent too brings a new engine."""
    kvgate = launched(hung_timeout=1.0)
    (engine,) = kvgate.engines()
    (url,) = kvgate.kvgate.healthy()
    async with httpx.AsyncClient(base_url=kvgate.url, timeout=60) as client:
        await client.post(f"{url}/pause")
        answer = await client.post(CHAT, json=body())
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
        assert await asyncio.to_thread(eventually, lambda: state_of(kvgate) == "trial", 20), "after a rest of 5 s"
        assert kvgate.engines() == [engine]
        assert (await client.post(CHAT, json=body())).status_code == 200, "its successor answers"
    assert kvgate.engines() != [engine]
    assert kvgate.kvgate.log.read_text().count("engine fake: ended. It hung: no progress for ") == 1


def told(kvgate):
    return kvgate.kvgate.state()["endpoints"][0]


def state_of(kvgate):
    return told(kvgate)["state"]


def test_a_supervisor_killed_with_sigkill_leaves_nobody_and_a_free_port(launched):
    kvgate = launched(replicas=2)
    processes = [*kvgate.engines(), *kvgate.gateways()]
    assert len(processes) == 3
    kvgate.kvgate.process.kill()
    assert eventually(lambda: not any(map(is_alive, processes)))
    assert eventually(lambda: can_be_bound(int(kvgate.url.rsplit(":", 1)[1])))


def can_be_bound(port):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
