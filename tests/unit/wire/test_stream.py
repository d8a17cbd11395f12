import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire import stream as stream_module
from gateway.wire.request import Api
from gateway.wire.stream import (
    FailureKind,
    StreamReader,
    error_message,
    is_preliminary,
    read_body,
    response_id,
    says_something,
)
from gateway.wire.usage import Usage
from tests.fakes.vllm.requests import Api as FakeApi
from tests.fakes.vllm.requests import ApiError, Generation
from tests.fakes.vllm.server import SHAPES
from tests.fakes.vllm.shapes import BUSY, DEAD

FAKE = {
    Api.CHAT: FakeApi.CHAT,
    Api.COMPLETIONS: FakeApi.COMPLETIONS,
    Api.RESPONSES: FakeApi.RESPONSES,
    Api.MESSAGES: FakeApi.MESSAGES,
}
OPENAI = (Api.CHAT, Api.COMPLETIONS)
STREAMED = tuple(api for api in Api if api is not Api.BATCH)


def shape_of(api, *, usage=False, continuous=False, n=1, tokens=4):
    asked = Generation(FAKE[api], "fake", (3,), n, tokens, tokens, True, usage, continuous)
    return SHAPES[FAKE[api]](asked, "id-1", 1)


def answer(api, *, tokens=4, reason="length", n=1, **asked):
    """The events of an answer as vLLM writes it."""
    shape = shape_of(api, n=n, tokens=tokens, **asked)
    events = [*shape.opening()]
    for index in range(n):
        events += shape.first(index)
        events += [shape.token(index, b" %d" % number, number + 1) for number in range(tokens - 1)]
    for index in range(n):
        events += shape.last(index, b" %d" % (tokens - 1), reason, tokens)
    return [*events, *shape.closing(tokens * n)]


def chunk(**fields):
    return b"data: " + json.dumps({"id": "x", **fields}, separators=(",", ":")).encode() + b"\n\n"


def read(api, pieces, *, strip_usage=False):
    reader = StreamReader(api, strip_usage=strip_usage)
    forwarded = b"".join(reader.feed(piece) for piece in pieces)
    return reader, forwarded + reader.end()


