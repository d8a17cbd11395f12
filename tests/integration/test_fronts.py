"""Two fronts and their owner, each as in a process of its own, in front of a fake vLLM."""

import asyncio
import contextlib
import functools
import json
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.app.apart import FrontSpec
from gateway.app.application import Application
from gateway.app.owner_process import OwnerProcess
from gateway.config.settings import Settings
from gateway.tier.owner_link import Link
from gateway.tier.questions import ANSWERED_WITHIN
from gateway.upstream.interface import ConnectFailedError
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import CHAT, COMPLETIONS, body, events
from tests.until import PATIENCE, until


class Tier:
    """An owner that can be killed, and its fronts."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.path = folder / "owner.sock"
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.path))
        self.listening.listen()
        self.key = secrets.token_bytes(32)
        self.fronts: list[Application] = []
        self.clients: list[httpx.AsyncClient] = []
        self.owner: OwnerProcess | None = None

    async def own(self, fronts: int) -> None:
        """Start an owner that waits for so many fronts."""
        self.owner = OwnerProcess(self.settings, self.listening.dup(), fronts)
        await self.owner.start()

    async def lose(self) -> None:
        """End the owner, as a kill would: its sockets close."""
        assert self.owner is not None
        await self.owner.stop()
        self.owner = None

    async def join(self) -> None:
        """Start one more front."""
        spec = FrontSpec(len(self.fronts) + 1, self.path, self.key)
        front = Application(self.settings, spec=spec)
        await front.start()
        self.fronts.append(front)
        url = f"http://127.0.0.1:{front.port}"
        self.clients.append(httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False))  # noqa: S501

    async def state(self, front: int = 0) -> dict[str, Any]:
        return dict((await self.clients[front].get("/kvgate/state")).json())

    async def idle(self) -> bool:
        """Whether nothing is reserved or waits any more."""
        state = await self.state()
        (endpoint,), queues = state["endpoints"], state["queues"]
        return not endpoint["in_flight"] and not endpoint["kv"]["ledger"] and not any(q["depth"] for q in queues)

    async def metrics(self, front: int) -> dict[str, float]:
        """The samples of `/metrics` of a front, but for the times at which they were created."""
        text = (await self.clients[front].get("/metrics")).text
        lines = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#" and "_created" not in line)
        return {series: float(value) for series, _, value in lines}

    async def drop(self, front: int) -> None:
        """End a front in order; what it still carries is cut off."""
        await self.fronts[front].stop()

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()
        for front in self.fronts:
            await front.stop()
        if self.owner is not None:
            await self.owner.stop()
        self.listening.close()


@contextlib.asynccontextmanager
async def tier(fake: FakeVllm, folder: Path, *, fronts: int = 2, **sections: Mapping[str, Any]) -> AsyncIterator[Tier]:
    settings = Settings.model_validate(
        {
            "server": {"host": "127.0.0.1", "port": 0},
            "health": {"interval": 0.1},
            "counting": {"processes": 0},
            "log": {"access": False},
            "models": [{"endpoints": [{"url": fake.url}], "tokenizer": "/nonexistent"}],
            **sections,
        }
    )
    made = Tier(settings, folder)
    try:
        await made.own(fronts)
        for _ in range(fronts):
            await made.join()
        for number in range(fronts):

            async def ready(number: int = number) -> bool:
                return (await made.clients[number].get("/readyz")).is_success

            await until(ready)
        yield made
    finally:
        await made.close()


@pytest.fixture
async def fake() -> AsyncIterator[FakeVllm]:
    async with FakeVllm(FakeSettings(step_seconds=0.01)) as made:
        yield made


def two_at_once(fake: FakeVllm) -> dict[str, Any]:
    """Settings under which the endpoint takes two sequences."""
    return {"models": [{"endpoints": [{"url": fake.url, "max_num_seqs": 2}], "tokenizer": "/nonexistent"}]}


async def load(made: Tier) -> tuple[int, int]:
    """Requests in flight and waiting."""
    state = await made.state()
    return state["endpoints"][0]["in_flight"], state["queues"][0]["depth"]


def ask(made: Tier, front: int, *, tokens: int = 30, **fields: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(made.clients[front].post(CHAT, json=body(tokens=tokens, **fields)))


def _note(ended: list[int], number: int, _task: object) -> None:
    ended.append(number)


async def test_two_fronts_share_one_account_and_one_queue(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path, **two_at_once(fake)) as made:
        asked = [ask(made, number % 2) for number in range(6)]

        async def full() -> bool:
            return await load(made) == (2, 4)

        await until(full)
        assert (await made.state(0))["endpoints"][0]["in_flight"] == (await made.state(1))["endpoints"][0]["in_flight"]
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200] * 6
        await until(made.idle)


async def test_a_front_that_cannot_connect_keeps_no_other_from_the_endpoint(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made.fronts[0]._upstream, "_connect", _no_route)
            made.fronts[0]._upstream.forget(fake.url)
            ids = body(COMPLETIONS, tokens=30, prompt=[1, 2, 3])  # no engine need be asked for their number
            cut_off = asyncio.create_task(made.clients[0].post(COMPLETIONS, json=ids))

            async def waits() -> bool:
                return await load(made) == (0, 1)

            await until(waits)
            for _ in range(5):
                assert (await ask(made, 1, tokens=1)).status_code == httpx.codes.OK
                (endpoint,) = (await made.state())["endpoints"]
                assert (endpoint["state"], endpoint["gate"]["open"]) == ("up", True)
            assert not cut_off.done()
        assert (await cut_off).status_code == httpx.codes.OK
        await until(made.idle)


async def _no_route(*_: object) -> None:
    raise ConnectFailedError("no route to host")


async def test_a_stream_outlives_its_owner_and_the_next_one_knows_of_it(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path, **two_at_once(fake)) as made:
        running = [ask(made, front, tokens=300, stream=True) for front in (0, 1)]

        async def both() -> bool:
            return await load(made) == (2, 0)

        await until(both)
        await made.lose()
        waiting = ask(made, 0)
        await asyncio.sleep(0)
        await made.own(2)

        async def declared() -> bool:
            return await load(made) == (2, 1)

        await until(declared)
        assert not waiting.done(), "the two hold all the sequences there are"
        for answer in await asyncio.gather(*running):
            assert events(answer.text)[-1] == "data: [DONE]"
        assert (await waiting).status_code == httpx.codes.OK
        await until(made.idle)


async def test_what_waits_keeps_its_place_under_the_next_owner(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path, **two_at_once(fake)) as made:
        running = [ask(made, 0, tokens=150) for _ in range(2)]

        async def full() -> bool:
            return await load(made) == (2, 0)

        await until(full)
        ended: list[int] = []
        tasks = []
        for number in range(4):
            task = ask(made, number % 2, tokens=20 + number)
            task.add_done_callback(functools.partial(_note, ended, number))
            tasks.append(task)

            async def queued(depth: int = number + 1) -> bool:
                return await load(made) == (2, depth)

            await until(queued)
        await made.lose()
        await made.own(2)
        await asyncio.gather(*running, *tasks)
        assert [set(ended[:2]), set(ended[2:])] == [{0, 1}, {2, 3}]


async def test_what_a_lost_front_had_is_free_for_others(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path, **two_at_once(fake), admission={"ttft_target": None}) as made:
        lost = [ask(made, 1, tokens=2000, stream=True) for _ in range(3)]

        async def full() -> bool:
            return await load(made) == (2, 1)

        await until(full)
        other = ask(made, 0)

        async def queued() -> bool:
            return await load(made) == (2, 2)

        await until(queued)
        await made.drop(1)
        assert (await other).status_code == httpx.codes.OK
        await until(made.idle)
        for task in lost:
            task.cancel()
        await asyncio.gather(*lost, return_exceptions=True)


async def test_without_an_owner_nobody_waits_for_ever(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path, admission={"queue": {"no_endpoint_ttl": 0.3}}) as made:
        await made.lose()
        answer = await ask(made, 0)
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert answer.headers["x-kvgate-reason"] == "no_endpoint"
        await made.own(2)
        assert (await ask(made, 0)).status_code == httpx.codes.OK


async def test_who_waits_at_any_front_is_told_its_place_in_the_one_queue(tmp_path: Path) -> None:
    admission = {"ttft_target": None, "queue": {"heartbeat": 0.05}}
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        async with tier(fake, tmp_path, models=models, admission=admission) as made:
            running = ask(made, 0, tokens=400, ignore_eos=True)
            await until(lambda: fake.scheduler.running)
            fake.freeze()
            async with contextlib.AsyncExitStack() as waiting:
                reading = []  # who no longer reads has left
                for place, front in enumerate((0, 1, 0), 1):
                    stream = made.clients[front].stream("POST", CHAT, json=body(stream=True, tokens=5))
                    told = (await waiting.enter_async_context(stream)).aiter_lines()
                    reading.append(told)
                    async with asyncio.timeout(PATIENCE):
                        while not (line := await anext(told)).startswith(f": kvgate position={place}"):
                            assert line in ("", ": kvgate queued")
            fake.thaw()
            assert (await running).status_code == httpx.codes.OK
            await until(made.idle)


COMPLETED = 'kvgate_requests_total{model="fake",outcome="completed"}'


async def counted(made: Tier, front: int, requests: int) -> dict[str, float]:
    """The samples of a front's `/metrics` once these requests are counted: that is a moment after their answers."""

    async def all_counted() -> bool:
        return (await made.metrics(front)).get(COMPLETED) == requests

    await until(all_counted)
    return await made.metrics(front)


