import pytest

from gateway.relay.cross_origin import answer_preflight, is_preflight, permission, permitting

PAGE = "https://chat.example.com"
HEAD = {"type": "http.response.start", "status": 200}


def scope(method="POST", **headers):
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"method": method, "headers": named, "extensions": {"direct": 1}}


async def sent(send):
    """What the messages of `send` become."""
    messages = []

    async def take(message):
        messages.append(message)

    await send(take)
    return messages


@pytest.mark.parametrize(
    ("origins", "headers", "told"),
    [
        ((), {"origin": PAGE}, None),
        ((PAGE,), {}, None),
        ((PAGE,), {"origin": PAGE}, PAGE),
        ((PAGE,), {"origin": "https://chat.example.com.evil.net"}, None),
        ((PAGE,), {"origin": "null"}, None),
        (("http://a", PAGE), {"origin": PAGE}, PAGE),
        (("*",), {"origin": "null"}, "*"),
        (("*",), {}, None),
    ],
)
def test_a_page_is_permitted_by_its_origin(origins, headers, told):
    permitted = permission(scope(**headers), origins)
    assert (None if permitted is None else dict(permitted)[b"access-control-allow-origin"].decode()) == told


def test_a_cache_is_told_that_the_answer_is_for_one_origin():
    assert (b"vary", b"origin") in permission(scope(origin=PAGE), (PAGE,))
    assert (b"vary", b"origin") not in permission(scope(origin=PAGE), ("*",))


async def test_the_permission_takes_the_place_of_the_engines_and_nothing_goes_past_it():
    permitted = permission(scope(origin=PAGE), (PAGE,))
    engines = [(b"access-control-allow-origin", b"*"), (b"access-control-allow-credentials", b"true"), (b"a", b"b")]
    piece = {"type": "http.response.body", "body": b"x"}

    async def answering(take):
        asked, send = permitting(scope(origin=PAGE), take, permitted)
        assert asked["extensions"] == {}
        await send({**HEAD, "headers": engines})
        await send(piece)

    head, body = await sent(answering)
    assert head["headers"] == [(b"a", b"b"), *permitted]
    assert body is piece


async def test_a_browser_that_asks_first_is_told_the_methods_and_may_send_the_headers_it_names():
    asking = scope("OPTIONS", access_control_request_method="POST", access_control_request_headers="authorization, x-a")
    assert is_preflight(asking)
    head, _ = await sent(lambda take: answer_preflight(asking, take, ("POST",)))
    told = dict(head["headers"])
    assert head["status"] == 204
    assert told[b"access-control-allow-methods"] == b"POST"
    assert told[b"access-control-allow-headers"] == b"authorization, x-a"


@pytest.mark.parametrize("asking", [scope("OPTIONS"), scope("POST", access_control_request_method="POST")])
def test_other_requests_are_no_such_question(asking):
    assert not is_preflight(asking)