def cut(data, positions):
    edges = [0, *sorted({position % (len(data) + 1) for position in positions}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if end > start]


def counted(api):
    return Usage(3, 4, 0 if api is Api.RESPONSES else None)  # only there the fake says that it found nothing cached


def facts(reader):
    ended = reader.finished, reader.finish_reasons, reader.closed
    return *ended, reader.usage, reader.response_id, reader.failure


@pytest.mark.parametrize("api", STREAMED)
def test_an_answer_passes_byte_for_byte_and_is_understood(api):
    events = answer(api, usage=True)
    reader, forwarded = read(api, events)
    assert forwarded == b"".join(events)
    assert reader.finished
    assert reader.closed
    assert reader.failure is None
    assert reader.usage == counted(api)
    assert reader.tokens >= 4 - 1


@pytest.mark.parametrize("api", STREAMED)
def test_each_event_leaves_when_it_has_arrived(api):
    reader = StreamReader(api, strip_usage=False)
    for event in answer(api):
        assert reader.feed(event[:-1]) == b""
        assert reader.feed(event[-1:]) == event


def test_usage_that_was_asked_for_is_taken_out_though_an_ollama_writes_zeros_beside_each_piece():
    nothing = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    pieces = [chunk(choices=[{"text": "a", "index": 0, "finish_reason": why}], usage=nothing) for why in (None, "stop")]
    last = chunk(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
    done = b"data: [DONE]\n\n"
    reader, forwarded = read(Api.COMPLETIONS, [*pieces, last, done], strip_usage=True)
    assert forwarded == b"".join(pieces) + done
    assert reader.usage == Usage(3, 2)


@pytest.mark.parametrize("api", OPENAI)
def test_json_with_spaces_as_python_writes_it_says_the_same(api):
    def spaced(event):
        said = event.removeprefix(b"data: ").strip()
        return event if said == b"[DONE]" else b"data: " + json.dumps(json.loads(said)).encode() + b"\n\n"

    events = [spaced(event) for event in answer(api, usage=True)]
    reader, forwarded = read(api, events)
    assert forwarded == b"".join(events)
    assert facts(reader) == (True, ("length",), True, counted(api), None, None)
    _, stripped = read(api, events, strip_usage=True)
    assert stripped == b"".join(event for event in events if b'"usage": {' not in event)


@pytest.mark.parametrize("api", [Api.RESPONSES, Api.MESSAGES])
@pytest.mark.parametrize("name", [b"event:", b""])
@pytest.mark.parametrize("spaced", [False, True])
def test_a_stream_is_read_by_the_types_in_its_json_for_not_all_servers_write_the_line_before(api, name, spaced):
    def written(event):
        line, _, said = event.partition(b"\ndata: ")
        said = json.dumps(json.loads(said)).encode() if spaced else said.strip()
        return (name + line.removeprefix(b"event: ") + b"\n" if name else b"") + b"data: " + said + b"\n\n"

    events = [written(event) for event in answer(api) if event.startswith(b"event")]
    reader, forwarded = read(api, events)
    assert forwarded == b"".join(events)
    assert (reader.finished, reader.closed, reader.usage, reader.failure) == (True, True, counted(api), None)
    assert [is_preliminary(event) for event in events[:3]] == [api is Api.RESPONSES] * 2 + [False]
    failed = b'data: {"type":"error","error":{"type":"overloaded_error","message":"no"}}\n\n'
    reader, forwarded = read(api, [*events[:4], failed])
    assert (forwarded, reader.failure.message) == (b"".join(events[:4]), "no")


@pytest.mark.parametrize("api", OPENAI)
@pytest.mark.parametrize("behind", [False, True])
def test_usage_beside_the_end_of_the_only_sequence_is_that_of_the_answer(api, behind):
    """Some servers elsewhere send no chunk that carries only usage."""
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    last = {"usage": None} if behind else {"usage": usage}
    events = [
        chunk(choices=[{"index": 0, "finish_reason": None}]),
        chunk(choices=[{"index": 0, "finish_reason": "stop"}], **last),
    ]
    if behind:
        events.append(chunk(choices=[{"index": 0, "finish_reason": None}], usage=usage))
    reader, forwarded = read(api, [*events, b"data: [DONE]\n\n"], strip_usage=True)
    assert forwarded == b"".join([*events, b"data: [DONE]\n\n"])
    assert (reader.usage, reader.failure) == (Usage(3, 4), None)


@settings(max_examples=150)
@given(
    api=st.sampled_from(STREAMED),
    strip=st.booleans(),
    crlf=st.booleans(),
    comments=st.booleans(),
    cuts=st.lists(st.integers(0, 10**6), max_size=40),
)
def test_how_the_network_cuts_a_stream_changes_nothing(api, strip, crlf, comments, cuts):
    events = answer(api, usage=api in OPENAI)
    if comments:
        events = [part for event in events for part in (b": keep-alive\n\n", event)]
    whole = b"".join(events)
    if crlf:
        whole = whole.replace(b"\n", b"\r\n")
    expected_reader, expected = read(api, [whole], strip_usage=strip)
    reader, forwarded = read(api, cut(whole, cuts), strip_usage=strip)
    assert forwarded == expected
    assert facts(reader) == facts(expected_reader)
    assert reader.failure is None
    assert reader.usage == counted(api)
    if not (strip and api in OPENAI):
        assert forwarded == whole


@settings(max_examples=150)
@given(
    data=st.lists(
        st.sampled_from(
            [
                b"\n",
                b"\r\n",
                b"\n\n",
                b"\r\n\r\n",
                b"data: x",
                b": comment",
                b"data: [DONE]",
                b'{"usage":{',
                b"event: e",
            ]
        )
        | st.binary(max_size=8),
        max_size=30,
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 10**6), max_size=20),
    limit=st.sampled_from([1, 7, 1000]),
)
def test_whatever_an_engine_sends_not_a_byte_is_lost_before_a_failure(data, cuts, limit):
    kept, stream_module.MAX_EVENT_BYTES = stream_module.MAX_EVENT_BYTES, limit
    try:
        reader = StreamReader(Api.CHAT, strip_usage=False)
        forwarded = b"".join(reader.feed(piece) for piece in cut(data, cuts) if reader.failure is None)
        if reader.failure is None:
            held = len(data) - len(forwarded)
            assert held <= limit
            forwarded += reader.end()
            ended_well = reader.failure is None
            assert forwarded == data if ended_well else data.startswith(forwarded)
        else:
            assert data.startswith(forwarded)
    finally:
        stream_module.MAX_EVENT_BYTES = kept


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, 10**6), max_size=30), crlf=st.booleans())
def test_an_event_too_large_to_hold_passes_and_those_after_it_are_read(cuts, crlf):
    kept, stream_module.MAX_EVENT_BYTES = stream_module.MAX_EVENT_BYTES, 300
    try:
        large = chunk(choices=[{"index": 0, "delta": {"content": '"usage":{ ' * 100}}])
        events = answer(Api.CHAT, usage=True)
        events.insert(2, large)
        whole = b"".join(events)
        if crlf:
            whole = whole.replace(b"\n", b"\r\n")
        reader, forwarded = read(Api.CHAT, cut(whole, cuts))
        assert forwarded == whole
        assert (reader.finished, reader.closed, reader.failure) == (True, True, None)
        assert reader.usage == Usage(3, 4)
        assert not reader.torn
    finally:
        stream_module.MAX_EVENT_BYTES = kept


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_what_ends_an_event_too_large_to_hold_stays_though_the_next_event_is_taken_out(newline):
    large = chunk(choices=[{"index": 0, "text": "x" * stream_module.MAX_EVENT_BYTES, "finish_reason": "length"}])
    usage = chunk(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4})
    sent = [it.replace(b"\n", newline) for it in (large, usage, b"data: [DONE]\n\n")]
    for cut_off in range(len(newline) * 2 + 1):
        end = len(sent[0]) - cut_off
        whole = b"".join(sent)
        reader, forwarded = read(
            Api.COMPLETIONS, [whole[: end - 100], whole[end - 100 : end], whole[end:]], strip_usage=True
        )
        assert forwarded == sent[0] + sent[2]
        assert reader.usage == Usage(3, 4)


