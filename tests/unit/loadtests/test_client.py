"""The cheap client, against the fake vLLM."""

import time

import msgspec
import pytest

from loadtests.arrivals import Planned
from loadtests.client import Address, Record, body, exchange
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind

PLANNED = Planned(number=1, at=0.0, flow="a", kind=0, prompt=3, output=5, max_tokens=5)
EARLY = Planned(number=1, at=0.0, flow="a", kind=0, prompt=3, output=5, max_tokens=50)


async def record_of(*faults: Fault, planned: Planned = PLANNED, timeout: float = 10.0, **settings) -> Record:
    record = Record(planned, arrived=0.0)
    async with FakeVllm(FakeSettings(**settings), faults=faults) as fake:
        address = Address.of(fake.url)
        request = address.request(body(planned, "fake", "salt"), {"x-flow": planned.flow})
        await exchange(address, request, record, time.monotonic(), timeout)
    return record


@pytest.mark.parametrize(
    "fault",
    [
        None,
        Fault(FaultKind.SPLIT, pieces=7),
        Fault(FaultKind.COALESCE, pieces=3),
        Fault(FaultKind.CRLF),
        Fault(FaultKind.KEEP_ALIVE_COMMENTS),
        Fault(FaultKind.UNKNOWN_FIELDS),
    ],
)
async def test_a_whole_answer_is_timed_token_by_token_however_it_is_framed(fault):
    record = await record_of(*([fault] if fault else []))
    assert record.loss is None
    assert (record.tokens, len(record.gaps), record.status) == (5, 4, 200)
    assert record.ttft is not None
    assert 0 < record.ttft <= record.ttft + sum(record.gaps) <= record.ended
    assert record.worst_gap == max(record.gaps)
    assert not record.refused
    assert record.port


async def test_waiting_counts_from_the_arrival_not_from_the_sending():
    record = Record(PLANNED, arrived=-3.0)
    async with FakeVllm() as fake:
        address = Address.of(fake.url)
        await exchange(address, address.request(body(PLANNED, "fake", "s"), {}), record, time.monotonic(), 10.0)
    assert record.ttft is not None
    assert record.ttft > 3.0


@pytest.mark.parametrize(
    ("fault", "loss", "refused"),
    [
        (Fault(FaultKind.STATUS), "status 503", True),
        (Fault(FaultKind.BUSY_IN_STREAM), "error event 503", True),
        (Fault(FaultKind.ENGINE_DEATH, after=2), "error event 500", False),
        (Fault(FaultKind.RESET_MID_STREAM, after=2), "connection closed", False),
        (Fault(FaultKind.ABORT, after=2), "ended after 2 of 5 tokens", False),
        (Fault(FaultKind.NO_DONE), "ended after 0 of 5 tokens", False),
    ],
)
async def test_anything_else_is_refused_or_lost_and_says_why(fault, loss, refused):
    record = await record_of(fault)
    assert (record.loss, record.refused) == (loss, refused)


async def test_an_answer_that_does_not_end_in_time_is_lost_with_what_it_got():
    record = await record_of(Fault(FaultKind.HANG_MID_STREAM, after=2), timeout=0.5)
    assert (record.loss, record.tokens, len(record.gaps)) == ("TimeoutError", 2, 1)


async def test_nobody_there_is_lost():
    async with FakeVllm() as fake:
        address = Address.of(fake.url)
    record = Record(PLANNED, arrived=0.0)
    await exchange(address, b"", record, time.monotonic(), 5.0)
    assert (record.loss, record.port) == ("ConnectionRefusedError", None)


async def test_an_answer_may_stop_before_its_max_tokens():
    record = await record_of(planned=EARLY, output_tokens=1)
    assert record.loss is None
    assert (record.planned.max_tokens, record.tokens) == (50, 4)


def test_a_prompt_has_the_length_that_was_planned_and_never_the_token_that_stops():
    long = Planned(number=1, at=0.0, flow="a", kind=0, prompt=5000, output=5, max_tokens=9)
    sent = msgspec.json.decode(body(long, "model", "salt"))
    assert len(sent["prompt"]) == 5000
    assert not set(sent["stop_token_ids"]) & set(sent["prompt"])


@pytest.mark.parametrize(
    ("url", "port", "path", "tls"),
    [
        ("http://h:81", 81, "/v1/completions", False),
        ("http://h/base/", 80, "/base/v1/completions", False),
        ("https://h", 443, "/v1/completions", True),
    ],
)
def test_an_address_is_read_off_a_base_url(url, port, path, tls):
    address = Address.of(url)
    assert (address.host, address.port, address.path, address.tls is not None) == ("h", port, path, tls)
