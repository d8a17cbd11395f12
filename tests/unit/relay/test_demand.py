from types import SimpleNamespace

import pytest

from gateway.admission.events import Arrived, Demand, RequestId
from gateway.admission.outcomes import Outcome
from gateway.relay.client_identity import Client
from gateway.relay.demand import (
    UncountedError,
    Work,
    bounded,
    counted,
    demanded,
    limit,
    parsed,
    refuse_adapter,
    refuse_background,
    refuse_overriding,
    require_endpoints,
    room,
    ttft_target,
)
from gateway.relay.exchange import RefusedError
from gateway.tokens.count import (
    CountingOverloadedError,
    CountUnavailableError,
    EngineUnreachedError,
    PromptCount,
    PromptTooLongError,
    Source,
)
from gateway.tokens.features import Kind
from gateway.tokens.pool import CountingPool
from gateway.wire.fields import Use, named
from gateway.wire.request import INLINE_BYTES, Api, InvalidRequestError, parse


def scope(*headers):
    return {"headers": list(headers)}


@pytest.fixture
async def pool():
    pool = CountingPool(threads=1, processes=0, process_bytes=1 << 20, max_pending_bytes=64 << 20)
    yield pool
    await pool.close()


def refusal(function, *arguments):
    with pytest.raises(RefusedError) as refused:
        function(*arguments)
    return refused.value


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ((), None),
        (((b"x-kvgate-ttft-ms", b"250"),), 0.25),
        (((b"x-kvgate-ttft-ms", b"1500.5"),), 1.5005),
        (((b"x-llm-d-slo-ttft-ms", b"3000"),), 3.0),
        (((b"x-llm-d-slo-ttft-ms", b"3000"), (b"x-kvgate-ttft-ms", b"100")), 0.1),
    ],
)
def test_a_client_may_ask_for_a_time_to_its_first_token(headers, seconds):
    assert ttft_target(scope(*headers)) == seconds


@pytest.mark.parametrize(
    "value", [b"", b"0", b"0.0", b"-5", b"1e3", b"soon", b"nan", b"inf", b"9" * 10, b"1 2", b"\xff"]
)
def test_what_is_no_time_is_refused_with_the_headers_name(value):
    for name in (b"x-kvgate-ttft-ms", b"x-llm-d-slo-ttft-ms"):
        refused = refusal(ttft_target, scope((name, value)))
        assert refused.outcome is Outcome.INVALID_REQUEST
        assert refused.param == name.decode()
        assert name.decode() in refused.message
        assert len(refused.message) < 200


def work(body, client, target=None, adapter=None):
    count = PromptCount((3, 4), Source.LOCAL, Kind(Api.CHAT))
    return Work(
        parse(Api.CHAT, body),
        len(body),
        SimpleNamespace(flow_of=lambda _: adapter),
        count,
        Demand((3, 4), 10),
        client,
        target,
        7,
    )


def test_the_core_is_told_all_it_decides_by():
    body = b'{"stream":true,"tools":[{}],"priority":4}'
    assert work(body, Client("alice", 2), 1.5).arrival(RequestId(7)) == Arrived(
        RequestId(7),
        Demand((3, 4), 10),
        band=4,
        flow="alice",
        body_bytes=len(body),
        streamed=True,
        tools=True,
        ttft_target=1.5,
        key=7,
    )


def test_an_adapter_may_be_a_flow_of_its_own_for_clients_without_a_key():
    flows = [work(b"{}", client, adapter="adapter a").flow for client in (Client("alice"), Client("k", keyed=True))]
    assert flows == ["adapter a", "k"]
    assert work(b"{}", Client("alice")).flow == "alice"


@pytest.mark.parametrize(
    ("asked", "allowed", "band"), [(0, 0, 0), (-9, 0, 0), (0, 3, 3), (5, 3, 5), (9, 0, 9), (10**30, 3, 9)]
)
def test_nobody_is_more_urgent_than_its_key_allows_or_has_a_band_beyond_the_last(asked, allowed, band):
    assert work(b'{"priority":%d}' % asked, Client("a", allowed)).band == band