def test_a_stream_that_ends_inside_an_event_too_large_to_hold_is_torn():
    reader = StreamReader(Api.CHAT, strip_usage=False)
    large = b"data: " + b"x" * (stream_module.MAX_EVENT_BYTES + 1)
    assert reader.feed(large) == large
    assert reader.torn
    assert reader.feed(b"y\n\n") == b"y\n\n"
    assert not reader.torn


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_the_end_of_an_event_too_large_to_hold_is_seen_when_it_is_cut_in_two(newline):
    reader = StreamReader(Api.CHAT, strip_usage=False)
    reader.feed(b"data: " + b"x" * (stream_module.MAX_EVENT_BYTES + 1))
    boundary = newline * 2
    for piece in (b"more", *(boundary[at : at + 1] for at in range(len(boundary)))):
        assert reader.feed(piece) == piece
    assert not reader.torn
    reader.feed(b"".join(answer(Api.CHAT)[-2:]))
    assert (reader.finished, reader.closed) == (True, True)


def test_framings_may_be_mixed_without_delay():
    reader = StreamReader(Api.CHAT, strip_usage=False)
    both = b": a\n\ndata: {}\r\n\r\n"
    assert reader.feed(both) == both


FIELDS = (b'"content":"', b'"text":"', b'"delta":"')
TEXTS = st.sampled_from(
    [
        b"",
        b" a",
        b'\\"',
        b"data: [DONE]",
        b"finish_reason",
        b'finish_reason":"stop',
        b'"usage":{"prompt_tokens":1,',
        b'a"},"finish_reason":"stop","delta":{"content":"',
        b'a","finish_reason":"stop","text":"',
        b'"',
        b"\n\n",
    ]
)


