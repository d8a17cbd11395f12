"""The table of signs, walked both ways: each sign has a text that vLLM prints, each text its sign."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from engine.diagnosis.log import diagnose, read_log
from engine.diagnosis.sign import Kind, Sign, Weight
from engine.diagnosis.table import SIGNS

TEXTS = yaml.safe_load(Path(__file__).with_name("log_texts.yaml").read_text())
BY_NAME = {sign.name: sign for sign in SIGNS}
TAIL = [
    "(EngineCore pid=2) ERROR 11-20 18:11:05 [core.py:1510] EngineCore failed to start.",
    "Traceback (most recent call last):",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


def test_every_sign_has_a_text_and_a_name_of_its_own() -> None:
    assert Counter(sign.name for sign in SIGNS).most_common(1)[0][1] == 1
    assert {text["sign"] for text in TEXTS} == set(BY_NAME)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text['sign']} ({text['of']})")
def test_every_text_has_its_sign_above_the_generic_tail(text: dict[str, str]) -> None:
    sign = BY_NAME[text["sign"]]
    lines = text["text"].splitlines()
    if sign.kind is not Kind.CLIENT:
        lines = ["INFO 11-20 18:11:00 [x.py:1] something before", *lines, *TAIL]
    told = read_log(lines)
    assert sign.name in [found.sign for found in told]
    found = next(found for found in told if found.sign == sign.name)
    assert found.kind is sign.kind
    for sentence in (found.cause, found.remedy):
        assert not re.search(r"\{\w+\}|\(\)|  ", sentence)
    assert found.evidence
    if sign.weight is not Weight.HINT and sign.kind is not Kind.CLIENT:
        assert diagnose(lines, 1).sign == sign.name
        assert diagnose(lines, 1).permanent is sign.permanent


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.name)
def test_every_sign_says_what_to_do(sign: Sign) -> None:
    assert sign.kind is not Kind.UNKNOWN
    assert len(sign.remedy) > 10
    named = set(re.findall(r"\?P<(\w+)>", sign.pattern))
    derived = {"sizes", "figures", "crumbs", "fitting", "taken", "fewer", "how", "divisors"}
    assert set(re.findall(r"\{(\w+)\}", sign.cause + sign.remedy)) <= named | derived


NUMBERS = [
    ("GPU memory taken by others", "31.4/79.2", "--gpu-memory-utilization 0.39"),
    ("GPU memory taken by others", "10.19/23.53", "--gpu-memory-utilization 0.43"),
    ("host memory under the KV cache", "14.8/16.21", "VLLM_CPU_KVCACHE_SPACE to at most 14"),
    ("host memory under the wanted share", "12.11/13.46", "--gpu-memory-utilization 0.89"),
    ("context over the KV cache", "(2048)", "--max-model-len 384"),
    ("context over the KV cache, in tokens", "(4096)", "--max-model-len 3664"),
    ("out of memory warming up", "1024", "--max-num-seqs 512"),
    ("heads not divisible", "heads (2)", "--tensor-parallel-size of 1, 2;"),
    ("batched tokens under sequences", "(64)", "--max-num-batched-tokens 128 or more, or --max-num-seqs 64 or less"),
    ("more GPUs than there are", "(8)", "at most 4;"),
    ("more GPUs than there are", "=4", "at most 2;"),
    ("out of memory loading", "11.31 GiB", "36.25 MiB more must be free on GPU 0. This process holds 11.31 GiB of its"),
    ("out of memory allocating the KV cache", "1.06 GiB", "143.36 MiB more must be free"),
    ("out of memory allocating the KV cache", "1.06 GiB", "0.01 of --gpu-memory-utilization, 0.91 where"),
    ("out of memory at work", "9.98 GiB", "Others hold 9.98 GiB of its 79.15 GiB, this process 68.97 GiB"),
    ("out of memory at work", "9.98 GiB", "--gpu-memory-utilization may be 0.87 at most"),
    ("out of memory at work", "9.98 GiB", "1.80 GiB more must be free on GPU 0"),
    ("out of memory at work", "9.98 GiB", "That is 0.03 of --gpu-memory-utilization, 0.89 where"),
    ("out of memory at work", "2.31 GiB", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
]


@pytest.mark.parametrize(("name", "part", "remedy"), NUMBERS)
def test_a_remedy_has_the_number_that_follows_from_the_log(name: str, part: str, remedy: str) -> None:
    text = next(text["text"] for text in TEXTS if text["sign"] == name and part in text["text"])
    assert remedy in diagnose(text.splitlines(), 1).remedy


@pytest.mark.parametrize(
    ("name", "of", "clause"),
    [
        (
            "out of memory loading",
            "issue 12030",
            "asked for 224.00 MiB, and 187.75 MiB of 11.53 GiB were free on GPU 0",
        ),
        ("GPU out of memory", "issue 783", "asked for 1.63 GiB, and 565.31 MiB of 44.56 GiB were free on GPU 0"),
        ("GPU out of memory", "issue 2140", "asked for 3.50 GiB, and 3.09 GiB of 23.69 GiB were free on GPU 0"),
    ],
)
def test_out_of_memory_says_what_was_tried_and_what_was_free(name: str, of: str, clause: str) -> None:
    text = next(text["text"] for text in TEXTS if (text["sign"], text["of"]) == (name, of))
    found = diagnose(text.splitlines(), 1)
    assert clause in found.cause
    assert "expandable_segments" not in found.remedy


def test_what_a_launch_with_less_reads_is_there() -> None:
    for name in ("out of memory loading, as vLLM says", "out of memory loading"):
        text = next(text["text"] for text in TEXTS if text["sign"] == name)
        assert diagnose(text.splitlines(), 1).facts["loading"]
    for text in TEXTS:
        if text["sign"] == "GPU memory taken by others":
            assert diagnose([text["text"]], 1).facts["device"]