async def test_any_front_tells_the_figures_of_all(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        await asyncio.gather(*(ask(made, front) for front in (0, 0, 1)))
        for front in (0, 1):
            seen = await counted(made, front, 3)
            assert seen["kvgate_overhead_seconds_count"] == 3
            assert seen['kvgate_request_tokens_bucket{kind="output",le="+Inf",model="fake"}'] == 3
            assert seen["kvgate_fronts"] == 2
            assert [value for series, value in seen.items() if series.startswith("kvgate_build_info")] == [1]
            assert [value for series, value in seen.items() if series.startswith("kvgate_endpoint_healthy")] == [1]

        async def sampled() -> bool:
            return (await made.metrics(1)).get('kvgate_sequences_over_time_count{model="fake"}', 0) > 0

        await until(sampled)


async def test_any_front_tells_the_load_as_the_owner_knows_it_and_the_traces_of_all(
    fake: FakeVllm, tmp_path: Path
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with tier(fake, tmp_path) as made:
        made.clients[1].headers["traceparent"] = f"00-{trace}-00f067aa0ba902b7-01"
        await asyncio.gather(*(ask(made, front) for front in (0, 1)))
        assert (await counted(made, 0, 2))['kvgate_saturation{model="fake"}'] == 0
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        answer = await made.clients[0].get("/metrics", headers=accept)
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert [len(families[name].samples) for name in ("kvgate_saturation", "kvgate_backlog_seconds")] == [1, 1]
    overhead = families["kvgate_overhead_seconds"].samples
    assert [sample.exemplar.labels["trace_id"] for sample in overhead if sample.exemplar] == [trace]


async def test_what_a_front_counted_stays_when_it_goes(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        await asyncio.gather(*(ask(made, front) for front in (0, 1, 1)))
        await made.drop(1)  # nobody has asked for its figures yet: it leaves them as it goes
        assert (await counted(made, 0, 3))["kvgate_fronts"] == 1
        await made.join()
        await ask(made, 0)
        assert (await counted(made, 2, 4))["kvgate_fronts"] == 2


async def test_what_a_front_counted_stays_when_it_is_killed(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        await asyncio.gather(*(ask(made, front) for front in (0, 1, 1)))
        await counted(made, 0, 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Link, "send", lambda *_: None)  # it has no last word
            await made.drop(1)
        assert (await made.metrics(0))[COMPLETED] == 3


async def test_without_an_owner_a_front_tells_at_once_what_is_no_part_of_a_sum(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        await asyncio.gather(*(ask(made, front) for front in (0, 1, 1)))
        await counted(made, 0, 3)
        await made.lose()
        async with asyncio.timeout(ANSWERED_WITHIN / 2):
            seen = await made.metrics(0)
        assert [series.partition("{")[0] for series in seen if series.startswith("kvgate")] == ["kvgate_build_info"]
        assert not [series for series in seen if series.endswith(("_total", "_count", "_sum"))]
        assert "process_open_fds" not in seen
        await made.own(2)
        assert (await counted(made, 0, 3))["kvgate_fronts"] == 2


async def test_the_state_says_who_answers_and_who_decides(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        first, second = (await made.state(0))["tier"], (await made.state(1))["tier"]
        shown = {"role": "front", "id": "1", "owner": second["owner"], "members": ["1", "2"]}
        assert {name: value for name, value in first.items() if value is not None} == shown
        assert (second["role"], second["id"]) == ("front", "2")
        await made.lose()
        await made.own(2)
        assert (await made.state(0))["tier"]["owner"] not in {None, second["owner"]}


async def test_any_front_explains_and_drains(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        explained = (await made.clients[1].post("/kvgate/explain", json=body())).json()
        assert explained["decision"]["verdict"] == "dispatch"
        endpoint = (await made.state())["endpoints"][0]["id"]
        drained = await made.clients[1].post(f"/kvgate/endpoints/{endpoint}/drain")
        assert (drained.status_code, drained.json()["state"]) == (200, "draining")

        assert (await made.clients[0].post("/kvgate/endpoints/nobody:1/drain")).status_code == httpx.codes.NOT_FOUND
        await made.clients[0].post(f"/kvgate/endpoints/{endpoint}/undrain")
        assert (await ask(made, 1)).status_code == httpx.codes.OK


async def test_any_front_shows_the_owners_picture(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        assert (await ask(made, 0)).status_code == httpx.codes.OK
        broadcast = made.fronts[1]._broadcast

        async def told() -> bool:
            picture = await made.fronts[1]._core.picture(0.0)
            return [request.outcome for request in picture.requests] == ["completed"] and bool(picture.points)

        await until(told)
        async with made.clients[1].stream("GET", "/kvgate/events") as events:
            lines = events.aiter_lines()
            assert await anext(lines) == "event: snapshot"
            picture = json.loads((await anext(lines)).removeprefix("data: "))
            assert picture["models"][0]["outcomes"] == {"completed": 1}
            assert picture["endpoints"][0]["healthy"]
            await made.lose()
            while await anext(lines) != "event: silence":
                pass
            await made.own(2)
            while await anext(lines) != "event: snapshot":
                pass
        await until(lambda: not broadcast.readers)


async def test_a_drained_endpoint_stays_so_under_the_next_owner(fake: FakeVllm, tmp_path: Path) -> None:
    async with tier(fake, tmp_path) as made:
        endpoint = (await made.state())["endpoints"][0]["id"]
        await made.clients[0].post(f"/kvgate/endpoints/{endpoint}/drain")
        await made.lose()
        await made.own(2)

        async def probed() -> bool:
            return (await made.state())["endpoints"][0]["scrape_age_seconds"] is not None

        await until(probed)
        assert (await made.state())["endpoints"][0]["state"] == "draining"
        await made.clients[1].post(f"/kvgate/endpoints/{endpoint}/undrain")
        assert (await ask(made, 0)).status_code == httpx.codes.OK
