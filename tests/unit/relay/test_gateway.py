import asyncio
import errno
import weakref
from types import SimpleNamespace

import pytest

from gateway.admission.outcomes import Outcome
from gateway.config.settings import Settings
from gateway.relay import gateway as module
from gateway.relay.client_identity import Client, Clients
from gateway.relay.exchange import RefusedError
from gateway.relay.gateway import Gateway
from gateway.relay.payload import Room
from gateway.runtime.turnstile import Turnstile
from gateway.wire.request import InvalidRequestError, relayed
from tests.unit.relay.asking import Asking

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"


class Reporter:
    def __init__(self):
        self.outcomes = []
        self.flows = []

    def ended(self, exchange, outcome):
        self.outcomes.append(outcome)
        self.flows.append(exchange.flow)


@pytest.fixture
def reporter():
    return Reporter()


async def admin(scope, receive, send):
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"admin"})


@pytest.fixture
async def serving(reporter):
    """Call it with settings to get a gateway that serves one model, and knows these keys."""

    def made(keys=None, **server):
        plane = SimpleNamespace(
            settings=Settings.model_validate({"server": server}),
            clients=Clients(keys or {}, None),
            bodies=Room(lambda: 2**30),
            clock=asyncio.get_running_loop().time,
            turnstile=Turnstile(),
            directory=SimpleNamespace(pools={}, awaited=("m",)),
        )
        return Gateway(plane, reporter, admin)

    return made


@pytest.fixture
def generates(monkeypatch):
    """Call it with what shall become of each generation."""
    return lambda generate: monkeypatch.setattr(module, "serve", generate)


def raising(error):
    async def generate(*_):
        raise error

    return generate


async def never(*_):
    await asyncio.Event().wait()


async def test_it_answers_itself_what_needs_no_endpoint(serving, reporter):
    asked = await Asking(serving(), MODELS, "GET").answered()
    assert asked.status == 200
    assert b'"id":"m"' in asked.body
    assert (reporter.outcomes, reporter.flows) == ([Outcome.COMPLETED], ["10.0.0.1"])


@pytest.mark.parametrize(
    ("request_line", "does"),
    [
        (f"POST {CHAT}", "serve"),
        ("POST /v1/embeddings", "relay, computes=True"),
        ("POST /tokenize", "relay, computes=False"),
        ("GET /v1/responses/resp_1", "follow"),
        (f"GET {MODELS}", "list_models"),
        (f"HEAD {MODELS}", "list_models"),
        ("HEAD /tokenizer_info", "relay, computes=False"),
    ],
)
async def test_each_action_of_the_route_table_is_carried_out(serving, reporter, monkeypatch, request_line, does):
    method, path = request_line.split()
    done = []

    def does_it(name):
        async def act(*given, **how):
            done.append(", ".join([name, *(f"{key}={value}" for key, value in how.items())]))
            return Outcome.ENDPOINT_REFUSED

        return act

    for name in ("serve", "relay", "follow", "list_models"):
        monkeypatch.setattr(module, name, does_it(name))
    await Asking(serving(), path, method).answered()
    assert done == [does]
    assert reporter.outcomes == [Outcome.ENDPOINT_REFUSED]


@pytest.mark.parametrize("path", ["/metrics", "/v1/nothing", "/"])
async def test_all_other_paths_are_the_admin_applications(serving, reporter, path):
    asked = await Asking(serving(), path, "GET").answered()
    assert (asked.status, asked.body) == (299, b"admin")
    assert reporter.outcomes == []


async def test_another_method_is_answered_with_those_there_are(serving, reporter):
    asked = await Asking(serving(), "/v1/responses/resp_1", "DELETE").answered()
    assert (asked.status, asked.headers["allow"], asked.headers["x-should-retry"]) == (405, "GET, HEAD, POST", "false")
    assert asked.error["code"] == "method_not_allowed"
    assert "DELETE" in asked.error["message"]
    assert reporter.outcomes == []


async def test_what_is_no_http_is_left_alone(serving):
    await serving()({"type": "lifespan"}, None, None)


async def test_who_has_no_key_is_told_to_bring_one_before_its_body_is_read(serving, reporter):
    gateway = serving({"secret": Client("alice")})
    asked = await Asking(gateway, CHAT, body=[b"{}"]).answered()
    assert (asked.status, asked.error["code"]) == (401, "invalid_api_key")
    assert "Bearer KEY" in asked.error["message"]
    assert asked.unsent
    known = await Asking(gateway, MODELS, "GET", headers=[(b"authorization", b"Bearer secret")]).answered()
    assert known.status == 200
    assert reporter.outcomes == [Outcome.UNAUTHORIZED, Outcome.COMPLETED]
    assert reporter.flows == ["", "alice"]


