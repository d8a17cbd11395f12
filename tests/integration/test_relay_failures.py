"""Endpoints that fail, before and after the client has seen anything."""

import asyncio
import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import (
    APIS,
    CHAT,
    MESSAGES,
    RESPONSES,
    WITH_DONE,
    body,
    events,
    fake_processes,
    gateway,
    last_error,
    until,
)

pytestmark = pytest.mark.slow

UNSEEN = (FaultKind.CLOSE_BEFORE_ANSWER, FaultKind.STATUS, FaultKind.BUSY_IN_STREAM, FaultKind.ENGINE_DEATH)
"""Failures of which the client need not hear: another endpoint, or a later try, makes up for them."""
MIDWAY = (FaultKind.RESET_MID_STREAM, FaultKind.TRUNCATED, FaultKind.ENGINE_DEATH, FaultKind.NO_FINISH)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Timeouts of tenths of a second are looked at as often."""
    monkeypatch.setattr("gateway.relay.flights.SWEEP_INTERVAL", 0.05)


def generations(*fakes):
    return [request for fake in fakes for request in fake.seen if request.path in APIS]


async def endpoint_states(kvgate):
    return [endpoint["state"] for endpoint in (await kvgate.state())["endpoints"]]


async def all_up(kvgate):
    return set(await endpoint_states(kvgate)) == {"up"}


def for_whoever_is_first(*fakes):
    """One plan of faults for all of them: a fault strikes whichever gets the next request."""
    for fake in fakes:
        fake.faults = fakes[0].faults
    return fakes[0].faults


@contextlib.asynccontextmanager
async def proxied(fake):
    """A TCP proxy in front of a fake, as a Service is; yields it and what lets it take new connections, or not."""

    async def pass_on(reader, writer):
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
        writer.close()

    writers, served = set(), set()

    async def connected(reader, writer):
        served.add(asyncio.current_task())
        there, back = await asyncio.open_connection("127.0.0.1", int(fake.url.rpartition(":")[2]))
        writers.update((writer, back))
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def takes(connections):
        nonlocal server
        if connections:
            server = await asyncio.start_server(connected, "127.0.0.1", port, reuse_address=True)
        else:
            server.close()

    try:
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}", seen=fake.seen), takes
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*served, return_exceptions=True)  # or a later test would find their sockets open


async def test_what_still_moves_is_not_sent_again_although_no_new_connection_is_taken():
    settings, health = FakeSettings(step_seconds=0.02, output_tokens=1000), {"interval": 0.2}
    async with FakeVllm(settings) as fake, proxied(fake) as (proxy, takes), gateway(proxy, health=health) as kvgate:
        asked = [asyncio.create_task(kvgate.post(tokens=1000)) for _ in range(2)]
        async with kvgate.client.stream("POST", CHAT, json=body(tokens=1000, stream=True)) as streamed:
            pieces = streamed.aiter_text()
            text = await anext(pieces)  # a first token: from now on kvgate knows that the engine moves
            await until(lambda: _all_generate(fake, 3))
            for _ in range(2):
                await takes(False)
                await until(lambda: _is(kvgate, "down"))
                await asyncio.sleep(0.8)  # four probes
                await takes(True)
                await until(lambda: _is(kvgate, "up"))
            assert not any(one.done() for one in asked)
            fake.settings = replace(settings, step_seconds=0.001)
            text += "".join([piece async for piece in pieces])
        assert events(text)[-1] == "data: [DONE]"
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 2
        assert len(generations(fake)) == 3


async def _all_generate(fake, count):
    return len(generations(fake)) == count


async def _is(kvgate, state):
    return await endpoint_states(kvgate) == [state]


@pytest.mark.parametrize("kind", UNSEEN)
async def test_a_failure_nobody_has_seen_goes_to_another_endpoint(kind):
    async with FakeVllm() as one, FakeVllm() as two, gateway(one, two) as kvgate:
        faults = for_whoever_is_first(one, two)
        asked = [(path, streamed) for path in APIS for streamed in (True, False)]
        if kind is FaultKind.BUSY_IN_STREAM:
            asked = [(path, True) for path in APIS if path != RESPONSES]  # there vLLM tears the body
        for path, streamed in asked:
            faults.add(Fault(kind, path=path, status=500))
            answer = await kvgate.post(path, stream=streamed)
            assert answer.status_code == 200, (path, streamed)
            assert "rror" not in answer.text.replace('"error":null', ""), (path, streamed)
            assert len(generations(one, two)) == 2, (path, streamed)
            if kind is not FaultKind.BUSY_IN_STREAM:  # who was busy may have room again by then
                assert len(generations(one)) == 1, (path, streamed)
            if kind is FaultKind.ENGINE_DEATH:  # the fake says it is dead, and lives
                await until(lambda: all_up(kvgate))
            assert set(await endpoint_states(kvgate)) == {"up"}
            one.seen.clear()
            two.seen.clear()
        assert await kvgate.outcomes() == {"completed": len(asked)}


class Dying(FakeVllm):
    """Closes connections of requests, and says that it is ill when it is asked."""

    dying, said_so = False, 0

    def _on_request(self, connection, seen):
        if self.dying and seen.path in APIS:
            connection.close()
        elif self.dying and seen.path == "/health":
            self.said_so += 1
            connection.respond(503, b"")
        else:
            super()._on_request(connection, seen)


async def test_a_request_is_not_sent_again_to_an_engine_that_is_just_dying():
    async with Dying() as fake, gateway(fake) as kvgate:
        await until(lambda: all_up(kvgate))
        fake.dying = True
        answer = asyncio.create_task(kvgate.post(stream=True))
        await until(lambda: fake.said_so > 0)
        fake.dying = False
        assert (await answer).status_code == 200
        assert await kvgate.outcomes() == {"completed": 1}


@pytest.mark.parametrize("path", WITH_DONE)
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_abort_nobody_has_seen_goes_to_another_endpoint(path, streamed):
    async with FakeVllm() as one, FakeVllm() as two, gateway(one, two) as kvgate:
        for_whoever_is_first(one, two).add(Fault(FaultKind.ABORT, path=path))
        answer = await kvgate.post(path, stream=streamed)
        assert answer.status_code == 200
        assert "abort" not in answer.text
        assert (len(generations(one)), len(generations(two))) == (1, 1)
        assert sorted(await endpoint_states(kvgate)) == ["refusing", "up"], "an engine that aborts is shutting down"


async def test_a_busy_engine_is_waited_for_and_not_called_ill():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for path in APIS:
            for kind in (FaultKind.STATUS, FaultKind.BUSY_IN_STREAM):
                if path == RESPONSES and kind is FaultKind.BUSY_IN_STREAM:
                    continue  # there vLLM tears the body
                fake.seen.clear()
                fake.faults.add(Fault(kind, path=path, times=2))
                answer = await kvgate.post(path, stream=kind is FaultKind.BUSY_IN_STREAM)
                assert answer.status_code == 200
                assert len(generations(fake)) == 3
                assert await endpoint_states(kvgate) == ["up"]


async def test_a_request_that_two_endpoints_fail_on_is_not_given_to_a_third():
    async with FakeVllm() as one, FakeVllm() as two, FakeVllm() as three, gateway(one, two, three) as kvgate:
        for fake in (one, two, three):
            fake.faults.add(Fault(FaultKind.CLOSE_BEFORE_ANSWER, path=CHAT))
        answer = await kvgate.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
        assert len(generations(one, two, three)) == 2
        assert await kvgate.outcomes() == {"upstream_error": 1}


async def test_a_storm_of_errors_is_passed_on_and_not_doubled(monkeypatch):
    monkeypatch.setattr("gateway.pools.retry_budget.WINDOW", 1000.0)  # however slow the machine is
    monkeypatch.setattr("gateway.pools.retry_budget.ALWAYS", 0.01)
    async with FakeVllm() as one, FakeVllm() as two, FakeVllm() as three, gateway(one, two, three) as kvgate:
        for fake in (one, two, three):
            fake.faults.add(Fault(FaultKind.STATUS, path=CHAT, status=500, times=1000))
        answers = [answer for _ in range(5) for answer in await asyncio.gather(*(kvgate.post() for _ in range(20)))]
        assert {answer.status_code for answer in answers} == {502}
        sent = len(generations(one, two, three))
        assert 110 < sent <= 100 + 0.2 * 100 + 10
        withheld = [
            answer for answer in answers if "too many requests are failing" in answer.json()["error"]["message"]
        ]
        assert len(withheld) == 200 - sent
        assert withheld[0].json()["error"]["message"].startswith("The endpoint answered 500: ")
        metrics = (await kvgate.client.get("/metrics")).text
        assert f'kvgate_retries_total{{model="fake",sent="true"}} {sent - 100}.0' in metrics
        assert f'kvgate_retries_total{{model="fake",sent="false"}} {200 - sent}.0' in metrics


@pytest.mark.parametrize("kind", [FaultKind.CLOSE_BEFORE_ANSWER, FaultKind.ENGINE_DEATH, FaultKind.ABORT])
async def test_what_went_down_with_its_engine_goes_elsewhere_whatever_the_budget(kind):
    upstream = {"retry_share": 0}
    async with FakeVllm() as dies, FakeVllm() as lives, gateway(dies, lives, upstream=upstream) as kvgate:
        dies.faults.add(Fault(kind, path=CHAT, times=1000))
        answers = await asyncio.gather(*(kvgate.post() for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert generations(dies)


@pytest.mark.parametrize("kind", MIDWAY)
async def test_a_stream_that_breaks_ends_with_an_error_of_its_protocol(kind):
    paths = [path for path in APIS if kind is not FaultKind.NO_FINISH or path in WITH_DONE]
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for path in paths:
            fake.seen.clear()
            fake.faults.add(Fault(kind, after=3, path=path))
            answer = await kvgate.post(path, stream=True, tokens=20)
            assert answer.status_code == 200
            assert " 1" in answer.text
            assert "[DONE]" not in answer.text
            assert "message_stop" not in answer.text
            error = last_error(answer.text)
            if path == MESSAGES:
                assert (error["type"], set(error["error"])) == ("error", {"type", "message"})
            elif path == RESPONSES:
                assert error["type"] == "error"
                assert {"code", "message", "param"} <= error.keys()
            else:
                assert {"message", "type", "param", "code"} <= error["error"].keys()
            assert len(generations(fake)) == 1, "what the client has seen a part of is never sent again"
        await kvgate.until_idle()
        assert await kvgate.outcomes() == {"upstream_error": len(paths)}


@pytest.mark.parametrize("path", WITH_DONE)
async def test_an_abort_in_the_middle_is_an_error_and_not_an_end(path):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        fake.faults.add(Fault(FaultKind.ABORT, after=3, path=path))
        answer = await kvgate.post(path, stream=True, tokens=20)
        assert "abort" not in answer.text
        assert last_error(answer.text)["error"]["code"] == "upstream_error"
        assert "[DONE]" not in answer.text


async def test_an_engines_own_error_is_passed_on_as_it_is():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        fake.faults.add(Fault(FaultKind.ENGINE_DEATH, after=3, path=CHAT))
        answer = await kvgate.post(stream=True, tokens=20)
        assert "EngineCore encountered an issue" in last_error(answer.text)["error"]["message"]


async def test_a_torn_event_is_ended_before_the_error():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        fake.faults.add(Fault(FaultKind.GIGANTIC, after=2, size=8 << 20, path=CHAT))
        request = asyncio.create_task(kvgate.post(stream=True, tokens=50))
        await until(lambda: generations(fake) and fake.scheduler.running and fake.scheduler.running[0].generated > 2)
        await fake.close()
        answer = (await request).text
        assert json.loads(events(answer)[-1][6:])["error"]["code"] == "upstream_error"
        assert "[DONE]" not in answer


async def test_a_whole_answer_torn_half_way_is_tried_again():
    async with FakeVllm() as one, FakeVllm() as two, gateway(one, two) as kvgate:
        for_whoever_is_first(one, two).add(Fault(FaultKind.RESET_MID_STREAM, path=CHAT))
        answer = await kvgate.post()
        assert answer.json()["usage"]["completion_tokens"] == 5


async def test_a_stream_without_done_but_with_its_finish_is_complete():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        fake.faults.add(Fault(FaultKind.NO_DONE, path=CHAT))
        answer = await kvgate.post(stream=True)
        assert '"finish_reason":"length"' in answer.text
        assert await kvgate.outcomes() == {"completed": 1}


async def test_a_connection_that_went_stale_costs_nobody_anything():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        assert (await kvgate.post()).status_code == 200
        fake.faults.add(Fault(FaultKind.STALE_KEEP_ALIVE, path=CHAT))
        assert (await kvgate.post()).status_code == 200
        first, stale, again = generations(fake)
        assert first.connection == stale.connection != again.connection
        assert stale.body == again.body
        assert await endpoint_states(kvgate) == ["up"]


async def test_an_engine_that_drops_a_request_whenever_it_comes_sees_it_twice_also_on_a_connection_used_before():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        assert (await kvgate.post()).status_code == 200
        fake.seen.clear()
        fake.faults.add(Fault(FaultKind.CLOSE_BEFORE_ANSWER, path=CHAT, times=9))
        answer = await kvgate.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
        assert len(generations(fake)) == 2


async def test_an_idle_connection_that_the_engine_closes_is_no_failure_of_it():
    async with FakeVllm(FakeSettings(keep_alive=0.05)) as fake, gateway(fake) as kvgate:
        for _ in range(5):
            assert (await kvgate.post()).status_code == 200
            await asyncio.sleep(0.05)  # now is when it closes
        assert len(generations(fake)) == 5
        assert await endpoint_states(kvgate) == ["up"]


async def test_an_engines_refusal_is_passed_on_and_not_tried_again():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        fake.faults.add(Fault(FaultKind.STATUS, status=422, path=CHAT))
        answer = await kvgate.post()
        assert (answer.status_code, answer.json()["error"]["message"]) == (422, "Injected.")
        assert len(generations(fake)) == 1
        assert await kvgate.outcomes() == {"endpoint_refused": 1}


async def test_an_engine_that_does_not_begin_is_given_up_in_time():
    timeouts = {"first_byte_timeout": 0.3}
    async with FakeVllm() as fake, gateway(fake, upstream=timeouts) as kvgate:
        fake.faults.add(Fault(FaultKind.HANG_BEFORE_HEADERS, path=CHAT, times=9))
        answer = await kvgate.post(stream=True)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
        await until(lambda: all(request.client_gone_at is not None for request in generations(fake)))
        await kvgate.until_idle()


async def test_an_engine_that_stops_in_the_middle_is_given_up_in_time():
    async with FakeVllm() as fake, gateway(fake, upstream={"idle_timeout": 0.1}) as kvgate:
        answers = {}
        for path in APIS:
            fake.faults.add(Fault(FaultKind.HANG_MID_STREAM, after=3, path=path))
            answers[path] = asyncio.create_task(kvgate.post(path, stream=True, tokens=20))
        for path, answer in answers.items():
            assert "sent nothing for too long" in events((await answer).text)[-1], path
        assert last_error(answers[CHAT].result().text)["error"]["code"] == "upstream_timeout"
        assert await kvgate.outcomes() == {"upstream_timeout": len(APIS)}
        await until(lambda: all(request.client_gone_at is not None for request in generations(fake)))
        await kvgate.until_idle()


async def test_a_relayed_request_is_given_up_in_time():
    class Silent(FakeVllm):
        def _on_request(self, connection, seen):
            if seen.path != "/tokenize":
                super()._on_request(connection, seen)

    async with Silent() as fake, gateway(fake, upstream={"first_byte_timeout": 0.2}) as kvgate:
        answer = await kvgate.client.post("/tokenize", json={"prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")


class Hung(FakeVllm):
    """Never answers embeddings."""

    embeddings = 0

    def _on_request(self, connection, seen):
        if seen.path == "/v1/embeddings":
            self.embeddings += 1
        else:
            super()._on_request(connection, seen)


async def test_relayed_requests_that_hang_hold_up_their_own_model_only_and_not_for_ever():
    settings = {"upstream": {"relay_concurrency": 2}, "admission": {"queue": {"ttl": 0.2}}}
    async with Hung() as hung, FakeVllm(FakeSettings(model="other")) as fake:
        models = [{"endpoints": [{"url": engine.url}], "tokenizer": "/nonexistent"} for engine in (hung, fake)]
        async with gateway(hung, fake, models=models, **settings) as kvgate:
            asked = {"model": "fake", "input": "x"}
            hanging = [asyncio.create_task(kvgate.client.post("/v1/embeddings", json=asked)) for _ in range(2)]
            await until(lambda: hung.embeddings == 2)
            other = await kvgate.client.post("/tokenize", json={"model": "other", "prompt": "a b"})
            assert other.json()["count"] == 2
            answer = await kvgate.client.post("/tokenize", json={"model": "fake", "prompt": "a b"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_timeout")
            assert int(answer.headers["retry-after"]) >= 1
            made = (await kvgate.post(RESPONSES)).json()["id"]
            assert (await kvgate.client.get(f"/v1/responses/{made}")).status_code == 200, "no cap holds it up"
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)

            async def free():
                answer = await kvgate.client.post("/tokenize", json={"model": "fake", "prompt": "a b"})
                return answer.status_code == 200

            await until(free)


class Slow(FakeVllm):
    """Answers embeddings when it is told to, one at a time, in their order of arrival."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def _on_request(self, connection, seen):
        if seen.path == "/v1/embeddings":
            self.asked.append((connection, seen.header("x-flow")))
        else:
            super()._on_request(connection, seen)

    def answer(self):
        connection, _ = self.asked.pop(0)
        connection.respond(200, b"{}")


