"""Engines on demand that fail: to start, while they start, in time; to sleep; and clients that do not wait for them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.fakes.interpreter import made
from tests.integration.kvgate import Kvgate, serving
from tests.integration.one_slot import starts
from tests.integration.workers import Workers
from tests.ports import free_port
from tests.unit.engine.processes import eventually, is_alive

PATIENCE = 40.0
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2}


class Served:
    """A kvgate whose two engines, fakes, have one slot, and the files by which a test has the first one fail."""

    def __init__(self, kvgate: Kvgate, folder: Path) -> None:
        self.kvgate = kvgate
        self.slow, self.fails, self.pids = folder / "slow", folder / "fails", folder / "pids"

    def ask(self, model: str = "red", timeout: float = PATIENCE) -> httpx.Response:
        body = CHAT | {"model": model}
        return httpx.post(f"{self.kvgate.url}/v1/chat/completions", json=body, timeout=timeout, trust_env=False)

    def stream(self, tokens: int) -> str:
        """A streamed answer of the first engine."""
        body = CHAT | {"model": "red", "stream": True, "max_tokens": tokens, "ignore_eos": True}
        url = f"{self.kvgate.url}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=PATIENCE, trust_env=False).text

    def reload(self, *arguments: str) -> int:
        """`kvgate reload`: its exit code."""
        return subprocess.run([sys.executable, "-m", "gateway", "reload", *arguments], check=False).returncode

    def state(self, model: str = "red") -> dict[str, Any]:
        endpoints = self.kvgate.state()["endpoints"]
        return dict(endpoints[("red", "blue").index(model)])

    def starts(self) -> list[int]:
        """Process ids of the first engine's starts."""
        return [int(pid) for pid in self.pids.read_text().split()] if self.pids.exists() else []


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    python = made(tmp_path)

    @contextmanager
    def start(
        *args: str,
        names: Sequence[str] = ("red", "blue"),
        always: bool = False,
        patience: float = 30,
        idle: str = "stop",
        **more: Any,
    ) -> Iterator[Served]:
        fakes = [f"--fake-slow={tmp_path / 'slow'}", f"--fake-fails-by={tmp_path / 'fails'}"]
        fakes += [f"--fake-pids={tmp_path / 'pids'}", *args]
        on_demand = {"on_demand": True, "idle_stop": 1, "idle": idle, "group": "card"}
        models = [
            {
                "name": name,
                "tokenizer": "/nonexistent",
                "engine": {
                    "model": str(tmp_path / "model"),
                    "python": str(python),
                    "args": ["--load-format=dummy", *(fakes if name == "red" else ())],
                    "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
                    **({} if always else on_demand),
                },
            }
            for name in names
        ]
        admission = {"ttft_target": None, "queue": {"no_endpoint_ttl": patience}}
        config = tmp_path / "kvgate.yaml"
        config.write_text(yaml.safe_dump({"models": models, "admission": admission, **more}))
        with serving(tmp_path / "log", free_port(), "--config", str(config)) as kvgate:
            served = Served(kvgate, tmp_path)
            kvgate.wait_ready()
            yield served

    return start


def test_who_waits_for_an_engine_that_does_not_start_is_told_and_the_next_one_tries_again(
    launched: Callable[..., Any],
) -> None:
    with launched() as served:
        served.fails.write_text("ValueError: Cannot find any model weights with x")
        began = time.monotonic()
        refused = served.ask()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_endpoint")
        assert "does not start" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) > 0
        assert time.monotonic() - began < PATIENCE / 2
        assert len(served.starts()) == 2
        assert "Cannot find any model weights" in served.kvgate.log.read_text()
        served.fails.unlink()
        assert served.ask().status_code == 200


