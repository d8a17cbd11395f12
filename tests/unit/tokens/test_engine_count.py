import asyncio
import contextlib
import errno
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx
import pytest

from gateway.runtime.descriptors import OutOfDescriptorsError
from gateway.tokens.count import CountUnavailableError, EngineUnreachedError
from gateway.tokens.engine_count import (
    _MOST_CALLS,
    _MOST_OF_FLOW,
    EngineCounter,
    QuestionRefusedError,
    RouteMissingError,
)
from gateway.tokens.engine_work import CountedIn, EngineCall, EngineWork
from gateway.tokens.features import Kind
from gateway.tokens.normalise import Encoding
from gateway.wire.engine_kinds import LLAMA_SERVER, VLLM
from gateway.wire.request import Api, InvalidRequestError
from tests.unit.tokens.wire import engine_at
from tests.until import until

FIRST, SECOND = "http://first", "http://second"
Answer = Callable[[httpx.Request], httpx.Response]


def work(*prompts: EngineCall | int, truncate: int | None = None) -> EngineWork:
    return EngineWork(prompts, Encoding(add_special_tokens=True, truncate=truncate), Kind(Api.CHAT))


def ask(text: str) -> EngineCall:
    return EngineCall("/tokenize", json.dumps({"prompt": text}).encode())


def words(request: httpx.Request) -> httpx.Response:
    tokens = json.loads(request.content)["prompt"].split()
    return httpx.Response(200, json={"count": len(tokens), "max_model_len": 5, "tokens": list(range(len(tokens)))})


async def counted(answer: Answer, prompts: EngineWork, *urls: str) -> tuple[int, ...]:
    targets = [engine_at(url, answer) for url in urls or (FIRST,)]
    return await EngineCounter(lambda: targets, lambda: 5).count(prompts, 1000, flow="flow")


async def test_every_prompt_is_counted_in_order_and_ids_are_not_asked_about() -> None:
    assert await counted(words, work(ask("a b"), 7, ask("a b c"))) == (2, 7, 3)


@pytest.mark.parametrize(("tokens", "ids"), [(3, (0, 1, 2)), (100_000, None)], ids=["short", "long"])
async def test_the_ids_of_a_short_answer_are_read_too_and_no_list_that_would_hold_the_event_loop(
    tokens: int, ids: tuple[int, ...] | None
) -> None:
    target = engine_at(FIRST, lambda _: httpx.Response(200, json={"tokens": list(range(tokens))}))
    call = EngineCall("/tokenize", b"{}", counted_in=CountedIn.TOKENS)
    reading = await EngineCounter(lambda: (target,), lambda: 5).read_at(target, work(call), flow="flow")
    assert (reading.tokens, reading.ids) == (tokens, ids)


async def test_several_prompts_are_read_as_their_sum() -> None:
    target = engine_at(FIRST, words)
    reading = await EngineCounter(lambda: (target,), lambda: 5).read_at(target, work(ask("a b"), 7), flow="flow")
    assert (reading.tokens, reading.ids) == (9, None)


async def test_truncation_is_ours_to_apply() -> None:
    assert await counted(words, work(ask("a b c d"), 9, truncate=3)) == (3, 3)


async def test_anthropics_form_of_a_count_is_read() -> None:
    assert await counted(lambda _: httpx.Response(200, json={"input_tokens": 4}), work(ask(""))) == (4,)


async def test_each_endpoint_is_asked_in_its_own_way() -> None:
    targets = (engine_at(FIRST, lambda _: httpx.Response(503)), engine_at(SECOND, words))
    assert await EngineCounter(lambda: targets, lambda: 5).count(work(ask("a b")), 1000, flow="flow") == (2,)


async def test_a_call_takes_no_longer_than_it_may() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return words(request)

    await counted(answer, work(ask("a")))
    assert seen[0].extensions == {"silence": 5, "longest": 20}


@pytest.mark.parametrize("status", [500, 502, 503, 401])
async def test_another_endpoint_is_asked_where_one_fails(status: int) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status) if request.url.host == "first" else words(request)

    assert await counted(answer, work(ask("a b")), FIRST, SECOND) == (2,)
    with pytest.raises(CountUnavailableError, match=str(status)) as caught:
        await counted(answer, work(ask("a b")), FIRST)
    assert not isinstance(caught.value, EngineUnreachedError), "it is there"


async def test_no_connection_is_no_count_and_says_nothing_of_the_prompt() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(EngineUnreachedError) as caught:
        await counted(answer, work(ask("secret")))
    assert str(caught.value) == "/tokenize of the engine failed: refused"


