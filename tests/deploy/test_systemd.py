"""The systemd unit is one that systemd takes, and says what is so."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.cache import cache_folder
from gateway.config.engine import EngineSettings
from gateway.config.settings import ModelSettings, Settings
from gateway.record.learned import state_folder
from tests.deploy.stack import ROOT, install

UNIT = ROOT / "deploy" / "systemd" / "kvgate.service"


@pytest.fixture(scope="module")
def analyze() -> str:
    """The program that checks units, installed first where there is none."""
    if shutil.which("systemd-analyze") is None:
        install("systemd")
    return "systemd-analyze"


def values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.mark.network
def test_systemd_takes_it(analyze: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    (start,) = values("ExecStart")
    program, *_ = start.split()
    unit.write_text(UNIT.read_text().replace(program, "/bin/true"))
    done = subprocess.run([analyze, "verify", str(unit)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.network
def test_systemd_would_say_what_it_does_not_take(analyze: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text("[Service]\nExecStart=/bin/true\nKillMode=gently\n")
    done = subprocess.run([analyze, "verify", str(unit)], check=False, capture_output=True, text=True)
    assert "gently" in done.stdout + done.stderr


def test_it_waits_for_the_gateway_and_its_engines() -> None:
    settings = Settings(models=(ModelSettings(engine=EngineSettings(model="m")),))
    engine = settings.models[0].engine
    assert engine is not None
    (timeout,) = values("TimeoutStopSec")
    assert int(timeout) > settings.server.shutdown_timeout + 10 + engine.stop_timeout


def test_what_kvgate_writes_is_where_it_may_write() -> None:
    (environment,) = values("Environment")
    environ = dict(pair.split("=", 1) for pair in environment.split())
    assert cache_folder(environ) == Path("/var/cache", *values("CacheDirectory"))
    (state,) = values("StateDirectory")
    # systemd tells the folder by this variable.
    assert state_folder({"STATE_DIRECTORY": f"/var/lib/{state}"}) == Path("/var/lib", state)
