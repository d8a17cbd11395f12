"""Engines that say nothing: which of them hang, and what becomes of what they were sent (docs/adr/0017).

kvgate and its engines are processes of their own, on this machine, where the processor time of an engine can be seen.
"""

import asyncio
import contextlib
import signal
import time

import httpx
import pytest
import yaml

from tests.clock import unhindered
from tests.integration.kvgate import serving
from tests.integration.relaying import CHAT, body, fake_processes, until
from tests.ports import free_port
from tests.until import PATIENCE

pytestmark = pytest.mark.slow

HUNG_AFTER = 1.0
POISON = "poison"
SILENT_ON_POISON = {"kind": "hang_before_headers", "path": CHAT, "times": 99, "contains": POISON}


class Setup:
    """A kvgate over fakes, and a client of all of them."""

    def __init__(self, kvgate, engines, client):
        self.kvgate = kvgate
        self.engines = engines
        self.urls = [url for url, _ in engines]
        self.client = client

    async def ask(self, text="one two", **fields):
        asked = body(stream=True, **fields) | {"messages": [{"role": "user", "content": text}]}
        return await self.client.post(f"{self.kvgate.url}{CHAT}", json=asked)

    async def tell(self, url, control, value=None):
        (await self.client.post(f"{url}{control}", json=value)).raise_for_status()

    async def sent(self, url, text):
        """How often that engine was sent a request with this text."""
        seen = (await self.client.get(f"{url}/fake/requests")).json()
        return sum(text in one["body"] for one in seen if one["path"] == CHAT)

    async def states(self):
        state = (await self.client.get(f"{self.kvgate.url}/kvgate/state")).json()
        return [endpoint["state"] for endpoint in state["endpoints"]]

    async def until_state(self, number, state, timeout=PATIENCE):
        async def is_there():
            return (await self.states())[number] == state

        await until(is_there, timeout)

    async def until_all_up(self):
        """Ask until each has shown that it is well: enough at once for all to get some."""
        while set(await self.states()) != {"up"}:
            assert {answer.status_code for answer in await asyncio.gather(*map(self.ask, "abcdef"))} == {200}

    def changes(self):
        """Every state that an endpoint came to be in since the start, `up` apart."""
        log = self.kvgate.log.read_text()
        return [state for state in ("trial", "blocked", "suspect", "down", "hung") if f'"state":"{state}"' in log]