def test_an_engine_that_dies_while_it_starts_is_started_again(launched: Callable[..., Any]) -> None:
    with launched() as served:
        served.slow.write_text("60")

        async def killed() -> httpx.Response:
            asked = asyncio.create_task(asyncio.to_thread(served.ask))
            assert await asyncio.to_thread(eventually, served.starts)
            served.slow.unlink()
            os.kill(served.starts()[0], signal.SIGKILL)
            return await asked

        assert asyncio.run(killed()).status_code == 200
        assert len(served.starts()) == 2


def test_a_start_whose_clients_have_left_gives_way_to_one_that_is_waited_for(launched: Callable[..., Any]) -> None:
    with launched("--fake-loads") as served:
        with pytest.raises(httpx.ReadTimeout):
            served.ask(timeout=1.5)
        assert served.state()["state"] == "starting"
        assert served.ask("blue").status_code == 200
        assert served.state()["state"] == "stopped"


def test_a_start_that_takes_far_longer_than_the_last_is_not_waited_for_and_the_time_to_come_back_is_true(
    launched: Callable[..., Any],
) -> None:
    with launched(patience=2) as served:
        served.slow.write_text("0")
        assert eventually(lambda: served.ask().status_code == 200)
        assert eventually(lambda: served.state()["state"] == "stopped")
        took = served.state()["ready_in_seconds"]
        served.slow.write_text(str(3 * took + 6))
        began = time.monotonic()
        refused = served.ask()
        waited = time.monotonic() - began
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_endpoint")
        assert waited == pytest.approx(max(2, 2 * took), abs=1.5)
        assert int(refused.headers["retry-after"]) >= waited - took - 1
        assert served.state()["ready_in_seconds"] < 0
        assert eventually(lambda: served.ask().status_code == 200)


def test_several_workers_ask_one_owner_for_their_engines(launched: Callable[..., Any]) -> None:
    with launched(server={"workers": 2}) as served:
        for model in ("red", "blue", "red"):
            assert served.ask(model).status_code == 200
            metrics = httpx.get(f"{served.kvgate.url}/metrics", trust_env=False).text
            assert f'kvgate_endpoint_state{{endpoint="{served.state(model)["id"]}",state="up"}} 1.0' in metrics


def test_an_owner_that_dies_while_an_engine_starts_is_followed_by_one_that_starts_none_beside_it(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with launched(server={"workers": 2}) as served:
        served.slow.write_text("6")

        async def asked() -> tuple[httpx.Response, int, httpx.Response]:
            async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:

                def ask(model: str) -> asyncio.Task[httpx.Response]:
                    url = f"{served.kvgate.url}/v1/chat/completions"
                    return asyncio.create_task(client.post(url, json=CHAT | {"model": model}))

                first = ask("red")
                assert await asyncio.to_thread(eventually, served.starts)
                blue = ask("blue")
                await asyncio.sleep(0.3)
                red = ask("red")
                await asyncio.sleep(0.3)
                first.cancel()  # the next owner hears that the other engine has been waited for longer
                await asyncio.sleep(0.3)
                os.kill(Workers(served.kvgate, tmp_path, []).owner(), signal.SIGKILL)
                answer = await red
                return answer, starts(served.kvgate), await blue

        red, until_then, blue = asyncio.run(asked())
        assert (red.status_code, until_then, blue.status_code) == (200, 1, 200)
        assert len(served.starts()) == 1


def is_stopped(served: Served) -> bool:
    return served.state()["state"] == "stopped"


def asleep(served: Served) -> int:
    """The process of the first engine, which has served a request, and sleeps."""
    assert served.ask().status_code == 200
    assert eventually(lambda: httpx.get(f"{served.state()['url']}/is_sleeping", trust_env=False).json()["is_sleeping"])
    (pid,) = served.starts()
    assert is_stopped(served)
    return pid


def test_an_engine_that_sleeps_leaves_its_card_to_another_and_wakes_for_its_next_request(
    launched: Callable[..., Any],
) -> None:
    with launched(idle="sleep") as served:
        served.slow.write_text("2")
        pid = asleep(served)
        assert served.ask("blue").status_code == 200
        assert is_alive(pid)
        assert served.ask().status_code == 200
        assert served.starts() == [pid]
        # The next one waits until it is awake, and for no start.
        assert eventually(lambda: is_stopped(served) and served.state()["ready_in_seconds"] < 2)
        asked = httpx.post(f"{served.kvgate.url}/wake_up", trust_env=False)
        assert (asked.status_code, asked.json()["error"]["code"]) == (404, "not_found"), "it is not for clients"
    assert eventually(lambda: not is_alive(pid))


def test_one_that_cannot_sleep_ends(launched: Callable[..., Any]) -> None:
    with launched("--sleep=fails", idle="sleep") as served:
        assert served.ask().status_code == 200
        (pid,) = served.starts()
        assert eventually(lambda: is_stopped(served) and not is_alive(pid))
        assert "engine red: it cannot sleep, so it ends" in served.kvgate.log.read_text()
        assert served.ask().status_code == 200
        assert len(served.starts()) == 2


def test_one_that_does_not_wake_is_started_again(launched: Callable[..., Any]) -> None:
    with launched(idle="sleep") as served:
        pid = asleep(served)
        httpx.post(f"{served.state()['url']}/fake/sleepless", trust_env=False)
        assert served.ask().status_code == 200
        assert not is_alive(pid)
        assert len(served.starts()) == 2


def test_one_that_dies_while_it_sleeps_does_not_come_back_before_it_is_wanted(launched: Callable[..., Any]) -> None:
    with launched(idle="sleep") as served:
        pid = asleep(served)
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: "engine red: stopped" in served.kvgate.log.read_text())
        assert served.ask("blue").status_code == 200
        assert served.starts() == [pid]
        assert served.ask().status_code == 200
        assert len(served.starts()) == 2