def test_what_the_ledger_would_not_see_is_refused():
    assert refusal(refuse_background, parse(Api.RESPONSES, b'{"background":true}')).outcome is Outcome.FORBIDDEN_FIELD
    refuse_background(parse(Api.RESPONSES, b'{"background":false}'))
    refuse_background(parse(Api.CHAT, b'{"background":true}'))


@pytest.mark.parametrize("field", ["lora_path", "lora_request", "lora"])
def test_an_adapter_named_besides_the_model_is_refused_to_a_key_that_may_use_only_some_models(field):
    request = parse(Api.CHAT, b'{"model":"base","%b":{"lora_path":"sql"}}' % field.encode())
    assert refusal(refuse_adapter, Client("a", models=frozenset({"base"})), request.adapter_field).param == field
    refuse_adapter(Client("a"), request.adapter_field)
    unset = parse(Api.CHAT, b'{"model":"base","%b":null}' % field.encode())
    refuse_adapter(Client("a", models=frozenset({"base"})), unset.adapter_field)


@pytest.mark.parametrize(
    ("kind", "field"), [("llama-server", "n_predict"), ("llama-server", "n_cmpl"), ("tensorrt-llm", "best_of")]
)
def test_a_limit_that_only_the_engine_would_read_is_refused_where_it_reads_it(kind, field):
    request = parse(Api.CHAT, b'{"max_tokens":1,"%b":100000}' % field.encode())
    refused = refusal(refuse_overriding, named(Use.OVERRIDING, kind), request)
    assert (refused.outcome, refused.param) == (Outcome.FORBIDDEN_FIELD, field)
    refuse_overriding((), request)


@pytest.mark.parametrize("blanks", [0, INLINE_BYTES])
async def test_a_body_that_is_none_is_refused(pool, blanks):
    for written, outcome in ((b"[]", Outcome.INVALID_REQUEST), (b'{"chat_template":"x"}', Outcome.FORBIDDEN_FIELD)):
        with pytest.raises(RefusedError) as refused:
            await parsed(pool, "alice", Api.CHAT, written + b" " * blanks)
        assert refused.value.outcome is outcome


async def test_a_large_body_is_read_off_the_loop_and_kept_as_it_is(pool):
    body = b'{"model":"m"}' + b" " * INLINE_BYTES
    request = await parsed(pool, "alice", Api.CHAT, body)
    assert (request.model, request.body is body) == ("m", True)


@pytest.mark.parametrize(
    ("body", "streamed"),
    [(b'{"stream":true,"stream_interval":1}', True), (b'{"stream":true,"stream_interval":2}', False)],
)
def test_a_stream_of_many_tokens_an_event_is_not_counted_as_it_goes_by(body, streamed):
    assert work(body, Client("a", 0)).arrival(RequestId(1)).streamed is streamed


@pytest.mark.parametrize(
    ("error", "outcome", "param", "retry_after"),
    [
        (PromptTooLongError(500), Outcome.CONTEXT_LENGTH_EXCEEDED, "messages", None),
        (InvalidRequestError("Not so.", "tools"), Outcome.INVALID_REQUEST, "tools", None),
        (CountingOverloadedError("full"), Outcome.QUEUE_FULL, None, 1.0),
        (CountUnavailableError("nobody answers"), Outcome.NO_ENDPOINT, None, 5.0),
        (EngineUnreachedError("nobody answers"), Outcome.NO_ENDPOINT, None, 5.0),
    ],
)
async def test_a_prompt_that_cannot_be_counted_is_refused_and_why(error, outcome, param, retry_after):
    class Counter:
        async def count(self, *_args, **_more):
            raise error

    pool = SimpleNamespace(counter=Counter(), max_model_len=100)
    with pytest.raises(RefusedError) as refused:
        await counted(pool, parse(Api.CHAT, b"{}"), "flow")
    told = refused.value
    assert (told.outcome, told.param, told.retry_after) == (outcome, param, retry_after)
    assert isinstance(told, UncountedError) is (outcome is Outcome.NO_ENDPOINT), "then it may be counted later"


