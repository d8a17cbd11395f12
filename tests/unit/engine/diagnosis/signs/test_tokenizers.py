"""What is the tokenizer's fault, and what only looks like it."""

import pytest

from engine.diagnosis.log_cause import diagnose, read_log

TRACE = "Traceback (most recent call last):"
DAMAGED = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"


@pytest.mark.parametrize(
    ("frame", "sign"),
    [("transformers/tokenization_utils_base.py", "tokenizer file damaged"), ("vllm/config/model.py", "")],
)
def test_a_damaged_file_is_the_tokenizer_s_only_where_one_is_read(frame: str, sign: str) -> None:
    assert diagnose([TRACE, f'  File "{frame}", line 1, in load', DAMAGED], 1).sign == sign


def test_a_tokenizer_that_is_not_loaded_is_told_with_the_error_before_it() -> None:
    log = [
        TRACE,
        "ValueError: the moon is in the wrong house",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        TRACE,
        "RuntimeError: Failed to load the tokenizer. If the tokenizer is a custom tokenizer",
    ]
    found = diagnose(log, 1)
    assert (found.sign, found.evidence) == ("tokenizer not loaded", "ValueError: the moon is in the wrong house")


@pytest.mark.parametrize(
    ("refusal", "sign"),
    [
        ("vllm.exceptions.VLLMValidationError: Token id 151667 is out of vocabulary", "token beyond the vocabulary"),
        ("jinja2.exceptions.UndefinedError: 'tools' is undefined", "chat template of another model"),
        (
            "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant",
            "roles the template refuses",
        ),
        (
            "ValueError: As of transformers v4.44, default chat template is no longer allowed, so you must provide one",
            "no chat template",
        ),
    ],
)
def test_a_refused_request_is_a_hint_and_never_why_an_engine_ended(refusal: str, sign: str) -> None:
    line = f"(APIServer pid=1) ERROR 11-20 18:11:05 [serving.py:1] {refusal}"
    assert [found.sign for found in read_log([line])] == [sign]
    assert diagnose([line], 1).sign == ""
