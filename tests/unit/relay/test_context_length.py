import json
from types import SimpleNamespace

import pytest

from gateway.relay.context_length import TooLongError, demand, untokenized
from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Kind
from gateway.wire.request import COMPLETIONS_MAX_TOKENS, Api, parse

LENGTH = 100


def ask(*prompts, api=Api.CHAT, source=Source.LOCAL, clamps=True, **fields):
    request = parse(api, json.dumps(fields).encode())
    lengths = SimpleNamespace(
        max_model_len=LENGTH,
        takes=lambda prompt, limit: limit <= LENGTH and (clamps or prompt + limit <= LENGTH),
        least_length=lambda prompt, limit: limit if clamps else prompt + limit,
    )
    return demand(request, PromptCount(prompts, source, Kind(request.api)), lengths)


def test_without_a_limit_an_answer_may_be_as_long_as_there_is_room():
    assert ask(30).max_tokens == 70
    assert ask(30, api=Api.COMPLETIONS).max_tokens == COMPLETIONS_MAX_TOKENS
    assert ask(95, api=Api.COMPLETIONS).max_tokens == 5
    assert ask(30, api=Api.COMPLETIONS, max_tokens=None).max_tokens == 70
    assert ask(30, api=Api.CHAT, max_tokens=None, max_completion_tokens=None).max_tokens == 70
    assert ask(10, 99).max_tokens == 90, "a long prompt beside it does not make another one's answer short"


def test_a_limit_beyond_the_room_is_clamped_where_the_engine_clamps():
    assert ask(60, max_tokens=60).max_tokens == 40
    with pytest.raises(TooLongError) as refused:
        ask(60, max_tokens=60, clamps=False)
    assert refused.value.param == "max_tokens"
    assert all(number in refused.value.message for number in ("100", "60", "120"))


@pytest.mark.parametrize("clamps", [True, False])
def test_a_limit_has_the_lengths_that_take_it_and_that_have_room_for_it(clamps):
    def lengths(*prompts, **fields):
        asked = ask(*prompts, clamps=clamps, **fields)
        return asked.least_length, asked.whole_length

    assert lengths(30) == (0, 0), "the engine gives it what its own length leaves"
    assert lengths(30, max_tokens=40) == (40 if clamps else 70, 70)
    assert lengths(30, 20, api=Api.COMPLETIONS, max_tokens=40) == (40 if clamps else 70, 70)
    assert lengths(60, max_tokens=40) == (40 if clamps else LENGTH, LENGTH)
    if clamps:
        assert lengths(60, max_tokens=60) == (60, 0), "every endpoint cuts it"


def test_the_group_is_prompts_times_n():
    asked = ask(10, 20, n=3, max_tokens=5)
    assert (asked.sequences, asked.prompt_tokens, asked.max_tokens) == (6, 30, 5)


@pytest.mark.parametrize(("tokens", "fits"), [(99, True), (100, False), (101, False)])
def test_a_prompt_must_leave_room_for_one_token(tokens, fits):
    if fits:
        assert ask(tokens).max_tokens == 1
    else:
        with pytest.raises(TooLongError) as refused:
            ask(tokens)
        assert (str(tokens) in refused.value.message, refused.value.param) == (True, "messages")


@pytest.mark.parametrize("value", [101, 10**30])
def test_more_output_than_any_model_has_is_refused_by_its_own_name(value):
    with pytest.raises(TooLongError) as refused:
        ask(10, max_completion_tokens=value, max_tokens=5)
    assert refused.value.param == "max_completion_tokens"


def test_of_an_estimate_the_engine_is_the_judge():
    asked = ask(500, source=Source.ESTIMATE, max_tokens=500)
    assert (asked.prompts, asked.max_tokens) == ((99,), 1)
    assert asked.least_length == 0, "a limit beyond every length is refused everywhere or nowhere"


def test_a_prompt_that_was_not_tokenized_is_said_to_have_at_least():
    assert "at least 500" in untokenized(500, LENGTH, Api.RESPONSES).message
    assert untokenized(500, LENGTH, Api.RESPONSES).param == "input"


def test_who_only_has_its_prompt_read_generates_nothing():
    assert ask(30, api=Api.COMPLETIONS, echo=True, max_tokens=0).max_tokens == 0
    assert ask(10, 20, api=Api.COMPLETIONS, echo=True, max_tokens=0).sequences == 2


def test_each_conversation_of_a_batch_is_a_sequence():
    asked = ask(10, 20, 30, api=Api.BATCH, max_completion_tokens=5)
    assert (asked.sequences, asked.prompt_tokens, asked.max_tokens) == (3, 60, 5)
