from typing import Any

import pytest

from gateway.tokens.fields import OTHER_FIELDS, PROMPT_FIELDS, Use, set_aside
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.wire.request import MAX_TOKENS_FIELDS, REFUSED_FIELDS, Api, ForbiddenFieldError, parse


@pytest.mark.parametrize("api", Api)
def test_what_the_table_refuses_is_refused_and_nothing_else(api: Api) -> None:
    refused = {name for name, use in PROMPT_FIELDS[api].items() if use is Use.REFUSED}
    assert refused <= REFUSED_FIELDS.keys()
    assert not (PROMPT_FIELDS[api].keys() - refused) & REFUSED_FIELDS.keys()


@pytest.mark.parametrize("name", REFUSED_FIELDS)
def test_a_refusal_names_the_field_and_why(name: str) -> None:
    with pytest.raises(ForbiddenFieldError) as caught:
        parse(Api.CHAT, b'{"%s": []}' % name.encode())
    assert caught.value.param == name
    assert REFUSED_FIELDS[name] in caught.value.message
    parse(Api.CHAT, b'{"%s": null}' % name.encode())


def test_lengths_of_answers_are_no_part_of_prompts() -> None:
    assert all(OTHER_FIELDS.issuperset(names) for names in MAX_TOKENS_FIELDS.values())


@pytest.mark.parametrize(
    ("api", "fields", "error"),
    [
        (Api.COMPLETIONS, {"suffix": "x"}, NotCountableError),
        (Api.RESPONSES, {"previous_response_id": "resp_1"}, NotCountableError),
        (Api.RESPONSES, {"prompt": {"id": "p"}}, NotCountableError),
        (Api.CHAT, {"mm_processor_kwargs": {"crops": 4}}, NeedsEngineError),
        (Api.BATCH, {"media_io_kwargs": {"image": {}}}, NeedsEngineError),
    ],
)
def test_what_cannot_be_counted_here_is_left_alone(api: Api, fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        set_aside(api, fields)
    set_aside(api, dict.fromkeys(fields))