@pytest.fixture
async def setup(tmp_path):
    """Starts kvgate over so many fakes."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(engines, hung_after=HUNG_AFTER):
            running = stack.enter_context(
                fake_processes(engines, "--step-seconds=0.02", "--num-blocks=2000", "--output-tokens=1000")
            )
            settings = {
                "health": {"interval": 0.1, "timeout": 1.0, "hung_after": hung_after},
                "admission": {"ttft_target": "none"},
                "models": [{"endpoints": [{"url": url} for url, _ in running], "tokenizer": "/nonexistent"}],
            }
            file = tmp_path / "kvgate.yaml"
            file.write_text(yaml.safe_dump(settings))
            arguments = (tmp_path / "kvgate.log", free_port(), "--config", str(file))
            kvgate = stack.enter_context(serving(*arguments))
            await asyncio.to_thread(kvgate.wait_healthy, engines)
            limits = httpx.Limits(max_connections=None)
            client = await stack.enter_async_context(
                httpx.AsyncClient(timeout=PATIENCE, trust_env=False, limits=limits)
            )
            return Setup(kvgate, running, client)

        yield start


def timed_out(answer):
    return (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")


async def test_one_that_is_silent_beside_others_ends_alone(setup):
    """Row 2: the others get tokens, so the engine is well."""
    one = await setup(1)
    (url,) = one.urls
    await one.tell(url, "/fake/faults", [SILENT_ON_POISON])
    began, timed = time.monotonic(), unhindered()
    silent = asyncio.create_task(one.ask(POISON))
    while not silent.done():
        assert (await one.ask(tokens=20)).status_code == 200
    assert timed_out(silent.result())
    assert time.monotonic() - began >= 4 * HUNG_AFTER
    assert unhindered() - timed < 10 * HUNG_AFTER
    assert await one.sent(url, POISON) == 1
    assert one.changes() == []


async def test_one_that_is_silent_alone_ends_and_no_other_endpoint_hears_of_it(setup):
    """Row 3: its engine may hang. It rests, and one request shows that it does not."""
    two = await setup(2)
    for url in two.urls:
        await two.tell(url, "/fake/faults", [SILENT_ON_POISON])
    began = unhindered()
    assert timed_out(await two.ask(POISON))
    assert unhindered() - began < 4 * HUNG_AFTER, "its processes are seen to do nothing"
    sent = [await two.sent(url, POISON) for url in two.urls]
    assert sorted(sent) == [0, 1]
    assert sorted(await two.states()) == ["suspect", "up"]
    number = sent.index(1)
    await two.until_state(number, "trial")
    await two.until_all_up()
    assert two.changes() == ["trial", "suspect"]


async def test_one_that_is_silent_alone_on_an_engine_at_work_is_waited_for(setup):
    """Row 3: it is not more than slow."""
    one = await setup(1)
    (url,) = one.urls
    for _ in range(4):  # on a loaded machine each gets little
        await one.tell(url, "/fake/spin", {"seconds": 4})
    await one.tell(url, "/fake/faults", [{"kind": "slow_prefill", "path": CHAT, "seconds": 2.5 * HUNG_AFTER}])
    answer = await one.ask()
    assert (answer.status_code, "[DONE]" in answer.text) == (200, True)
    assert one.changes() == []


async def test_several_that_are_silent_go_elsewhere(setup):
    """Row 4: the engine hangs, and is back with a token."""
    two = await setup(2)
    await two.tell(two.urls[0], "/pause")
    answers = await asyncio.gather(*(two.ask(f"number {number}", tokens=20) for number in range(6)))
    assert [answer.status_code for answer in answers] == [200] * 6
    assert all("[DONE]" in answer.text for answer in answers)
    moved = [number for number in range(6) if await two.sent(two.urls[0], f"number {number}")]
    assert len(moved) >= 2, "of six, some were on it"
    assert "hung" in two.changes()
    await two.tell(two.urls[0], "/resume")
    await two.until_state(0, "trial")
    await two.until_all_up()


async def test_a_silent_one_takes_no_second_endpoint_out(setup):
    """Row 6: it came from an endpoint that hung, and stays silent."""
    two = await setup(2)
    hangs, well = two.urls
    await two.tell(well, "/fake/faults", [SILENT_ON_POISON])
    await two.tell(hangs, "/pause")
    address = well.removeprefix("http://")
    await two.tell(two.kvgate.url, f"/kvgate/endpoints/{address}/drain")
    asked = [asyncio.create_task(two.ask(text)) for text in (POISON, "innocent")]

    async def both():
        return await two.sent(hangs, POISON) == await two.sent(hangs, "innocent") == 1

    await until(both)
    await two.tell(two.kvgate.url, f"/kvgate/endpoints/{address}/undrain")
    poison, innocent = await asyncio.gather(*asked)
    assert innocent.status_code == 200
    assert timed_out(poison)
    assert [await two.sent(url, POISON) for url in two.urls] == [1, 1]
    assert (await two.states())[1] == "up"
    assert '"suspect"' not in two.kvgate.log.read_text()


async def test_a_blocked_loop_keeps_what_it_has_and_nothing_is_sent_twice(setup):
    """Row 5: it takes connections, answers nothing, not even a probe, and then goes on."""
    two = await setup(2, hung_after=6.0)
    slow = {"kind": "slow_prefill", "path": CHAT, "times": 9, "seconds": 0.5, "contains": "large"}
    for url in two.urls:
        await two.tell(url, "/fake/faults", [slow])
    large = [asyncio.create_task(two.ask(f"large {number}")) for number in range(4)]

    async def there():
        return [await two.sent(url, "large") for url in two.urls]

    async def all_there():
        return sum(await there()) == 4

    await until(all_there)
    before = await there()
    await two.tell(two.urls[0], "/fake/block", {"seconds": 8.0})
    await two.until_state(0, "blocked")
    for number in range(5):
        assert (await two.ask(f"meanwhile {number}")).status_code == 200
    assert [answer.status_code for answer in await asyncio.gather(*large)] == [200] * 4
    assert await there() == before
    assert await two.sent(two.urls[0], "meanwhile") == 0
    await two.until_state(0, "up")
    assert two.changes() == ["blocked"]


async def test_a_stopped_process_is_waited_for_and_then_left(setup):
    """Row 5: the kernel takes connections for it, and it computes nothing: twice `hung_after`, and no longer."""
    two = await setup(2)
    for url in two.urls:
        await two.tell(url, "/fake/faults", [{"kind": "slow_prefill", "path": CHAT, "times": 9, "seconds": 0.5}])
    began = time.monotonic()
    asked = [asyncio.create_task(two.ask(f"number {number}")) for number in range(6)]

    async def all_there():
        return sum([await two.sent(url, "number") for url in two.urls]) == 6

    await until(all_there)
    process = two.engines[0][1]
    process.send_signal(signal.SIGSTOP)
    try:
        answers = await asyncio.gather(*asked)
    finally:
        process.send_signal(signal.SIGCONT)
    assert [answer.status_code for answer in answers] == [200] * 6
    assert time.monotonic() - began >= 2 * HUNG_AFTER
    assert "hung" in two.changes()


async def test_tokens_prove_life_although_no_probe_is_answered(setup):
    """Row 1."""
    one = await setup(1)
    (url,) = one.urls
    silent = [{"kind": "hang_before_headers", "path": path, "times": 999} for path in ("/health", "/metrics")]
    await one.tell(url, "/fake/faults", silent)
    began = time.monotonic()
    assert "[DONE]" in (await one.ask(tokens=300)).text
    assert time.monotonic() - began > 5, "or too few probes were missed to tell anything"
    assert one.changes() == []


async def test_an_engine_that_died_is_left_at_once(setup):
    """Row 7."""
    two = await setup(2)
    for url in two.urls:
        await two.tell(url, "/fake/faults", [{"kind": "slow_prefill", "path": CHAT, "times": 9, "seconds": 0.5}])
    asked = [asyncio.create_task(two.ask(f"number {number}")) for number in range(4)]

    async def all_there():
        return sum([await two.sent(url, "number") for url in two.urls]) == 4

    await until(all_there)
    began = unhindered()
    two.engines[0][1].kill()
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 4
    assert unhindered() - began < 2 * HUNG_AFTER
    await two.until_state(0, "down")