STEP = 0.1


@contextmanager
def handing_over(served: Served, *arguments: str) -> Iterator[Future[str]]:
    """While a stream of 14 s runs on the first engine, a reload has another gateway take over."""
    with ThreadPoolExecutor() as threads:
        stream = threads.submit(served.stream, int(14 / STEP))
        assert eventually(lambda: served.kvgate.state()["endpoints"][0]["in_flight"] == 1)
        reload = threads.submit(served.reload, *arguments)
        assert eventually(lambda: "takes over from" in served.kvgate.log.read_text())
        yield stream
        assert reload.result() == 0


def test_a_stream_in_a_gateway_that_is_replaced_keeps_its_engine_though_another_is_waited_for(
    launched: Callable[..., Any],
) -> None:
    with launched(f"--step-seconds={STEP}") as served:
        assert served.ask().status_code == 200
        with handing_over(served, "--set", "counting.threads=3") as stream:
            assert served.ask("blue").status_code == 200
            assert stream.result().endswith("data: [DONE]\n\n")


def test_a_changed_engine_does_not_start_beside_the_one_that_it_replaces(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with launched(f"--step-seconds={STEP}") as served:
        assert served.ask().status_code == 200
        changed = yaml.safe_load((tmp_path / "kvgate.yaml").read_text())
        changed["models"][0]["engine"]["args"].append("--max-num-seqs=50")
        (tmp_path / "kvgate.yaml").write_text(yaml.safe_dump(changed))
        with handing_over(served) as stream:
            assert served.ask().status_code == 200
            assert [is_alive(pid) for pid in served.starts()] == [False, True]
            assert stream.result().endswith("data: [DONE]\n\n")


def test_what_waits_is_answered_though_a_reload_changes_the_engines(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with launched("--max-num-seqs=1", "--step-seconds=0.02") as served:
        assert served.ask().status_code == 200
        changed = yaml.safe_load((tmp_path / "kvgate.yaml").read_text())
        for model in changed["models"]:
            model["engine"]["idle_stop"] = 2
        (tmp_path / "kvgate.yaml").write_text(yaml.safe_dump(changed))
        with ThreadPoolExecutor() as threads:
            waiting = [threads.submit(served.stream, 50) for _ in range(6)]
            assert eventually(lambda: served.kvgate.state()["endpoints"][0]["in_flight"] == 1)
            other = threads.submit(served.ask, "blue")
            assert served.reload() == 0
            assert all(stream.result().endswith("data: [DONE]\n\n") for stream in waiting)
            assert other.result().status_code == 200


def test_a_reload_that_brings_the_first_engine_on_demand_keeps_the_streams_of_another(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with launched(f"--step-seconds={STEP}", names=["red"], always=True) as served:
        changed = yaml.safe_load((tmp_path / "kvgate.yaml").read_text())
        (red,) = changed["models"]
        changed["models"].append(red | {"name": "blue", "engine": red["engine"] | {"on_demand": True}})
        (tmp_path / "kvgate.yaml").write_text(yaml.safe_dump(changed))
        with handing_over(served) as stream:
            assert served.ask().status_code == 200
        assert stream.result().endswith("data: [DONE]\n\n")
        assert served.ask("blue").status_code == 200


def test_a_model_that_comes_into_a_group_waits_for_its_turn_and_restarts_no_engine(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with launched(f"--step-seconds={STEP}", names=["red"]) as served:
        assert served.ask().status_code == 200
        changed = yaml.safe_load((tmp_path / "kvgate.yaml").read_text())
        (red,) = changed["models"]
        red["engine"] |= {"group": "another", "idle_stop": 30}
        changed["models"].append(red | {"name": "blue"})
        (tmp_path / "kvgate.yaml").write_text(yaml.safe_dump(changed))
        with handing_over(served) as stream:
            assert served.ask("blue").status_code == 200
            assert stream.result().endswith("data: [DONE]\n\n")
        assert [is_alive(pid) for pid in served.starts()] == [False, True], "each once, one after the other"


def test_what_waits_for_an_engine_is_answered_though_a_reload_removes_the_one_in_its_place(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with launched(f"--step-seconds={STEP}") as served, ThreadPoolExecutor() as threads:
        assert served.ask().status_code == 200
        stream = threads.submit(served.stream, int(4 / STEP))
        assert eventually(lambda: served.kvgate.state()["endpoints"][0]["in_flight"] == 1)
        waiting = threads.submit(served.ask, "blue")
        changed = yaml.safe_load((tmp_path / "kvgate.yaml").read_text())
        del changed["models"][0]
        (tmp_path / "kvgate.yaml").write_text(yaml.safe_dump(changed))
        assert served.reload() == 0
        assert stream.result().endswith("data: [DONE]\n\n")
        assert waiting.result().status_code == 200
        assert served.ask().status_code == 404


def test_one_that_is_to_run_always_and_does_not_start_takes_turns_as_before(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with launched() as served:
        assert served.ask().status_code == 200
        changed = yaml.safe_load((tmp_path / "kvgate.yaml").read_text())
        engine = changed["models"][0]["engine"]
        for setting in ("on_demand", "idle_stop", "idle", "group"):
            del engine[setting]
        engine |= {
            "reload": "in_place",
            "max_restarts": 1,
            "args": [*engine["args"], "--fake-fails=ValueError: no room"],
        }
        (tmp_path / "kvgate.yaml").write_text(yaml.safe_dump(changed))
        assert served.reload() == 1
        assert served.ask().status_code == 200
        assert served.ask("blue").status_code == 200
        assert not any(map(is_alive, served.starts())), "the other one has the slot"
        engine["args"].pop()
        (tmp_path / "kvgate.yaml").write_text(yaml.safe_dump(changed))
        assert served.reload() == 0, "though the engine that it replaces does not run"
        assert served.ask().status_code == 200
        assert served.ask("blue").status_code == 200
        assert is_alive(served.starts()[-1])