async def test_a_flow_with_many_relayed_requests_leaves_the_next_place_to_another():
    settings = {"upstream": {"relay_concurrency": 2}, "server": {"trusted_flow_header": "x-flow"}}
    async with Slow() as slow, gateway(slow, **settings) as kvgate:

        def ask(flow):
            body = {"model": "fake", "input": "x"}
            return asyncio.create_task(kvgate.client.post("/v1/embeddings", json=body, headers={"x-flow": flow}))

        asked = [ask("many") for _ in range(6)]
        await until(lambda: len(slow.asked) == 2 and kvgate.application._gateway.active == 6)
        asked.append(ask("one"))
        await until(lambda: kvgate.application._gateway.active == 7)
        slow.answer()
        await until(lambda: len(slow.asked) == 2)
        assert slow.asked[-1][1] == "one"
        while not all(task.done() for task in asked):
            await until(lambda: slow.asked or all(task.done() for task in asked))
            if slow.asked:
                slow.answer()
        assert {task.result().status_code for task in asked} == {200}


UNREACHABLE = [{"endpoints": [{"url": "http://127.0.0.1:9"}], "tokenizer": "/nonexistent"}]


ONE_MAY_WAIT = {"queue": {"max_requests": 1}}


async def one_that_waits(kvgate, path):
    """A request that waits for the first endpoint: another one has found no place."""
    both = [asyncio.create_task(kvgate.post(path)) for _ in range(2)]
    _, (waiting,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    return waiting


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_who_waits_for_the_first_endpoint_is_told_of_a_shutdown_at_once(path):
    async with gateway(models=UNREACHABLE, admission=ONE_MAY_WAIT, ready=False) as kvgate:
        waiting = await one_that_waits(kvgate, path)
        async with asyncio.timeout(60):
            await kvgate.application.drain(600)
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


async def test_who_waits_for_the_first_endpoint_as_a_hand_over_runs_out_of_time_is_sent_to_the_successor():
    async with gateway(models=UNREACHABLE, admission=ONE_MAY_WAIT, ready=False) as kvgate:
        waiting = await one_that_waits(kvgate, CHAT)
        await kvgate.application.hand_over(0.1)
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


async def test_who_waits_or_runs_as_a_hand_over_runs_out_of_time_is_sent_to_the_successor():
    async with FakeVllm(FakeSettings(step_seconds=0.02)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        async with gateway(fake, models=models) as kvgate:
            running = asyncio.create_task(kvgate.post(tokens=100))
            await until(lambda: asyncio.sleep(0, fake.scheduler.unfinished == 1))
            waiting = asyncio.create_task(kvgate.post())
            await until(lambda: asyncio.sleep(0, kvgate.application._gateway.active == 2))
            await kvgate.application.hand_over(0.1)
            for answer in (await waiting, await running):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


async def test_so_many_wait_for_the_first_endpoint_and_no_more():
    async with gateway(models=UNREACHABLE, admission=ONE_MAY_WAIT, ready=False) as kvgate:
        waiting = await one_that_waits(kvgate, CHAT)
        for path in (CHAT, "/tokenize"):
            answer = await kvgate.post(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert int(answer.headers["retry-after"]) >= 1
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_the_wait_for_the_first_endpoint_is_no_overhead():
    async with FakeVllm() as fake:
        await fake.refuse()
        async with gateway(fake, ready=False) as kvgate:
            waiting = asyncio.create_task(kvgate.post())
            await asyncio.sleep(1.1)
            await fake.listen()
            assert (await waiting).status_code == 200
            metrics = (await kvgate.client.get("/metrics")).text
            assert 'kvgate_overhead_seconds_bucket{le="1.0"} 1.0' in metrics


async def test_requests_wait_for_an_endpoint_to_come_back():
    async with FakeVllm() as fake, gateway(fake, admission=ONE_MAY_WAIT) as kvgate:
        await fake.refuse()

        async def down():
            return await endpoint_states(kvgate) == ["down"]

        await until(down)
        waiting = await one_that_waits(kvgate, CHAT)
        await fake.listen()
        assert (await waiting).status_code == 200


async def test_nobody_waits_for_ever_for_an_endpoint():
    queue = {"queue": {"no_endpoint_ttl": 0.2}}
    async with FakeVllm() as fake, gateway(fake, admission=queue) as kvgate:
        await fake.refuse()

        async def down():
            return await endpoint_states(kvgate) == ["down"]

        await until(down)
        answer = await kvgate.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_endpoint")
        assert int(answer.headers["retry-after"]) >= 1
        relayed = await kvgate.client.post("/tokenize", json={"prompt": "x"})
        assert (relayed.status_code, relayed.json()["error"]["code"]) == (503, "no_endpoint")


async def test_an_endpoint_that_was_never_there_is_not_an_unknown_model():
    queue = {"queue": {"no_endpoint_ttl": 0.2}}
    models = [{"endpoints": [{"url": "http://127.0.0.1:9"}], "tokenizer": "/nonexistent"}]
    async with gateway(models=models, admission=queue, ready=False) as kvgate:
        answer = await kvgate.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_endpoint")
        assert (await kvgate.client.get("/readyz")).status_code == 503
        assert (await kvgate.client.get("/livez")).status_code == 200


async def test_kill_9_of_one_of_two_costs_only_what_had_started_on_it():
    """The fakes are processes: one is killed under load."""
    with fake_processes(2, "--step-seconds=0.01", "--num-blocks=2000") as engines:
        urls = [url for url, _ in engines]
        models = [{"endpoints": [{"url": url} for url in urls], "tokenizer": "/nonexistent"}]
        async with gateway(models=models) as kvgate:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=str(kvgate.client.base_url), limits=limits, timeout=30) as client:
                started = []

                async def one(number):
                    await asyncio.sleep(number * 0.01)
                    async with client.stream("POST", CHAT, json=body(tokens=60, stream=True)) as answer:
                        text = ""
                        async for piece in answer.aiter_text():
                            text += piece
                            started.append(number)
                        return answer.status_code, text

                load = [asyncio.create_task(one(number)) for number in range(100)]
                await until(lambda: len(set(started)) > 30)
                engines[0][1].kill()
                results = await asyncio.gather(*load)
            broken = [text for status, text in results if "[DONE]" not in text]
            assert [status for status, _ in results] == [200] * 100, "a request failed that had not started"
            assert broken, "nothing was on the engine when it died: the test tells nothing"
            assert all(" 0" in text and last_error(text)["error"]["code"] == "upstream_error" for text in broken)
            assert sorted(await endpoint_states(kvgate)) == ["down", "up"]
            await kvgate.until_idle()
            assert await kvgate.outcomes() == {"completed": 100 - len(broken), "upstream_error": len(broken)}


async def test_no_client_gets_the_web_page_that_a_proxy_answers_in_the_place_of_an_engine_that_is_gone():
    page = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>"
    gone = False

    async def proxy(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if gone:
                if head.startswith(b"POST"):
                    await reader.read(65_536)  # an answer before that resets the connection
                writer.write(page)
            else:
                there, back = await asyncio.open_connection("127.0.0.1", fake.port)
                with contextlib.closing(back):
                    back.write(head)
                    writer.write(await there.read())
            await writer.drain()

    async with FakeVllm() as fake, FakeVllm() as other:
        server = await asyncio.start_server(proxy, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        models = [{"endpoints": [{"url": url}, {"url": other.url}], "tokenizer": "/nonexistent"}]
        async with server, gateway(models=models) as kvgate:
            assert await all_up(kvgate)
            gone = True
            for streams in (True, False) * 4:
                assert "<html>" not in (await kvgate.post(stream=streams)).text

            async def is_down():
                return await endpoint_states(kvgate) == ["down", "up"]

            await until(is_down)
            assert [(await kvgate.post()).status_code for _ in range(4)] == [200] * 4
            await kvgate.until_idle()