def test_a_model_without_an_endpoint_has_no_length_to_hold_it_to():
    refused = refusal(require_endpoints, SimpleNamespace(endpoints={}))
    assert (refused.outcome, refused.retry_after) == (Outcome.NO_ENDPOINT, 1.0)
    require_endpoints(SimpleNamespace(endpoints={"a": None}))


def test_what_no_endpoint_could_take_is_refused_with_the_field_to_lower():
    count = PromptCount((60,), Source.LOCAL, Kind(Api.CHAT))
    pool = SimpleNamespace(
        max_model_len=100,
        takes=lambda prompt, limit: prompt + limit <= 100,
        least_length=lambda prompt, limit: prompt + limit,
        ends_completions=True,
    )
    assert demanded(pool, parse(Api.CHAT, b'{"max_tokens":40}'), count) == Demand((60,), 40, 1, 100, 100)
    refused = refusal(demanded, pool, parse(Api.CHAT, b'{"max_tokens":41}'), count)
    assert (refused.outcome, refused.param) == (Outcome.CONTEXT_LENGTH_EXCEEDED, "max_tokens")


async def test_what_is_sampled_from_all_prompts_is_bounded_as_what_is_sampled_from_one():
    class Counter:
        async def count(self, *_args, **_more):
            return PromptCount((1,) * 100, Source.LOCAL, Kind(Api.COMPLETIONS))

    pool = SimpleNamespace(counter=Counter(), max_model_len=100)
    assert (await counted(pool, parse(Api.COMPLETIONS, b'{"n":163}'), "flow")).prompts == (1,) * 100
    with pytest.raises(RefusedError, match="16400") as refused:
        await counted(pool, parse(Api.COMPLETIONS, b'{"n":164}'), "flow")
    assert (refused.value.outcome, refused.value.param) == (Outcome.INVALID_REQUEST, "n")


def test_an_output_limit_of_the_tenant_is_set_where_the_request_has_none_and_refuses_a_higher_one():
    free, bound = Client("a"), Client("a", max_tokens=50)
    asks = {tokens: parse(Api.CHAT, b'{"max_tokens":%d}' % tokens) for tokens in (50, 51)}
    none = parse(Api.CHAT, b"{}")
    assert limit(free, asks[51], 20) is None
    assert limit(bound, asks[50], 20) is None
    assert limit(bound, none, 920) == 50
    assert limit(bound, none, 20) == 20, "older engines refuse more than there is room for"
    unasked, tight = parse(Api.COMPLETIONS, b"{}"), Client("a", max_tokens=9)
    assert limit(bound, unasked, 920) is None, "its API's own limit is lower"
    assert limit(tight, unasked, 920) == 9, "it asked for none: 16 are its API's"
    with pytest.raises(RefusedError, match="asked for 16"):
        limit(tight, parse(Api.COMPLETIONS, b'{"max_tokens":16}'), 920)
    with pytest.raises(RefusedError) as refused:
        limit(bound, asks[51], 20)
    assert (refused.value.outcome, refused.value.param) == (Outcome.INVALID_REQUEST, "max_tokens")
    assert "50" in refused.value.message
    assert "51" in refused.value.message


@pytest.mark.parametrize(
    ("source", "clamps", "left"), [(Source.LOCAL, True, 20), (Source.ESTIMATE, True, 100), (Source.ESTIMATE, False, 20)]
)
def test_an_estimate_above_the_prompt_does_not_cut_the_answer_of_a_limited_tenant(source, clamps, left):
    pool = SimpleNamespace(
        max_model_len=100, shortest_for=lambda _: 100, takes=lambda prompt, limit: clamps or prompt + limit <= 100
    )
    assert room(pool, Demand((80, 10), 90), PromptCount((80, 10), source, Kind(Api.CHAT))) == left


