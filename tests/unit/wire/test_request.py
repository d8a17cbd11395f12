import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.wire.fields import REFUSED_FIELDS
from gateway.wire.request import (
    MAX_REPEATED_BYTES,
    MAX_SEQUENCES,
    Api,
    Edits,
    ForbiddenFieldError,
    InvalidRequestError,
    edited,
    parse,
    refuse_other_case,
    told_by,
    truth,
    whole,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
ABSENT = object()
READ = {
    "model",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "priority",
    "stream_interval",
    *REFUSED_FIELDS,
}


def body(**fields):
    return json.dumps({"model": "m", **fields}).encode()


def fields(request, but):
    """The top-level fields of a body but one, each as it was written, and no name twice."""
    pairs = []
    json.loads(request.body, object_pairs_hook=lambda found: pairs.append([name for name, _ in found]))
    assert len(pairs[-1]) == len(set(pairs[-1]))
    found = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
    return {name: bytes(value) for name, value in found.items() if name != but}


def test_what_a_decision_needs_is_read():
    request = parse(Api.CHAT, body(stream=True, n=3, max_tokens=7, priority=2, messages=[]))
    assert (request.model, request.stream, request.n, request.max_tokens, request.priority) == ("m", True, 3, 7, 2)
    assert request.include_usage is False


@pytest.mark.parametrize(
    ("tools", "brought"),
    [("[]", False), ("[ \n]", False), ("null", False), ('[{"type":"function"}]', True), ('{"a":1}', False)],
)
def test_tools_are_noticed(tools, brought):
    assert parse(Api.CHAT, b'{"tools":%s}' % tools.encode()).tools is brought
    assert parse(Api.CHAT, b"{}").tools is False


def test_what_is_not_set_has_the_apis_defaults():
    request = parse(Api.COMPLETIONS, b"{}")
    assert (request.model, request.stream, request.n, request.max_tokens, request.priority) == (None, False, 1, 16, 0)
    assert parse(Api.CHAT, b"{}").max_tokens is None


def test_an_empty_name_is_no_models_as_vllm_reads_it():
    assert parse(Api.CHAT, body(model="")).model is None


def test_a_completion_whose_limit_is_null_has_none():
    assert parse(Api.COMPLETIONS, b'{"max_tokens":null}').max_tokens is None


def test_null_is_as_if_absent():
    nulls = dict.fromkeys(("model", "stream", "stream_options", "n", "max_tokens", "priority", *REFUSED_FIELDS))
    request = parse(Api.CHAT, json.dumps(nulls).encode())
    assert (request.model, request.stream, request.n, request.max_tokens) == (None, False, 1, None)


def test_the_newer_name_of_the_output_limit_wins():
    assert parse(Api.CHAT, body(max_tokens=5, max_completion_tokens=9)).max_tokens == 9
    assert parse(Api.CHAT, body(max_tokens=5, max_completion_tokens=None)).max_tokens == 5
    assert parse(Api.RESPONSES, body(max_output_tokens=4)).max_tokens == 4


def test_messages_must_say_how_much_they_want():
    with pytest.raises(InvalidRequestError) as refused:
        parse(Api.MESSAGES, body())
    assert refused.value.param == "max_tokens"


@pytest.mark.parametrize("value", [5, 5.0, "5", " 5 ", True])
def test_integers_are_read_as_the_engine_reads_them(value):
    assert parse(Api.CHAT, body(max_tokens=value)).max_tokens == int(value)


LOOSE = [
    "+5",
    "1_000",
    "5.0",
    "5.",
    "05",
    "-0",
    "- 5",
    "\u0665",
    "\uff15",
    "1e3",
    "",
    1e30,
    1e18,
    5.5,
    "-5",
    "--5",
    "0x1",
]
LOOSE += [
    " 5",
    "5\n",
    "\u00a05",
    "1__0",
    "_1",
    "5.00",
    "5.01",
    "+-5",
    "true",
    "ON",
    "y",
    "t",
    0,
    1,
    2,
    1.0,
    "1",
    " 1",
    "Yes",
]


def as_pydantic(kind, value):
    """As vLLM's request models read it; an error if they do not."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return InvalidRequestError


def as_we(reader, value):
    try:
        return reader(value, "x")
    except InvalidRequestError:
        return InvalidRequestError


@given(value=st.sampled_from(LOOSE) | JSON | st.from_regex(r"\s?[-+]?[0-9_]{1,4}(\.0*)?\s?", fullmatch=True))
def test_loose_values_are_read_as_pydantic_reads_them(value):
    assert as_we(whole, value) == as_pydantic(int | None, value)
    if value is not None:
        assert as_we(truth, value) == as_pydantic(bool, value)


@pytest.mark.parametrize("value", LOOSE)
def test_no_loose_value_is_left_out(value):
    assert as_we(whole, value) == as_pydantic(int, value)
    assert as_we(truth, value) == as_pydantic(bool, value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"stream": "maybe"}, "stream"),
        ({"stream": 2}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": "include_usage"}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": MAX_SEQUENCES + 1}, "n"),
        ({"n": [2]}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -7}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": "9" * 5000}, "max_tokens"),
        ({"max_tokens": {}}, "max_tokens"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_a_wrong_value_is_refused_and_named(fields, param):
    with pytest.raises(InvalidRequestError) as refused:
        parse(Api.CHAT, body(**fields))
    assert refused.value.param == param
    assert param in refused.value.message


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"1",
        b"null",
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":1}{}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"model":"\xff"}',
        b'{"max_tokens":' + b"9" * 5000 + b"}",
        b'{"max_tokens":1e999}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b'{"b":' * 100_000,
        b"\x00" * 10,
    ],
)
def test_what_is_not_a_request_is_refused_without_echoing_it(malformed):
    with pytest.raises(InvalidRequestError) as refused:
        parse(Api.CHAT, malformed)
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("name", REFUSED_FIELDS)
@pytest.mark.parametrize("value", [{"prompt_token_ids": [1]}, "", False, {}])
def test_what_is_the_operators_to_set_is_refused(name, value):
    with pytest.raises(ForbiddenFieldError) as refused:
        parse(Api.CHAT, body(**{name: value}))
    assert refused.value.param == name


@pytest.mark.parametrize("name", ["prompt_token_ids", "prompt_token_ids_b64", "input_ids", "session_params"])
def test_no_engine_reads_another_prompt_beside_the_one_that_is_counted(name):
    with pytest.raises(ForbiddenFieldError):
        parse(Api.CHAT, body(messages=[], **{name: [1, 2]}))


@given(
    others=st.dictionaries(st.text(max_size=20).filter(lambda name: name not in READ), JSON, max_size=6),
    options=st.none() | st.just(ABSENT) | st.dictionaries(st.text(max_size=10), JSON, max_size=3),
    continuous=st.booleans(),
    indent=st.none() | st.integers(0, 3),
    escapes=st.booleans(),
)
def test_asking_for_usage_changes_nothing_else(others, options, continuous, indent, escapes):
    if isinstance(options, dict):
        options.pop("include_usage", None)
        if continuous:
            options["continuous_usage_stats"] = True
    sent = {"stream": True, **others} | ({} if options is ABSENT else {"stream_options": options})
    encoded = json.dumps(sent, indent=indent, ensure_ascii=escapes)
    try:
        raw = encoded.encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair is not UTF-8
    try:
        before = parse(Api.CHAT, raw)
    except InvalidRequestError:
        return  # half a surrogate pair, escaped
    after = parse(Api.CHAT, edited(before.body, before, Edits(usage=True, priority=before.priority)))
    assert after.include_usage
    assert fields(after, "stream_options") == fields(before, "stream_options")
    expected = {
        name: value
        for name, value in (options if isinstance(options, dict) else {}).items()
        if name != "continuous_usage_stats"
    }
    assert json.loads(after.stream_options) == {**expected, "include_usage": True}


def test_asking_for_usage_keeps_numbers_no_machine_word_holds():
    digits = b"9" * 60
    raw = b'{"stream":true,"seed":%b,"stream_options":{"x":%b,"include_usage":false}}' % (digits, digits)
    assert edited(raw, parse(Api.CHAT, raw), Edits(usage=True, priority=0)).count(digits) == 2


@pytest.mark.parametrize("name", ["model", "stream", "n", "max_tokens", "max_completion_tokens", "priority"])
@pytest.mark.parametrize("written", [b"[%b]" % (b"[]," * 10_000 + b"1"), b"9" * 4_000, b'"%b"' % (b"9" * 9_000)])
def test_a_field_that_is_absurdly_long_is_refused_undecoded(name: str, written: bytes) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse(Api.CHAT, b'{"%b":%b}' % (name.encode(), written))
    assert refused.value.param == name
    assert len(refused.value.message) < 100


@pytest.mark.parametrize("text", [rb"\ud83d", b"never ends"])
def test_half_a_character_is_named_where_the_reader_takes_it_for_the_end(text: bytes) -> None:
    """A client gets it that cuts its texts anywhere, and it looked for what had cut its bodies."""
    body = b'{"messages":[{"role":"user","content":"%b"}]}' % text
    with pytest.raises(InvalidRequestError, match=r"it ends too early, or has half of a surrogate pair"):
        parse(Api.CHAT, body if b"ud83d" in text else body[:-5])


def test_absurd_numbers_are_not_repeated() -> None:
    for written in ("9" * 100, "-" + "9" * 100, "1e300"):
        with pytest.raises(InvalidRequestError) as refused:
            parse(Api.CHAT, b'{"n":%b}' % written.encode())
        assert len(refused.value.message) < 100


@pytest.mark.parametrize("written", [b"{}", b" { } \n", b'{"a":"}"}  ', b'{"a":1\n}\t'])
def test_a_field_is_added_whatever_blanks_there_are(written: bytes) -> None:
    after = json.loads(edited(written, parse(Api.CHAT, written), Edits(usage=True, priority=3)))
    assert after == json.loads(written) | {"stream_options": {"include_usage": True}, "priority": 3}


@pytest.mark.parametrize(
    ("written", "api"),
    [
        (b'{"prompt":1}', Api.COMPLETIONS),
        (b'{"messages":[],"input":null}', Api.RESPONSES),
        (b'{"messages":[]}', Api.CHAT),
        (b"{}", Api.CHAT),
        (b"[", Api.CHAT),
    ],
)
def test_the_prompts_field_tells_whose_request_it_is(written: bytes, api: Api) -> None:
    assert told_by(written) is api


def test_a_client_that_asked_for_usage_is_known():
    assert parse(Api.CHAT, body(stream=True, stream_options={"include_usage": True})).include_usage


@pytest.mark.parametrize("said", ["false", "no", "0", "off", 0, 0.0, None])
def test_usage_is_asked_for_where_the_engine_would_read_that_it_is_not(said):
    request = parse(Api.CHAT, body(stream=True, stream_options={"include_usage": said}))
    assert not request.include_usage
    after = parse(Api.CHAT, edited(request.body, request, Edits(usage=True, priority=0)))
    assert after.include_usage


@pytest.mark.parametrize(
    ("written", "streams"), [("true", True), ('"Yes"', True), ("1", True), ("0", False), ('"off"', False)]
)
def test_a_boolean_is_read_as_vllm_reads_it(written: str, *, streams: bool) -> None:
    assert parse(Api.CHAT, b'{"stream":%b}' % written.encode()).stream is streams


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES])
@pytest.mark.parametrize(("asked", "band"), [(-7, 0), (None, 3), (1, 3)])
def test_an_engine_is_told_the_band_and_not_what_the_client_wishes(api, asked, band):
    given = parse(api, body(**({} if asked is None else {"priority": asked}), temperature=0.10))
    after = parse(api, edited(given.body, given, Edits(usage=False, priority=band)))
    assert after.priority == band
    assert fields(after, "priority") == fields(given, "priority")


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("asked", [None, 0, 4])
def test_a_body_that_needs_no_edit_is_the_clients_own(api, asked):
    given = parse(api, body(max_tokens=5, **({} if asked is None else {"priority": asked})))
    assert edited(given.body, given, Edits(usage=False, priority=asked or 0)) is given.body


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("asked", [None, 0, 4])
def test_an_engine_that_reads_priorities_otherwise_gets_none(api, asked):
    given = parse(api, body(max_tokens=5, **({} if asked is None else {"priority": asked})))
    after = edited(given.body, given, Edits(usage=False, priority=None))
    assert json.loads(after) == json.loads(body(max_tokens=5))


def test_messages_have_no_priority_in_their_body():
    given = parse(Api.MESSAGES, body(max_tokens=5))
    assert edited(given.body, given, Edits(usage=False, priority=3)) is given.body


@pytest.mark.parametrize("echo", [True, 1, "yes"])
def test_a_prompt_may_be_read_without_an_answer(echo):
    assert parse(Api.COMPLETIONS, body(echo=echo, max_tokens=0)).max_tokens == 0


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (Api.COMPLETIONS, {"max_tokens": 0}),
        (Api.COMPLETIONS, {"max_tokens": 0, "echo": False}),
        (Api.COMPLETIONS, {"max_tokens": -1, "echo": True}),
        (Api.CHAT, {"max_tokens": 0, "echo": True}),
    ],
)
def test_any_other_answer_has_a_token(api, fields):
    with pytest.raises(InvalidRequestError) as refused:
        parse(api, body(**fields))
    assert refused.value.param == "max_tokens"


def test_a_batch_does_not_stream():
    assert not parse(Api.BATCH, body(stream=False)).stream
    with pytest.raises(InvalidRequestError) as refused:
        parse(Api.BATCH, body(stream=True))
    assert refused.value.param == "stream"


def test_how_many_tokens_a_client_wants_in_an_event():
    assert parse(Api.CHAT, body()).stream_interval == 1
    assert parse(Api.COMPLETIONS, body(stream_interval=7)).stream_interval == 7
    assert parse(Api.RESPONSES, body(stream_interval=7)).stream_interval == 1, "it has no such field"


def test_the_work_of_a_batch_is_that_of_its_conversations_sent_apart() -> None:
    apart = len(b'{"x":"' + b"x" * 20_000 + b'","messages":[]}')
    small, large = (b'{"x":"%b","messages":[%b[]]}' % (b"x" * 20_000, b"[]," * more) for more in (99, 999))
    assert 100 * apart < parse(Api.BATCH, small).counted_bytes < 103 * apart
    assert 1000 * apart < parse(Api.BATCH, large).counted_bytes < 1030 * apart
    assert parse(Api.CHAT, small).counted_bytes == len(small)
    brackets = b'{"x":"%b","messages":[["%b"]]}' % (b"x" * 20_000, b"[" * 100_000)
    assert parse(Api.BATCH, brackets).counted_bytes <= len(brackets) + MAX_REPEATED_BYTES


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("value", [b'""', b"0", b"{}", b"null"])
def test_the_cache_of_another_engine_is_not_named_by_a_side_door(api, value):
    for name in (b"kv_transfer_params", b"kv\\u005ftransfer_params", b"ec_transfer_params"):
        body = b'{"model":"m","max_tokens":1,"vllm_xargs":{"a":1,"%b":%b}}' % (name, value)
        with pytest.raises(ForbiddenFieldError, match="vllm_xargs"):
            parse(api, body)
    assert parse(api, b'{"model":"m","max_tokens":1,"vllm_xargs":{"mine":[1,2]}}').model == "m"


@pytest.mark.parametrize("api", sorted(set(Api) - {Api.MESSAGES}))  # which needs one
@pytest.mark.parametrize("written", [{}, {"max_tokens": None}, {"max_output_tokens": None}])
def test_an_output_limit_is_set_where_the_client_set_none(api, written):
    given = parse(api, body(temperature=0.10, **written))
    after = parse(api, edited(given.body, given, Edits(usage=False, priority=0, max_tokens=7)))
    assert after.max_tokens == 7
    assert fields(after, after.max_tokens_field) == fields(given, after.max_tokens_field)


@pytest.mark.parametrize(
    ("api", "fields", "found"),
    [
        (Api.CHAT, {"n_predict": 5, "n_cmpl": 2}, ("n_cmpl", "n_predict")),
        (Api.CHAT, {"n_predict": None, "max_completion_tokens": 5}, ()),
        (Api.COMPLETIONS, {"max_completion_tokens": 5}, ("max_completion_tokens",)),
        (Api.RESPONSES, {"max_completion_tokens": 5, "max_output_tokens": 1}, ("max_completion_tokens",)),
        (Api.CHAT, {"n_predict": "x" * 10_000}, ("n_predict",)),
    ],
)
def test_fields_that_an_engine_may_read_in_place_of_its_apis_are_found(api, fields, found):
    assert parse(api, json.dumps(fields).encode()).overriding == found


def test_a_limit_that_is_set_is_in_a_field_that_every_engine_reads():
    given = parse(Api.CHAT, body(max_completion_tokens=5))
    after = json.loads(edited(given.body, given, Edits(usage=False, priority=0, max_tokens=5)))
    assert (after["max_tokens"], after["max_completion_tokens"]) == (5, 5)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (b'{"model":"m","Model":"n"}', "model"),
        (b'{"MAX_TOKENS":9}', "max_tokens"),
        ('{"max_to\u212aens":9}'.encode(), "max_tokens"),
        (b'{"\\u004dessages":[]}', "messages"),
    ],
)
def test_a_field_in_other_letters_is_refused_where_it_may_be_read_as_another(fields, found):
    with pytest.raises(ForbiddenFieldError) as refused:
        refuse_other_case(fields)
    assert refused.value.param == found


@pytest.mark.parametrize(
    "fields",
    [
        b'{"model":"secret","model":null}',
        b'{"messages":[{"role":"user","content":"long"}],"messages":[{"role":"user"}]}',
        b'{"model":"m", "model" : "\\"n"}',
    ],
)
def test_a_name_that_is_there_twice_is_refused_where_the_first_may_be_read(fields):
    with pytest.raises(InvalidRequestError, match="twice"):
        refuse_other_case(fields)


def test_other_fields_may_be_written_as_their_client_likes():
    refuse_other_case(rb'{"model":"\"m\"", "a" : {"b":"c","b":[]}, "n":1}')
    refuse_other_case(b"{}")
    refuse_other_case(b'{"model":"m","userId":1,"metadata":{"Model":"n"}}')