async def test_without_an_endpoint_nobody_counts() -> None:
    with pytest.raises(CountUnavailableError):
        await EngineCounter(lambda: (), lambda: 5).count(work(ask("a")), 1000, flow="flow")


@pytest.mark.parametrize("status", [400, 413, 422, 501])
@pytest.mark.parametrize("body", [b'{"error": {"message": "Not so."}}', b"<html>", b'{"x":' + b"[" * 100_000])
async def test_a_route_may_refuse_what_it_was_asked(status: int, body: bytes) -> None:
    with pytest.raises(QuestionRefusedError):
        await counted(lambda _: httpx.Response(status, content=body), work(ask("a")))


async def test_what_is_the_requests_fault_is_told_in_the_engines_words_whatever_its_status() -> None:
    message = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
    target = engine_at(FIRST, lambda _: httpx.Response(500, json={"error": {"code": 500, "message": message}}))
    counter = EngineCounter(lambda: (replace(target, kind=LLAMA_SERVER),), lambda: 5)
    with pytest.raises(InvalidRequestError) as caught:
        await counter.count(work(ask("a")), 1000, flow="flow", kind=LLAMA_SERVER)
    assert not isinstance(caught.value, QuestionRefusedError)
    assert caught.value.message == message


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"count": "x"}'])
async def test_an_answer_that_cannot_be_read_is_no_count(content: bytes) -> None:
    with pytest.raises(CountUnavailableError):
        await counted(lambda _: httpx.Response(200, content=content), work(ask("a")))


@pytest.mark.parametrize("prompts", [1, 3])
async def test_of_a_body_that_is_not_counted_nothing_is_kept(memory: Callable[[], int], prompts: int) -> None:
    with contextlib.suppress(QuestionRefusedError):
        await counted(lambda _: httpx.Response(400), work(*[EngineCall("/tokenize", bytes(4 * 2**20))] * prompts))
        raise AssertionError("it was counted")
    await until(lambda: memory() < 2**20)


async def test_a_route_that_is_missing_is_told_apart() -> None:
    with pytest.raises(RouteMissingError):
        await counted(lambda _: httpx.Response(404), work(ask("a")))


async def test_another_engine_is_asked_that_may_have_the_route() -> None:
    older = engine_at(FIRST, lambda _: httpx.Response(404))
    newer = engine_at(SECOND, lambda _: httpx.Response(200, content=b'{"count": 7}'))
    assert await EngineCounter(lambda: (older, newer), lambda: 5).count(work(ask("a")), 1000, flow="f") == (7,)
    with pytest.raises(RouteMissingError):
        await EngineCounter(lambda: (older, older, newer), lambda: 5).count(work(ask("a")), 1000, flow="f")
    gone = engine_at(SECOND, lambda _: httpx.Response(503))
    with pytest.raises(RouteMissingError):
        await EngineCounter(lambda: (older, gone), lambda: 5).count(work(ask("a")), 1000, flow="f")


async def test_a_thousand_prompts_are_not_asked_all_at_once() -> None:
    import asyncio

    now, most = 0, 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return words(request)

    counts = await counted(answer, work(*[ask("a b")] * 200))
    assert counts == (2,) * 200
    assert 1 < most <= 8


async def test_ten_thousand_prompts_are_not_ten_thousand_tasks() -> None:
    """To begin them all would hold up the event loop, and each has to be ended, too."""
    most = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        return httpx.Response(400)

    with pytest.raises(QuestionRefusedError):
        await counted(answer, work(*[ask("a")] * 10_000))
    assert 0 < most < 100


async def test_a_lack_of_descriptors_is_no_engines_failure() -> None:
    def lack(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("failed", request=request) from OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OutOfDescriptorsError):
        await counted(lack, work(ask("a b")))


async def test_of_a_long_answer_only_the_count_at_its_beginning_is_read() -> None:
    def endless(_: httpx.Request) -> httpx.Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b'{"count":7,"max_model_len":10,"tokens":['
            while True:
                yield b"1," * 10_000

        return httpx.Response(200, content=pieces())

    assert await counted(endless, work(ask("a b"))) == (7,)


@pytest.mark.parametrize(
    "body",
    [b'{"x":' + b"[" * 100_000, b'{"count":-5}', b'{"count":1' + b"0" * 30 + b"}", b'{"count":"\xff"}'],
    ids=["nested", "negative", "huge", "no text"],
)
async def test_a_count_that_cannot_be_is_none(body: bytes) -> None:
    with pytest.raises(CountUnavailableError):
        await counted(lambda _: httpx.Response(200, content=body), work(ask("a")))