async def test_while_it_drains_it_takes_nothing_new_and_reads_bodies_only_to_drop_them(serving, reporter, generates):
    generates(never)
    gateway = serving()
    gateway.draining = True
    asked = await Asking(gateway, CHAT, body=[b"a", b"b"]).answered()
    assert (asked.status, asked.error["code"]) == (503, "draining")
    assert (asked.headers["retry-after"], asked.headers["connection"]) == ("1", "close")
    assert not asked.unsent
    assert reporter.outcomes == [Outcome.DRAINING]


async def test_a_body_over_the_limit_is_refused(serving, reporter, generates):
    generates(never)
    asked = await Asking(serving(max_body_bytes=5), CHAT, body=[b"123", b"456", b"789"]).answered()
    assert (asked.status, reporter.outcomes) == (413, [Outcome.BODY_TOO_LARGE])


async def test_a_client_that_leaves_before_its_body_ended_gets_nothing(serving, reporter):
    asked = Asking(serving(), CHAT, body=[])
    asked.left.set()
    await asked.answered()
    assert (asked.messages, reporter.outcomes) == ([], [Outcome.CLIENT_CLOSED])


async def test_a_client_that_leaves_while_it_is_served_ends_that(serving, reporter, generates):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def generate(*_):
        begun.set()
        try:
            await never()
        finally:
            ended.set()

    generates(generate)
    asked = Asking(serving(), CHAT)
    await begun.wait()
    asked.left.set()
    await asked.answered()
    assert ended.is_set()
    assert (asked.messages, reporter.outcomes) == ([], [Outcome.CLIENT_CLOSED])


async def test_a_request_that_the_server_ends_is_reported_and_the_server_hears_of_it(serving, reporter, generates):
    begun = asyncio.Event()

    async def generate(*_):
        begun.set()
        await never()

    generates(generate)
    asked = Asking(serving(), CHAT)
    await begun.wait()
    asked.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked.task
    assert reporter.outcomes == [Outcome.CLIENT_CLOSED]


async def test_a_refusal_is_told_with_all_it_says(serving, reporter, generates):
    generates(raising(RefusedError(Outcome.QUEUE_FULL, "Full.", "messages", 3.0)))
    asked = await Asking(serving(), CHAT).answered()
    assert (asked.status, asked.headers["retry-after"]) == (429, "3")
    assert (asked.error["code"], asked.error["message"], asked.error["param"]) == ("queue_full", "Full.", "messages")
    assert reporter.outcomes == [Outcome.QUEUE_FULL]


async def test_what_was_refused_is_not_kept_for_a_client_that_does_not_hear_of_it(serving, reporter, generates):
    class Read:
        """What a frame of the refusal knows."""

    seen = []

    async def generate(_plane, _scope, _exchange, _client, payload):
        read = Read()
        seen.extend([weakref.ref(read), payload, len(payload.data)])
        try:
            relayed(payload.data)
        except InvalidRequestError as error:
            raise RefusedError(Outcome.INVALID_REQUEST, error.message) from None

    generates(generate)
    asked = Asking(serving(), CHAT, body=[b"x" * 100_000], send=never)
    await asyncio.sleep(0.05)
    known, payload, size = seen
    assert (known(), payload.data, size) == (None, b"", 100_000)
    asked.left.set()
    await asked.answered()
    assert reporter.outcomes == [Outcome.CLIENT_CLOSED]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ZeroDivisionError("secret"), (500, "internal_error", None)),
        (OSError(errno.EMFILE, "secret"), (503, "gateway_full", "1")),
    ],
)
async def test_a_failure_of_ours_is_answered_without_its_reason(serving, reporter, generates, error, told):
    generates(raising(error))
    asked = await Asking(serving(), CHAT).answered()
    assert (asked.status, asked.error["code"], asked.headers.get("retry-after")) == told
    assert b"secret" not in asked.body
    assert reporter.outcomes == [Outcome(told[1])]


async def test_a_failure_after_an_answer_has_begun_adds_nothing_to_it(serving, reporter):
    sent = []

    async def send(message):
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            raise ZeroDivisionError

    await Asking(serving(), MODELS, "GET", send=send).answered()
    assert sent == ["http.response.start", "http.response.body"]
    assert reporter.outcomes == [Outcome.INTERNAL_ERROR]


@pytest.mark.usefixtures("hurried")
async def test_an_end_can_be_waited_for_when_nothing_is_served_any_more(serving, generates):
    free = asyncio.Event()

    async def generate(*_):
        await free.wait()
        return Outcome.COMPLETED

    generates(generate)
    gateway = serving()
    assert await gateway.wait_idle(0)
    both = [Asking(gateway, CHAT) for _ in range(2)]
    await asyncio.sleep(1)
    assert gateway.active == 2
    assert not await gateway.wait_idle(30)
    waiting = asyncio.create_task(gateway.wait_idle(30))
    both[0].left.set()
    await asyncio.sleep(1)
    assert (gateway.active, waiting.done()) == (1, False)
    free.set()
    assert await waiting
    assert gateway.active == 0