@pytest.mark.parametrize("api", STREAMED)
@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.tuples(st.integers(0, 20), TEXTS, TEXTS), max_size=8),
    usage=st.booleans(),
    interval=st.integers(1, 2),
)
def test_what_passes_in_its_chunk_is_what_would_have_left_and_says_the_same(api, texts, usage, interval):
    events = answer(api, usage=usage, continuous=usage, tokens=12)
    for number, text, other in texts:  # also between events that were read, so that there is a pattern to differ from
        event = events[number % len(events)]
        events.insert(
            number % len(events), next((event.replace(f, f + text, 1) for f in FIELDS if f in event), event) + other
        )
    reading, passing = (StreamReader(api, strip_usage=usage, interval=interval) for _ in range(2))
    for event in events:
        size_line = b"%x\r\n" % len(event)
        left = reading.feed(event)
        passed = passing.passes(size_line + event + b"\r\n", len(size_line))
        assert (event if passed else passing.feed(event)) == left
        assert (passing.failure, passing.torn, passing.finished) == (reading.failure, reading.torn, reading.finished)
        if reading.failure is not None:
            return
    assert passing.end() == reading.end()
    assert facts(passing) == facts(reading)


@pytest.mark.parametrize("api", STREAMED)
def test_tokens_that_pass_in_their_chunks_are_counted(api):
    events = answer(api, tokens=30)
    reader = StreamReader(api, strip_usage=False)
    passed = 0
    for event in events:
        size_line = b"%x\r\n" % len(event)
        if reader.passes(size_line + event + b"\r\n", len(size_line)):
            passed += 1
        else:
            reader.feed(event)
    assert passed >= 28
    assert reader.tokens == read(api, events)[0].tokens


@pytest.mark.parametrize("api", STREAMED)
@pytest.mark.parametrize("comment", [b": keep-alive\n\n", b":\n\n"])
def test_a_comment_is_no_token(api, comment):
    """vLLM's and llama-server's own, while they have nothing to say."""
    events = answer(api, tokens=9)
    apart, together, chunked = (StreamReader(api, strip_usage=False) for _ in range(3))
    for event in events:
        assert apart.feed(comment) == comment
        apart.feed(event)
        together.feed(comment + event + comment)
        for piece in (comment, event):
            size_line = b"%x\r\n" % len(piece)
            if not chunked.passes(size_line + piece + b"\r\n", len(size_line)):
                chunked.feed(piece)
    counts = {reader.tokens for reader in (apart, together, chunked)}
    assert counts == {read(api, events)[0].tokens}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", False),
        (b":\n\n", False),
        (b": a\n\n: b\r\n\r\n", False),
        (b": a\n\ndata: {}\n\n", True),
        (b"data: {}\n\n", True),
    ],
)
def test_comments_say_nothing(data, says):
    assert says_something(data) == says


def test_nothing_passes_before_what_is_held_back():
    event = chunk(choices=[])
    reader = StreamReader(Api.CHAT, strip_usage=False)
    held = reader.feed(event[:9])
    assert not reader.passes(b"%x\r\n%b\r\n" % (len(event[9:]), event[9:]), 4)
    assert held + reader.feed(event[9:]) == event


def test_only_the_usage_chunk_kvgate_asked_for_is_taken_out():
    events = answer(Api.CHAT, usage=True)
    reader, forwarded = read(Api.CHAT, events, strip_usage=True)
    assert forwarded == b"".join(events[:-2] + events[-1:])
    assert reader.usage == Usage(3, 4)


def test_usage_in_every_event_is_the_clients_to_keep():
    events = answer(Api.CHAT, usage=True, continuous=True)
    assert read(Api.CHAT, events)[1] == b"".join(events)


@pytest.mark.parametrize("api", OPENAI)
def test_an_engine_that_sends_usage_to_everybody_is_left_to(api):
    """kvgate never asks for usage in every event: who gets it unasked would have got the last one, too."""
    events = answer(api, usage=True, continuous=True)
    reader, forwarded = read(api, events, strip_usage=True)
    assert forwarded == b"".join(events)
    assert reader.usage == counted(api)


