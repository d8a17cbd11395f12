"""`kvgate serve --endpoint`, changed while it serves: SIGHUP and `kvgate reload`, as a person would use them."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from tests.integration.kvgate import serving
from tests.integration.load import Load
from tests.integration.relaying import CHAT, body, fake_processes
from tests.ports import free_port
from tests.unit.engine.processes import eventually

pytestmark = pytest.mark.slow


class Alone:
    """A kvgate in front of fakes that are processes of their own, and its file."""

    def __init__(self, folder, kvgate, urls):
        self.file = folder / "kvgate.yaml"
        self.kvgate = kvgate
        self.url = kvgate.url
        self.urls = urls

    def configure(self, *urls, **sections):
        self.file.write_text(yaml.safe_dump(configuration(urls or self.urls[:1], sections)))

    def hang_up(self):
        self.kvgate.process.send_signal(signal.SIGHUP)

    def said(self, text, times=1):
        return eventually(lambda: self.kvgate.log.read_text().count(text) >= times)


def configuration(urls, sections):
    model = {"endpoints": [{"url": url} for url in urls], "tokenizer": "/nonexistent"}
    return {"models": [model], "health": {"interval": 0.2}, "admission": {"ttft_target": None}, **sections}


def reload(*arguments):
    """`kvgate reload`: its exit code and what it said."""
    command = [sys.executable, "-m", "gateway", "reload", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=30, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Starts a kvgate with a file, or with flags alone."""
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    with contextlib.ExitStack() as stack:

        def start(*flags):
            fakes = stack.enter_context(fake_processes(2, "--step-seconds=0.005"))
            urls = [url for url, _ in fakes]
            file = tmp_path / "kvgate.yaml"
            file.write_text(yaml.safe_dump(configuration(urls[:1], {})))
            source = flags or ("--config", str(file))
            given = [word.format(*urls) for word in source]
            kvgate = stack.enter_context(serving(tmp_path / "kvgate.log", free_port(), *given))
            kvgate.wait_healthy(1)
            return Alone(tmp_path, kvgate, urls)

        yield start


def takes(url, size):
    return httpx.post(f"{url}{CHAT}", json=body(padding="x" * size)).status_code == httpx.codes.OK


async def test_sighup_and_reload_change_what_they_can_and_cost_no_request(alone):
    kvgate = alone()
    pid = kvgate.kvgate.process.pid
    async with Load(kvgate.url) as load:
        for round_ in range(3):
            kvgate.configure(server={"max_body_bytes": 2000 + round_}, admission={"kv_high": 0.85 + round_ / 100})
            kvgate.hang_up()
            assert await asyncio.to_thread(kvgate.said, "Changed: server.max_body_bytes, admission.", round_ + 1)
            await load.more(10)
        kvgate.configure(*kvgate.urls, server={"max_body_bytes": 1000, "admin_port": 1}, log={"access": False})
        code, said = await asyncio.to_thread(reload)
        assert code == 0, said
        assert "server.admin_port: needs a restart\n" in said
        assert "log.access: needs a restart\n" in said
        assert "Changed: server.max_body_bytes, admission." in said
        assert await asyncio.to_thread(eventually, lambda: len(kvgate.kvgate.healthy()) == 2, 10)
        await load.more(20)
        kvgate.configure(kvgate.urls[1])
        assert (await asyncio.to_thread(reload))[0] == 0
        assert await asyncio.to_thread(eventually, lambda: len(kvgate.kvgate.state()["endpoints"]) == 1, 20)
        assert kvgate.kvgate.state()["endpoints"][0]["url"] == kvgate.urls[1]
        await load.more(20)
    assert load.failures == []
    assert kvgate.kvgate.process.pid == pid
    assert kvgate.kvgate.process.poll() is None


def test_two_hang_ups_at_once_end_with_the_newest_file(alone):
    kvgate = alone()
    for size in range(1000, 1020):
        kvgate.configure(server={"max_body_bytes": size})
        kvgate.hang_up()
    assert eventually(lambda: not takes(kvgate.url, 2000))
    kvgate.configure(server={"max_body_bytes": 9000})
    kvgate.hang_up()
    kvgate.hang_up()
    assert eventually(lambda: takes(kvgate.url, 2000))


def test_a_wrong_file_changes_nothing_and_the_log_and_the_answer_say_why(alone):
    kvgate = alone()
    kvgate.configure(server={"max_body_bytes": 1000}, admission={"kv_hihg": 1})
    kvgate.hang_up()
    assert kvgate.said("admission.kv_hihg")
    code, said = reload()
    assert code == 2
    assert "unknown key; did you mean `kv_high`?" in said
    assert said.endswith("Nothing was changed.\n")
    kvgate.configure(server={"max_body_bytes": 1000}, auth={"admin_key_file": "/nonexistent"})
    code, said = reload()
    assert (code, "/nonexistent: cannot read the key" in said) == (2, True)
    kvgate.file.unlink()
    assert reload()[0] == 2
    assert takes(kvgate.url, 2000)


def test_admission_is_off_for_a_moment_with_one_command_and_on_again_with_the_next(alone):
    kvgate = alone()
    code, said = reload("--set", "admission.mode=observe")
    assert (code, said) == (0, "Changed: admission.mode.\n")
    assert kvgate.kvgate.state()["mode"] == "observe"
    assert reload() == (0, "Changed: admission.mode.\n")
    assert kvgate.kvgate.state()["mode"] == "enforce"
    code, said = reload("--set", "admission.mode=watch")
    assert (code, "admission.mode = 'watch' (--set)" in said) == (2, True)


def test_without_a_file_sighup_says_that_there_is_nothing_to_read(alone):
    kvgate = alone("--endpoint", "{0}", "--tokenizer", "/nonexistent")
    kvgate.hang_up()
    assert kvgate.said("kvgate was started without a configuration file")
    assert takes(kvgate.url, 2000)
    assert reload("--set", "server.max_body_bytes=1000")[0] == 0
    assert not takes(kvgate.url, 2000)
    kvgate.hang_up()
    assert eventually(lambda: takes(kvgate.url, 2000)), "what was set holds until the next reload"


def catches(process, number):
    """Whether the process has a handler for a signal: the interpreter's own start has none."""
    (line,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return bool(int(line, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("after", [0.0, 0.7, 2.0])
def test_sighup_before_it_serves_ends_nothing_and_is_not_forgotten(tmp_path, after):
    """As of `systemctl reload` in the moment of a start: it reads its settings when there is something to read."""
    file, log, port = tmp_path / "kvgate.yaml", tmp_path / "log", free_port()
    with fake_processes(1) as [(url, _)], log.open("wb") as output:
        file.write_text(yaml.safe_dump(configuration([url], {"server": {"host": "127.0.0.1", "port": port}})))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        kvgate = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            assert eventually(lambda: catches(kvgate, signal.SIGHUP))
            time.sleep(after)
            kvgate.send_signal(signal.SIGHUP)
            assert eventually(lambda: "settings read again" in log.read_text()), log.read_text()
            assert kvgate.poll() is None
        finally:
            kvgate.terminate()
            kvgate.wait(120)
