"""Clients that leave, and clients that do not read."""

import asyncio
import json

import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import APIS, CHAT, RESPONSES, body, gateway, http, raw, until

AT_ONCE = 0.1
"""Seconds from a client's departure until the endpoint's connection is closed."""


async def asked(kvgate, path=CHAT, **fields):
    return await raw(kvgate.port, http(path, json.dumps(body(path, **fields)).encode()))


def generations(fake):
    return [request for request in fake.seen if request.path in APIS]


async def left_at_once(fake, writer, number=0):
    """Leave, and measure how long the fake's connection outlives us."""
    clock = asyncio.get_running_loop().time
    gone_at = clock()
    writer.close()
    await until(lambda: generations(fake)[number].client_gone_at is not None)
    return generations(fake)[number].client_gone_at - gone_at


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_takes_its_request_with_it(streamed):
    """In the middle of a stream, of a long prefill, and of an answer that does not stream."""
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake, gateway(fake) as kvgate:
        for number, path in enumerate(APIS):
            reader, writer = await asked(kvgate, path, stream=streamed, tokens=1500, ignore_eos=True)
            if streamed:
                while b" 3" not in await reader.readuntil(b"\n\n"):
                    pass
            else:
                await until(lambda: fake.scheduler.running)
            assert await left_at_once(fake, writer, number) < AT_ONCE
            await until(lambda: fake.scheduler.unfinished == 0)
        assert await kvgate.outcomes() == {"client_closed": len(APIS)}
        await kvgate.until_idle()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_half_closes_has_left_its_engine(streamed):
    """Nothing tells it from one that has gone, until something is written: ADR 21."""
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake, gateway(fake) as kvgate:
        for number, phase in enumerate(("waiting", "answering")):
            reader, writer = await asked(kvgate, stream=streamed, tokens=1500, ignore_eos=True)
            await until(lambda: fake.scheduler.running)
            if streamed and phase == "answering":
                await reader.readuntil(b" 3")
            clock = asyncio.get_running_loop().time
            ended_at = clock()
            writer.write_eof()
            await until(lambda n=number: generations(fake)[n].client_gone_at is not None)
            assert generations(fake)[number].client_gone_at - ended_at < AT_ONCE
            await until(lambda: fake.scheduler.unfinished == 0)
            await reader.read()
            writer.close()
        assert await kvgate.outcomes() == {"client_closed": 2}
        await kvgate.until_idle()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (http("/livez", b"", method="GET"), 200),
        (http("/metrics", b"", method="GET"), 200),
        (http("/kvgate/state", b"", method="GET"), 200),
        (http("/v1/models", b"", method="GET"), 200),
        (http("/nothing", b"", method="GET"), 404),
        (http(CHAT, b"", method="GET"), 405),
        (http(CHAT, b"no JSON"), 400),
        (http(CHAT, json.dumps(body(model="unknown")).encode()), 404),
    ],
)
async def test_a_client_that_half_closes_gets_what_takes_no_engine(request_, status):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        reader, writer = await asyncio.open_connection("127.0.0.1", kvgate.port)
        writer.write(request_ * 2)
        writer.write_eof()
        answers = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert answers.count(b"HTTP/1.1 %d " % status) == 2


async def test_a_response_is_known_from_its_first_event_on_and_after_its_client_left():
    async with FakeVllm(FakeSettings(step_seconds=0.01)) as fake, gateway(fake) as kvgate:
        reader, writer = await asked(kvgate, RESPONSES, stream=True, tokens=1500)
        event = b""
        while b"event: response.created" not in event:
            event = await reader.readuntil(b"\n\n")
        made = event.split(b'"id":"')[1].split(b'"')[0].decode()
        for left in (False, True):
            assert (await kvgate.client.get(f"/v1/responses/{made}")).status_code == 200, left
            if not left:
                await left_at_once(fake, writer)


async def test_a_client_that_leaves_during_the_prefill_is_noticed():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for number, kind in enumerate((FaultKind.SLOW_PREFILL, FaultKind.HANG_BEFORE_HEADERS)):
            fake.faults.add(Fault(kind, path=CHAT, seconds=30))
            _, writer = await asked(kvgate, stream=True)
            await until(lambda n=number: len(generations(fake)) > n)
            assert await left_at_once(fake, writer, number) < AT_ONCE
        assert await kvgate.outcomes() == {"client_closed": 2}
        await kvgate.until_idle()


async def test_a_client_that_leaves_the_queue_is_never_sent_to_an_endpoint():
    """One sequence fits: the second request waits, and leaves before its turn."""
    async with FakeVllm(FakeSettings(step_seconds=0.01)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        async with gateway(fake, models=models) as kvgate:
            first = asyncio.create_task(kvgate.post(tokens=60))
            await until(lambda: fake.scheduler.running)
            _, writer = await asked(kvgate, tokens=61)

            async def queued(depth):
                return (await kvgate.state())["queues"][0]["depth"] == depth

            await until(lambda: queued(1))
            writer.close()
            await until(lambda: queued(0))
            assert (await first).status_code == 200
            assert (await kvgate.post(tokens=3)).status_code == 200
            assert [json.loads(request.body)["max_tokens"] for request in generations(fake)] == [60, 3]
            assert await kvgate.outcomes() == {"completed": 2, "client_closed": 1}
            await kvgate.until_idle()


async def test_a_client_that_leaves_while_it_is_counted_is_forgotten():
    class SlowToCount(FakeVllm):
        def _on_request(self, connection, seen):
            if seen.path == "/tokenize":
                counting.set()
            else:
                super()._on_request(connection, seen)

    counting = asyncio.Event()
    async with SlowToCount() as fake, gateway(fake) as kvgate:
        _, writer = await asked(kvgate)
        await counting.wait()
        writer.close()

        async def closed():
            return await kvgate.outcomes() == {"client_closed": 1}

        await until(closed)
        assert generations(fake) == []


async def test_a_client_that_leaves_half_way_through_its_body_is_forgotten():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        request = http(CHAT, json.dumps(body()).encode())
        _, writer = await raw(kvgate.port, request[:-10])
        await until(lambda: kvgate.application._gateway.active == 1)
        writer.close()

        async def closed():
            return await kvgate.outcomes() == {"client_closed": 1}

        await until(closed)
        assert generations(fake) == []


async def test_a_client_that_does_not_read_is_not_the_endpoints_fault(monkeypatch):
    """It must neither count as a hang of its endpoint, nor be kept for ever."""
    monkeypatch.setattr("gateway.relay.flights.SWEEP_INTERVAL", 0.1)
    monkeypatch.setattr("gateway.server.server.STALLED", 600.0)  # which would end it, too
    slow = {"health": {"interval": 0.1, "hung_after": 0.6}, "upstream": {"idle_timeout": 1.2}}
    async with FakeVllm(FakeSettings(step_seconds=0)) as fake, gateway(fake, **slow) as kvgate:
        fake.faults.add(Fault(FaultKind.GIGANTIC, after=2, size=16 << 20, path=CHAT))
        _, writer = await asyncio.open_connection("127.0.0.1", kvgate.port)
        writer.transport.pause_reading()
        writer.write(http(CHAT, json.dumps(body(stream=True)).encode()))
        states = set()

        async def given_up():
            states.update(endpoint["state"] for endpoint in (await kvgate.state())["endpoints"])
            return await kvgate.outcomes() == {"client_closed": 1}

        await until(given_up)
        writer.close()
        assert states == {"up"}
        assert (await kvgate.post()).status_code == 200
        await kvgate.until_idle()
