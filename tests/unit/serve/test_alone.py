import asyncio
import os
import signal
from types import SimpleNamespace

import pytest

from engine.control import Reload, ask
from gateway.config.errors import ConfigurationError
from gateway.config.reloadable import SettingsChange
from gateway.config.settings import Settings
from gateway.config.sources import Sources
from gateway.serve.alone import Alone
from gateway.serve.discovery import Discovery
from tests.until import until

ENDPOINT = {"models": [{"endpoints": [{"url": "http://a:1"}]}]}


class Application:
    """Takes other settings, or not."""

    where = 1

    def __init__(self):
        self.settings = Settings.model_validate(ENDPOINT)
        self.changes = 0
        self.refuses = None
        self.asked = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def change(self, settings):
        self.asked += 1
        await self.goes_on.wait()
        if self.refuses is not None:
            raise ConfigurationError(self.refuses)
        change = SettingsChange.between(self.settings, settings)
        self.settings = change.settings
        self.changes += 1
        return change


@pytest.fixture
def application(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))
    monkeypatch.delenv("KVGATE_CONFIG", raising=False)
    return Application()


async def reloaded(alone, **request):
    said = []
    return await alone.reload(Reload(**request), said.append), said


async def test_what_changed_and_what_did_not_is_said(application):
    alone = Alone(application, Sources(ENDPOINT), Discovery(application.settings))
    changes = {"admission": {"mode": "observe"}, "server": {"port": 1}}
    assert await reloaded(alone, changes=changes) == (0, ["server.port: needs a restart", "Changed: admission.mode."])
    assert await reloaded(alone) == (0, ["Changed: admission.mode."])
    nothing = "kvgate was started without a configuration file: there is nothing to read but keys and certificates."
    assert await reloaded(alone) == (0, [nothing])


async def test_what_is_wrong_is_said_and_nothing_changed(application, tmp_path):
    alone = Alone(application, Sources(ENDPOINT), Discovery(application.settings))
    code, (said,) = await reloaded(alone, changes={"admission": {"mode": "x"}})
    assert (code, application.changes) == (2, 0)
    assert said.endswith("Nothing was changed.")
    assert "admission.mode = 'x' (--set)" in said
    code, (said,) = await reloaded(alone, config=str(tmp_path / "none"))
    assert (code, "cannot be read" in said) == (2, True)
    application.refuses = "a file"
    assert await reloaded(alone) == (2, ["a file\nNothing was changed."])


async def test_a_signal_during_a_reload_is_followed_by_another_one(application):
    application.goes_on.clear()
    async with Alone(application, Sources(ENDPOINT), Discovery(application.settings)).asked(lambda: None):
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: application.asked == 1)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        application.goes_on.set()
        await until(lambda: application.changes == 2)
        assert await asyncio.to_thread(ask, Reload(), 1, lambda _: None) == 0
        assert application.changes == 3, "those that came meanwhile are one"


async def test_where_nobody_can_reach_it_signals_still_do(application, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "file"))
    async with Alone(application, Sources(ENDPOINT), Discovery(application.settings)).asked(lambda: None):
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: application.changes)


async def test_a_terminal_that_was_closed_ends_it(application, monkeypatch):
    terminal = SimpleNamespace(there=True)
    monkeypatch.setattr("gateway.serve.alone.has_terminal", lambda: terminal.there)
    closed = asyncio.Event()
    async with (
        Alone(application, Sources(ENDPOINT), Discovery(application.settings)).asked(closed.set),
        asyncio.timeout(60),
    ):
        terminal.there = False
        os.kill(os.getpid(), signal.SIGHUP)
        await closed.wait()


async def test_a_reload_that_breaks_off_leaves_signals_heard(application, monkeypatch):
    failed = asyncio.Event()

    async def fail(_):
        failed.set()
        raise ZeroDivisionError

    async with Alone(application, Sources(ENDPOINT), Discovery(application.settings)).asked(lambda: None):
        with monkeypatch.context() as patched:
            patched.setattr(application, "change", fail)
            os.kill(os.getpid(), signal.SIGHUP)
            await failed.wait()
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: application.changes)


async def test_a_signal_after_it_serves_no_more_does_not_end_what_drains(application):
    async with Alone(application, Sources(ENDPOINT), Discovery(application.settings)).asked(lambda: None):
        pass
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0)
    assert not application.changes
