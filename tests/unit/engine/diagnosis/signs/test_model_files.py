"""Answers of the hub, and damaged files, that look alike and mean different things."""

import pytest

from engine.diagnosis.log_cause import diagnose
from engine.diagnosis.sign import Kind

TRACE = "Traceback (most recent call last):"
FROM = "The above exception was the direct cause of the following exception:"
REFUSED = "httpx.HTTPStatusError: Client error '401 Unauthorized' for url 'https://huggingface.co/a/b'"


@pytest.mark.parametrize(
    ("lines", "sign"),
    [
        (
            [
                "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)",
                "",
                "Cannot access gated repo for url https://huggingface.co/a/b/resolve/main/config.json.",
            ],
            "gated model",
        ),
        (
            [
                "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: x)",
                "",
                "Repository Not Found for url: https://huggingface.co/api/models/a/b.",
            ],
            "no such model",
        ),
        (["huggingface_hub.errors.HfHubHTTPError: 401 Client Error. (Request ID: x)"], "token refused"),
    ],
)
def test_a_401_of_the_hub_is_told_by_what_follows_it(lines: list[str], sign: str) -> None:
    assert diagnose([TRACE, REFUSED, "", FROM, "", TRACE, *lines], 1).sign == sign


def test_a_hub_out_of_reach_may_be_there_at_the_next_start_and_a_missing_model_may_not() -> None:
    away = diagnose(["OSError: We couldn't connect to 'https://hub' to load the files, and couldn't find them"], 1)
    assert (away.cause, away.permanent) == (
        "The model is not on this machine, and https://hub cannot be reached.",
        False,
    )
    missing = "OSError: nobody/nothing is not a local folder and is not a valid model identifier listed on the hub"
    assert diagnose([missing], 1).permanent


def test_a_file_cut_short_is_told_with_both_sizes() -> None:
    said = "OSError: Consistency check failed: file should be of size 4976 but has size 10 (model.safetensors)."
    assert "has 10 bytes and not 4976" in diagnose([said], 1).cause


@pytest.mark.parametrize(("frame", "sign"), [("lora/layers.py", "LoRA for another base, shape"), ("model.py", "")])
def test_tensors_that_do_not_match_are_an_adapter_s_only_where_one_is_loaded(frame: str, sign: str) -> None:
    error = "RuntimeError: The size of tensor a (64) must match the size of tensor b (128) at non-singleton dimension 1"
    assert diagnose([TRACE, f'  File "vllm/{frame}", line 1, in set', error], 1).sign == sign


def test_an_adapter_s_rank_is_what_to_ask_for() -> None:
    found = diagnose(["ValueError: LoRA rank 64 is greater than max_lora_rank 16."], 1)
    assert "--max-lora-rank 64" in found.remedy
    assert found.kind is Kind.MODEL