def test_usage_of_one_sequence_is_not_that_of_the_answer():
    events = answer(Api.COMPLETIONS, n=2, usage=True, continuous=True)
    reader, _ = read(Api.COMPLETIONS, events[:-2])
    assert reader.usage is None


@pytest.mark.parametrize(("api", "first"), [(Api.CHAT, 2), (Api.COMPLETIONS, 1)])
@pytest.mark.parametrize("sequences", [1, 3])
def test_an_event_is_as_many_tokens_as_the_client_wants_in_one(api, first, sequences):
    """The first of each sequence hold one, so that nobody waits for it."""
    reader = StreamReader(api, strip_usage=False, interval=10, sequences=sequences)
    event = chunk(choices=[{"index": 0}])
    reader.feed(event * first * sequences)
    assert reader.tokens == first * sequences
    for _ in range(3):
        reader.feed(event)
    assert reader.tokens == first * sequences + 30


def test_usage_beside_each_piece_tells_the_tokens_of_its_sequence():
    reader = StreamReader(Api.CHAT, strip_usage=False, sequences=2)
    for index, completion in ((0, 40), (1, 30), (0, 80)):
        usage = {"prompt_tokens": 3, "completion_tokens": completion}
        reader.feed(chunk(choices=[{"index": index, "finish_reason": None}], usage=usage))
    assert reader.tokens == 110
    assert reader.usage is None


def test_sequences_that_nobody_asked_for_are_not_followed():
    reader = StreamReader(Api.CHAT, strip_usage=False, sequences=2)
    for index in (0, 1, 2, 10**9, -1):
        usage = {"prompt_tokens": 3, "completion_tokens": 10}
        reader.feed(chunk(choices=[{"index": index, "finish_reason": None}], usage=usage))
    assert reader.tokens == 20 + 3, "each event counts as one, whatever it says of others"


@pytest.mark.parametrize("api", OPENAI)
def test_every_choice_is_followed(api):
    events = answer(api, n=3, usage=True)
    reader, forwarded = read(api, events)
    assert forwarded == b"".join(events)
    assert reader.usage == Usage(3, 12)
    assert reader.finish_reasons == ("length",) * 3


@pytest.mark.parametrize("api", OPENAI)
def test_an_abort_is_a_failure_and_its_event_is_not_shown(api):
    reader, forwarded = read(api, answer(api, reason="abort"))
    assert reader.failure.kind is FailureKind.ABORTED
    assert b"abort" not in forwarded


@pytest.mark.parametrize("api", STREAMED)
def test_a_stream_without_its_finish_is_a_failure(api):
    events = answer(api)
    for stop in range(len(events) - 3):
        reader, forwarded = read(api, events[:stop])
        assert reader.failure.kind is FailureKind.UNFINISHED
        assert forwarded == b"".join(events[:stop])


def test_done_without_a_finish_is_a_failure_and_not_shown():
    reader, forwarded = read(Api.CHAT, [*answer(Api.CHAT)[:3], b"data: [DONE]\n\n"])
    assert reader.failure.kind is FailureKind.UNFINISHED
    assert b"DONE" not in forwarded


def test_an_end_without_a_last_blank_line_is_read_and_left_as_it_is():
    whole = b"".join(answer(Api.CHAT))[:-2]
    reader, forwarded = read(Api.CHAT, [whole])
    assert forwarded == whole
    assert reader.closed


@pytest.mark.parametrize("api", STREAMED)
@pytest.mark.parametrize("after", [0, 2])
def test_an_engines_busy_is_told_from_its_death(api, after):
    for error, kind in ((BUSY, FailureKind.BUSY), (DEAD, FailureKind.ENGINE_ERROR)):
        shape = shape_of(api)
        failing = shape.failure(error)
        if failing is None:
            continue  # vLLM tears the body
        events = [*shape.opening(), *shape.first(0), *(shape.token(0, b" t", n + 1) for n in range(after))]
        reader, forwarded = read(api, [*events, *failing])
        assert reader.failure.kind is kind
        assert forwarded == b"".join(events)
        assert reader.failure.event == failing[0]


