import contextlib

import httpx
import msgspec
import pytest

from gateway.commands.top.following import LATEST, Kvgate, Lost, RefusedError, events
from gateway.ops.pictures.picture import Picture, changes
from tests.unit.ops.pictures.pictures import picture, request

STREAM = {"content-type": "text/event-stream"}


def message(event, data):
    return f"event: {event}\ndata: {msgspec.json.encode(data).decode()}\n\n"


def kvgate(*answers, key=None):
    """A kvgate whose server gives these answers in turn, then the last again; its requests, and its pauses."""
    asked, pauses = [], []

    def answer(asking):
        asked.append(asking)
        given = answers[min(len(asked), len(answers)) - 1]
        if isinstance(given, Exception):
            raise given
        return given

    async def sleep(seconds):
        pauses.append(seconds)

    made = Kvgate("http://k:1/", key, sleep=sleep)
    made._client = httpx.AsyncClient(
        base_url=made.url, transport=httpx.MockTransport(answer), headers=made._client.headers
    )
    return made, asked, pauses


async def seen(of, number):
    async with contextlib.aclosing(of.follow()) as following:
        return [await anext(following) for _ in range(number)]


def stream(*messages):
    return httpx.Response(200, headers=STREAM, text="".join(messages))


async def test_changes_are_laid_over_the_snapshot():
    first = picture(requests=(request("1"),))
    second = picture(1000.5, requests=(request("2"), request("1", generated=4)))
    made, asked, _ = kvgate(stream(message("snapshot", first), message("changes", changes(first, second))), key="k ")
    assert await seen(made, 2) == [first, second]
    assert asked[0].headers["authorization"] == "Bearer k"
    assert asked[0].url == "http://k:1/kvgate/events"


async def test_a_lost_connection_is_told_and_made_again_later_and_later():
    broken = httpx.ConnectError("refused")
    made, _, pauses = kvgate(*[broken] * 5, stream(message("snapshot", picture())))
    told = await seen(made, 8)
    assert [type(each) for each in told] == [*[Lost] * 5, Picture, Lost, Picture]
    assert told[0] == Lost("refused", 0.5)
    assert told[6].reason == "it ended the connection"
    assert pauses == [0.5, 1.0, 2.0, 4.0, LATEST, 0.5], "and the first pause again after a picture"


async def test_silence_is_told_while_the_connection_stands():
    made, _, pauses = kvgate(stream(message("silence", {"text": "x"}), message("snapshot", picture())))
    assert await seen(made, 2) == [Lost("the process that decides does not answer"), picture()]
    assert not pauses


async def test_an_overloaded_server_is_asked_again():
    full = httpx.Response(503, json={"error": {"message": "128 readers follow."}})
    made, _, _ = kvgate(full, stream(message("snapshot", picture())))
    assert await seen(made, 2) == [Lost("it answered 503: 128 readers follow.", 0.5), picture()]


@pytest.mark.parametrize(
    ("answer", "key", "said"),
    [
        (httpx.Response(401), None, "wants an admin key, and none was given: see --admin-key"),
        (httpx.Response(401), "sesame", "wants an admin key, and not the one given"),
        (httpx.Response(404), None, "expected a kvgate's admin listener there, /kvgate/events answered 404"),
        (httpx.Response(200, text="hello"), None, "answered 200"),
        (stream("event: snapshot\ndata: {}\n\n"), None, "expected a kvgate of this version"),
        (stream("event: snapshot\ndata: nonsense\n\n"), None, "expected a kvgate of this version"),
    ],
)
async def test_a_server_that_will_never_do_is_not_asked_again(answer, key, said):
    made, asked, _ = kvgate(answer, key=key)
    with pytest.raises(RefusedError, match="http://k:1") as refused:
        await seen(made, 1)
    assert said in str(refused.value)
    assert "sesame" not in str(refused.value)
    assert len(asked) == 1


async def test_one_picture_is_asked_for_once():
    assert await kvgate(stream(message("snapshot", picture())))[0].picture() == picture()
    made, asked, _ = kvgate(httpx.ConnectError("refused"))
    with pytest.raises(RefusedError, match="http://k:1: cannot be reached: refused"):
        await made.picture()
    assert len(asked) == 1


@pytest.mark.parametrize("key", ["", "schlüssel", "a\nb"])
def test_a_key_that_cannot_be_sent_is_not_shown(key):
    with pytest.raises(RefusedError, match="the admin key cannot be sent") as refused:
        Kvgate("http://k:1", key)
    assert "schl" not in str(refused.value)


async def test_an_endpoint_is_drained_by_its_id():
    made, asked, _ = kvgate(httpx.Response(200, json={}))
    await made.drain("unix:/run/vllm 1.sock", back=False)
    await made.drain("a:1", back=True)
    paths = [(each.method, each.url.raw_path.decode()) for each in asked]
    assert paths == [
        ("POST", "/kvgate/endpoints/unix:/run/vllm%201.sock/drain"),
        ("POST", "/kvgate/endpoints/a:1/undrain"),
    ]


async def test_a_change_that_is_not_made_says_why():
    forbidden = httpx.Response(403, json={"error": {"message": "Only from this machine."}})
    with pytest.raises(RefusedError, match=r"Only from this machine\."):
        await kvgate(forbidden)[0].drain("a:1", back=False)
    with pytest.raises(RefusedError, match="answered 502"):
        await kvgate(httpx.Response(502, text="<html>"))[0].drain("a:1", back=False)
    with pytest.raises(RefusedError, match="cannot be reached: refused"):
        await kvgate(httpx.ConnectError("refused"))[0].explain(b"{}")
    with pytest.raises(RefusedError, match=r"403: Only from this machine\."):
        await kvgate(forbidden)[0].explain(b"{}")


async def test_events_have_a_name_and_data():
    async def lines():
        for line in ("event: a", "data: {}", "", ": comment", "event: b", "data: 1: 2", ""):
            yield line

    assert [event async for event in events(lines())] == [("a", "{}"), ("b", "1: 2")]