def test_a_limit_of_kvgates_own_is_one_that_any_endpoint_takes():
    pool = SimpleNamespace(
        max_model_len=1000,
        shortest_for=lambda prompt: 100 if prompt < 100 else 1000,
        least_length=lambda prompt, limit: prompt + limit,
        takes=lambda *_: True,
        default_max_tokens=lambda _: None,
        ignored=frozenset(),
        ends_completions=True,
    )
    for prompt, most, least_length in ((60, 40, 100), (100, 500, 600)):
        request, count = parse(Api.CHAT, b"{}"), PromptCount((prompt,), Source.LOCAL, Kind(Api.CHAT))
        demand, told = bounded(pool, Client("a", max_tokens=500), request, count, demanded(pool, request, count))
        assert (told, demand.max_tokens, demand.least_length) == (most, most, least_length)


@pytest.mark.parametrize(
    ("api", "body", "tenant", "expected"),
    [
        (Api.CHAT, b"{}", None, (25, 25)),
        (Api.CHAT, b"{}", 10, (10, 10)),
        (Api.CHAT, b'{"max_tokens":40}', None, (40, None)),
        (Api.COMPLETIONS, b"{}", None, (25, 25)),
        (Api.COMPLETIONS, b"{}", 20, (20, 20)),
        (Api.COMPLETIONS, b'{"max_tokens":16}', None, (16, None)),
    ],
)
def test_a_request_without_a_limit_gets_one_where_a_full_cache_kills_all(api, body, tenant, expected):
    pool = SimpleNamespace(
        max_model_len=100,
        shortest_for=lambda _: 100,
        least_length=lambda prompt, limit: prompt + limit,
        takes=lambda *_: True,
        default_max_tokens=lambda prompt: 85 - prompt,
        ignored=frozenset(),
        ends_completions=False,
    )
    request = parse(api, body)
    asked = Demand((60,), 40 if request.max_tokens is None else request.max_tokens)
    count = PromptCount((60,), Source.ENGINE, Kind(api))
    demand, most = bounded(pool, Client("a", max_tokens=tenant), request, count, asked)
    assert (demand.max_tokens, most) == expected
    assert most is None or demand.least_length == 60 + most


@pytest.mark.parametrize(
    ("ends", "tenant", "expected"), [(True, 20, (16, None)), (False, 20, (20, 20)), (False, None, (40, None))]
)
def test_a_completion_without_a_limit_is_as_long_as_its_engine_lets_it_be(ends, tenant, expected):
    """Only some end it after 16 tokens, as OpenAI does. Of the others no more than 16 were charged, whatever came."""
    pool = SimpleNamespace(
        max_model_len=100,
        shortest_for=lambda _: 100,
        least_length=lambda prompt, limit: prompt + limit,
        takes=lambda *_: True,
        default_max_tokens=lambda _: None,
        ignored=frozenset(),
        ends_completions=ends,
    )
    request, count = parse(Api.COMPLETIONS, b"{}"), PromptCount((60,), Source.ENGINE, Kind(Api.COMPLETIONS))
    demand, most = bounded(pool, Client("a", max_tokens=tenant), request, count, demanded(pool, request, count))
    assert (demand.max_tokens, most) == expected


@pytest.mark.parametrize(
    ("body", "tenant", "most"),
    [
        (b'{"max_completion_tokens":9}', None, 9),
        (b'{"max_completion_tokens":9}', 20, 9),
        (b'{"max_tokens":9}', None, None),
        (b"{}", 20, 20),
    ],
)
def test_a_limit_that_an_engine_does_not_read_is_set_where_it_does(body, tenant, most):
    pool = SimpleNamespace(
        max_model_len=100,
        shortest_for=lambda _: 100,
        least_length=lambda prompt, limit: prompt + limit,
        takes=lambda *_: True,
        default_max_tokens=lambda _: None,
        ignored=frozenset({"max_completion_tokens"}),
        ends_completions=False,
    )
    request = parse(Api.CHAT, body)
    count = PromptCount((60,), Source.ENGINE, Kind(Api.CHAT))
    asked = Demand((60,), 40 if request.max_tokens is None else request.max_tokens)
    assert bounded(pool, Client("a", max_tokens=tenant), request, count, asked)[1] == most