def test_an_engines_refusal_in_a_stream_keeps_its_status():
    events = shape_of(Api.CHAT).failure(ApiError(400, "too much", "BadRequestError"))
    reader, _ = read(Api.CHAT, events)
    assert (reader.failure.kind, reader.failure.status) == (FailureKind.REFUSED, 400)
    assert reader.failure.message == "too much"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"type": "response.failed"}, FailureKind.ENGINE_ERROR),
        ({"type": "response.completed", "response": {"status": "cancelled"}}, FailureKind.ABORTED),
    ],
)
def test_a_response_that_failed_is_a_failure_and_one_that_was_cancelled_a_sign_of_the_engines_end(fields, kind):
    event = b"event: response.failed\ndata: " + json.dumps(fields).encode() + b"\n\n"
    reader, _ = read(Api.RESPONSES, [*answer(Api.RESPONSES)[:3], event])
    assert reader.failure.kind is kind


def test_an_error_that_is_null_is_none():
    reader, forwarded = read(Api.CHAT, [chunk(error=None, choices=[{"index": 0, "finish_reason": "stop"}])])
    assert reader.failure is None
    assert b"error" in forwarded


@pytest.mark.parametrize(
    "odd",
    [
        b'data: {"usage":{"prompt_tokens":"many"}}\n\n',
        b'data: {"usage":{\xff}}\n\n',
        b'data: {"usage":{\n\n',
        b'data: {"choices":7,"usage":{}}\n\n',
        b'data: {"error" \n\n',
        b'event: something\nid: 4\nretry: 10\ndata: {"usage":{\ndata: }}\n\n',
    ],
)
def test_an_event_of_no_known_shape_is_the_clients(odd):
    events = answer(Api.CHAT)
    events.insert(2, odd)
    reader, forwarded = read(Api.CHAT, events)
    assert forwarded == b"".join(events)
    assert reader.failure is None


def test_the_responses_api_is_held_until_the_engine_works():
    opening = shape_of(Api.RESPONSES).opening()
    assert opening
    assert is_preliminary(b"".join(opening))
    assert is_preliminary(b": keep-alive\n\n")
    assert not is_preliminary(b":\n\n" * 100_000), "no engine sends that many in one piece, and to read each takes time"
    assert not is_preliminary(b"".join([*opening, *shape_of(Api.RESPONSES).first(0)]))
    assert not is_preliminary(answer(Api.CHAT)[0])


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, 10**6), max_size=30), spaced=st.booleans())
def test_of_a_response_too_large_to_hold_the_counts_and_the_id_are_read(cuts, spaced):
    """The Responses API repeats tools and instructions in its first events, and the whole answer in its last."""
    kept, stream_module.MAX_EVENT_BYTES = stream_module.MAX_EVENT_BYTES, 400
    try:
        large = json.dumps({"instructions": '"usage":{"input_tokens":9} ' * 100, "tools": [{"id": "t"}]}).encode()[1:-1]
        whole = b"".join(answer(Api.RESPONSES)).replace(b'"object":"response"', b'"object":"response",' + large)
        assert whole.count(large) == 3
        if spaced:
            whole = whole.replace(b'":', b'": ').replace(b',"', b', "')
        reader, forwarded = read(Api.RESPONSES, cut(whole, cuts))
        assert forwarded == whole
        assert facts(reader) == (True, (), True, Usage(3, 4, 0), "id-1", None)
    finally:
        stream_module.MAX_EVENT_BYTES = kept


@pytest.mark.parametrize(
    ("begins", "found"),
    [
        (b'{"id":"resp_1","object"', "resp_1"),
        (b'\n{ "id": "resp_1"', "resp_1"),
        (b'event: response.created\ndata: {"response":{"id":"resp_1","created_at"', "resp_1"),
        (b'data:{"type":"response.created","sequence_number":0,"response":{"id":"resp_1"', "resp_1"),
        (b'data: {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"', "resp_1"),
        (b'{"tools":[{"id":"another"}],"id":"resp_1"}', None),
        (b'{"metadata":{"id":"another"},"id":"resp_1"}', None),
        (b'{"id":"a\\"b"}', None),
        (b'{"id":null}', None),
        (b"", None),
    ],
)
def test_the_id_of_a_response_is_read_where_it_begins_with_it_for_the_rest_may_be_a_clients(begins, found):
    assert response_id(begins) == found