async def test_an_answer_that_drips_is_given_up() -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.001)

    drips = engine_at(FIRST, lambda _: httpx.Response(200, content=drip()))
    counter = EngineCounter(lambda: [drips], lambda: 0.02)
    with pytest.raises(CountUnavailableError, match="did not come to an end"):
        await asyncio.wait_for(counter.count(work(ask("a")), 1000, flow="flow"), 5)


async def test_no_more_calls_at_once_than_an_engine_bears_and_flows_share_them() -> None:
    running, most, go, full = 0, 0, asyncio.Event(), asyncio.Event()
    order: list[str] = []

    async def hold(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        order.append(json.loads(request.content)["prompt"])
        running += 1
        most = max(most, running)
        if running in (_MOST_OF_FLOW, _MOST_CALLS):
            full.set()
        await go.wait()
        running -= 1
        return httpx.Response(200, stream=httpx.ByteStream(b'{"count": 1}'))

    counter = EngineCounter(lambda: [engine_at(FIRST, hold)], lambda: 5)
    counts = [asyncio.create_task(counter.count(work(ask("busy")), 1000, flow="busy")) for _ in range(300)]
    await asyncio.wait_for(full.wait(), 5)
    full.clear()
    counts += [asyncio.create_task(counter.count(work(ask("new")), 1000, flow="new")) for _ in range(20)]
    await asyncio.wait_for(full.wait(), 5)
    counts.append(asyncio.create_task(counter.count(work(ask("last")), 1000, flow="last")))
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(*counts) == [(1,)] * 321
    assert most == _MOST_CALLS
    assert order[:_MOST_CALLS] == ["busy"] * _MOST_OF_FLOW + ["new"] * (_MOST_CALLS - _MOST_OF_FLOW)
    assert order[_MOST_CALLS] == "last"


@pytest.mark.parametrize(("listed", "tokens"), [("[]", 0), ("[7]", 1), ("[1, 2,3]", 3), ("[ 1,\n2 ]", 2)])
async def test_a_list_of_ids_is_counted_where_no_count_is_told(listed: str, tokens: int) -> None:
    call = EngineCall("/tokenize", b"{}", counted_in=CountedIn.TOKENS)
    assert await counted(lambda _: httpx.Response(200, content=f'{{"tokens":{listed}}}'), work(call)) == (tokens,)


@pytest.mark.parametrize("answer", ["", "{}", '{"tokens":[1,2'])
async def test_a_list_that_cannot_be_read_is_no_count(answer: str) -> None:
    with pytest.raises(CountUnavailableError, match="list"):
        await counted(
            lambda _: httpx.Response(200, content=answer),
            work(EngineCall("/tokenize", b"{}", counted_in=CountedIn.TOKENS)),
        )


ENTRY = '{"id":7,"text":"{\\"id\\":","start":0,"stop":1}'


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [("[]", 0), (f"[{ENTRY},{ENTRY}]", 2), (f'{{"tokenize_response":[{ENTRY}],"templated_text":"x"}}', 1)],
)
async def test_an_entry_for_each_token_is_a_count(answer: str, tokens: int) -> None:
    call = EngineCall("/chat_tokenize", b"{}", counted_in=CountedIn.ENTRIES)
    assert await counted(lambda _: httpx.Response(200, content=answer), work(call)) == (tokens,)


@pytest.mark.parametrize("answer", ["", "{}", "[1,2", '{"tokenize_response":5}'])
async def test_entries_that_cannot_be_read_are_no_count(answer: str) -> None:
    call = EngineCall("/chat_tokenize", b"{}", counted_in=CountedIn.ENTRIES)
    with pytest.raises(CountUnavailableError, match="list"):
        await counted(lambda _: httpx.Response(200, content=answer), work(call))


@pytest.mark.parametrize("entry", ["0,", "{},"])
async def test_a_list_of_millions_is_not_read(entry: str) -> None:
    call = EngineCall("/chat_tokenize", b"{}", counted_in=CountedIn.ENTRIES)
    with pytest.raises(CountUnavailableError):
        await counted(lambda _: httpx.Response(200, text="[" + entry * 2_500_000 + "{}]"), work(call))


async def test_only_engines_of_the_kind_that_the_questions_are_for_are_asked() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return words(request)

    targets = [replace(engine_at(FIRST, answer), kind=LLAMA_SERVER), engine_at(SECOND, answer)]
    counter = EngineCounter(lambda: targets, lambda: 5)
    assert counter.kind() is LLAMA_SERVER
    assert await counter.count(work(ask("a b")), 1000, flow="flow", kind=VLLM) == (2,)
    assert asked == [f"{SECOND}/tokenize"]
