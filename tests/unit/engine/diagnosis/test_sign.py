import pytest

from engine.diagnosis.sign import Diagnosis, Facts, Kind, Sign

PORT = Sign(
    "port taken",
    r"port (?P<port>\d+)(?: by (?P<who>\w+))? is taken",
    "{port} is {who}'s.",
    "Free {port}.",
    Kind.NETWORK,
)


@pytest.mark.parametrize(
    ("diagnosis", "text"),
    [
        (Diagnosis("It broke."), "It broke."),
        (Diagnosis("It broke.", "Mend it."), "It broke.\nMend it."),
        (Diagnosis("It broke.", "Mend it.", "E: crack"), "It broke.\nMend it.\nIt said: E: crack"),
        (Diagnosis("It ended: E: crack", evidence="E: crack"), "It ended: E: crack"),
    ],
)
def test_a_diagnosis_says_cause_remedy_and_evidence_each_once(diagnosis: Diagnosis, text: str) -> None:
    assert str(diagnosis) == text


def test_a_sign_fills_its_sentences_from_the_line() -> None:
    found = PORT.read("E: port 80 by nginx is taken")
    assert found == Diagnosis(
        "80 is nginx's.",
        "Free 80.",
        "E: port 80 by nginx is taken",
        permanent=True,
        kind=Kind.NETWORK,
        facts={"port": "80", "who": "nginx"},
        sign="port taken",
    )
    assert PORT.read("E: port 80 is free") is None


def test_a_part_that_the_line_lacks_is_empty() -> None:
    found = PORT.read("port 80 is taken")
    assert found is not None
    assert found.facts == {"port": "80", "who": ""}


def test_a_sign_within_a_stack_needs_it() -> None:
    within = Sign("s", "broke", "c", "r", Kind.MODEL, within=r"in load\b")
    assert within.read("it broke") is None
    assert within.read("it broke", "File x, in loader") is None
    assert within.read("it broke", "File x, in load\nFile y, in z") is not None


def test_derived_facts_are_in_the_sentences_and_in_the_facts() -> None:
    def next_port(facts: Facts) -> Facts:
        return {"free": str(int(facts["port"]) + 1)}

    found = Sign("s", r"port (?P<port>\d+)", "{port}", "Take {free}.", Kind.NETWORK, derive=next_port).read("port 80")
    assert found is not None
    assert (found.remedy, found.facts) == ("Take 81.", {"port": "80", "free": "81"})
