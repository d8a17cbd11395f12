import pytest

from gateway.wire.engine_kinds import KINDS
from gateway.wire.fields import FIELDS, MAX_TOKENS_FIELDS, OTHER_FIELDS, REFUSED_FIELDS, Api, Use, named, unread_limits
from tests.fakes.foreign.fields import RECORDED

APIS = [(kind, Api(api)) for kind, record in RECORDED.items() for api in record.fields]


def table(kind, api):
    return FIELDS[kind].prompt.get(api, {}) | FIELDS[kind].others


def test_each_kind_has_a_table():
    assert FIELDS.keys() == KINDS.keys() == RECORDED.keys() | {"vllm"}


@pytest.mark.parametrize(("kind", "api"), APIS)
def test_it_is_decided_what_becomes_of_each_field_of_an_engine(kind, api):
    undecided = RECORDED[kind].fields[api] - table(kind, api).keys() - OTHER_FIELDS
    assert undecided == set(), "give each a row in gateway.wire.fields"


@pytest.mark.parametrize("kind", RECORDED)
def test_no_table_names_a_field_that_its_engine_has_not(kind):
    fields = RECORDED[kind].fields
    assert {api: FIELDS[kind].prompt[api].keys() - fields[api] for api in fields} == {api: set() for api in fields}
    assert FIELDS[kind].others.keys() <= set().union(*fields.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_of_a_prompt_is_harmless_in_no_kind(kind):
    for fields in FIELDS[kind].prompt.values():
        assert fields.keys() & OTHER_FIELDS == set()
        assert fields.keys() & FIELDS[kind].others.keys() == set()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_table_refuses_is_refused_and_nothing_else(kind):
    for fields in FIELDS[kind].prompt.values():
        assert {name for name, use in fields.items() if use is Use.REFUSED} == fields.keys() & REFUSED_FIELDS.keys()


def test_every_refusal_is_in_a_table():
    found = {name for kind in FIELDS.values() for fields in kind.prompt.values() for name in fields}
    assert found >= REFUSED_FIELDS.keys()


def test_the_special_fields_of_a_kind_are_found():
    assert named(Use.OVERRIDING, "llama-server") == ("n_predict", "n_cmpl", "max_completion_tokens")
    assert named(Use.OVERRIDING, "vllm") == ()
    assert set(named(Use.ADAPTER)) == {"lora", "lora_path", "lora_request"}
    assert [kind for kind in KINDS if named(Use.DROPPED, kind)] == ["sglang", "tensorrt-llm"]


def test_the_limits_that_a_kind_does_not_read_are_known():
    assert unread_limits("vllm") == unread_limits("llama-server") == set()
    assert unread_limits("ollama") == {"max_completion_tokens"}
    assert all(names[-1] in FIELDS[kind].others for kind, api in APIS for names in [MAX_TOKENS_FIELDS[api]])
