"""The numbers in a refusal of launch arguments, as the sentence about it has them."""

from engine.diagnosis.log_cause import diagnose
from tests.unit.engine.diagnosis.texts import diagnosed


def test_the_words_of_the_log_are_in_the_sentence() -> None:
    said = (
        "  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len "
        "(max_position_embeddings=8192.0 or model_max_length=None in model's config.json). [type=value_error, x=1]"
    )
    found = diagnose([said], 1)
    assert str(found).splitlines()[:2] == [
        "--max-model-len 100000 is more than the 8192 positions the model has.",
        "Ask for at most 8192.",
    ]
    assert found.facts == {"asked": "100000", "own": "8192"}
    assert "type=value_error" not in str(found)


def test_of_two_limits_that_contradict_each_other_either_may_give_way() -> None:
    remedy = diagnosed("batched tokens under sequences").remedy
    assert "--max-num-batched-tokens 128 or more, or --max-num-seqs 64 or less" in remedy


def test_an_argument_without_a_value_is_not_one_with_a_bad_value() -> None:
    def sign(why: str) -> str:
        return diagnose([f"api_server.py: error: argument --max-model-len: {why}"], 2).sign

    assert sign("expected one argument") == "argument without value"
    assert sign("invalid int value: 'many'") == "bad value of an argument"
