"""The table of signs, walked both ways: each sign has a text that vLLM prints, each text its sign."""

import re
from collections import Counter

import pytest

from engine.diagnosis.log_cause import diagnose, read_log
from engine.diagnosis.sign import Kind, Sign, Weight
from engine.diagnosis.table import SIGNS
from tests.unit.engine.diagnosis.texts import TEXTS

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
    derived = {"sizes", "figures", "crumbs", "fitting", "taken", "fewer", "how", "divisors", "reason"}
    assert set(re.findall(r"\{(\w+)\}", sign.cause + sign.remedy)) <= named | derived