def test_the_id_of_a_response_is_kept_for_those_who_ask_for_it_later():
    assert read(Api.RESPONSES, answer(Api.RESPONSES))[0].response_id == "id-1"


@pytest.mark.parametrize("api", STREAMED)
def test_a_whole_answer_is_read(api):
    facts = read_body(api, shape_of(api).body(4, ["length"]))
    assert facts.usage == counted(api)
    assert facts.failure is None
    assert facts.finish_reasons == (("length",) if api in OPENAI else ())


def test_finish_reasons_are_kept_within_bounds():
    ends = [{"index": index, "finish_reason": "x" * 1000} for index in range(500)]
    reader, _ = read(Api.CHAT, [chunk(choices=[end]) for end in ends])
    whole = read_body(Api.CHAT, json.dumps({"choices": ends}).encode())
    assert reader.finish_reasons == whole.finish_reasons == ("x" * 40,) * 128


@pytest.mark.parametrize("api", OPENAI)
def test_a_whole_answer_that_was_aborted_is_a_failure(api):
    assert read_body(api, shape_of(api).body(2, ["abort"])).failure.kind is FailureKind.ABORTED


@pytest.mark.parametrize("page", [b"<html>gone</html>", b"\r\n <!DOCTYPE html>"])
def test_a_web_page_in_the_place_of_an_answer_is_a_failure(page):
    failure = read_body(Api.CHAT, page).failure
    assert (failure.kind, failure.status) == (FailureKind.ENGINE_ERROR, 502)
    assert failure.message == "a web page came in place of its answer: a proxy sent it"


def test_a_whole_answer_of_another_shape_passes():
    for body in (b"", b"not json", b"[]", b'{"choices":1}', b"\xff"):
        assert read_body(Api.CHAT, body).failure is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"no","type":"t","param":null,"code":400}}', "no"),
        (b'{"object":"error","message":"older","code":400}', "older"),
        (b'{"error":"plain"}', "plain"),
        (b'{"type":"error","error":{"type":"x","message":"anthropic"}}', "anthropic"),
        (b"<html>", "the engine gave no reason"),
        (b"", "the engine gave no reason"),
        (b'{"error":{}}', "the engine gave no reason"),
    ],
)
def test_an_engines_sentence_is_found_in_each_of_its_shapes(body, message):
    assert error_message(body) == message


@pytest.mark.parametrize("api", STREAMED)
def test_what_is_nested_too_deeply_to_be_read_is_the_clients(api):
    deep = b"[" * 100_000 + b"]" * 100_000
    assert read_body(api, b'{"choices":%b}' % deep).failure is None
    assert error_message(b'{"error":%b}' % deep) == error_message(deep) == "the engine gave no reason"
    event = b'event: message_x\nevent: response.c\ndata: {"choices":%b,"finish_reason":"x"}\n\n' % deep
    reader = StreamReader(api, strip_usage=False)
    assert reader.feed(event) == event
    assert reader.failure is None


FORGED = (
    "Grammar error: Invalid type: 'code': 503}",
    "Grammar error: 1 validation error for A\nb\n  c [input_value={'error': {'code': 503}}, input_type=dict]",
)


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("text", FORGED)
def test_no_client_writes_a_status_into_an_error(api, text):
    said = {"error": {"message": text, "type": "BadRequestError"}}
    if api is not Api.MESSAGES:
        said["error"]["code"] = 400
    reader = StreamReader(api, strip_usage=False)
    reader.feed(b"event: error\ndata: %b\n\n" % json.dumps(said, separators=(",", ":")).encode())
    assert reader.failure is not None
    assert reader.failure.kind is not FailureKind.BUSY
