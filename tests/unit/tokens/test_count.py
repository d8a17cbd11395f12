import pickle

from gateway.tokens.count import PromptTooLongError


def test_a_prompt_that_a_process_finds_too_long_is_refused_with_its_number() -> None:
    """Large bodies are counted in processes: what they raise is pickled on its way back."""
    assert pickle.loads(pickle.dumps(PromptTooLongError(5000))).at_least == 5000  # noqa: S301 - our own
