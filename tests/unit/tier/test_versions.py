"""Gateways of two releases that follow each other understand each other (ADR 37)."""

import copy

import pytest

from gateway.tier.frames import OLDEST, VERSION
from tests.unit.tier.shapes import broken, file_of, kept, shapes


def test_the_messages_are_those_of_their_version():
    assert shapes() == kept(VERSION), (
        "what gateways say to each other has changed: if a release has these messages, raise `VERSION` in"
        " gateway/tier/frames.py and set `OLDEST` to what it was; then run `python -m tests.unit.tier.shapes`"
    )


def test_the_release_before_understands_them_and_is_understood():
    assert OLDEST in {VERSION, VERSION - 1}
    assert broken(kept(OLDEST), shapes()) == []


def changed(where, change):
    """The present shapes, with a change to one."""
    after = copy.deepcopy(shapes())
    change(after[where])
    return after


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("Came", lambda shape: shape["prefixItems"].append({"type": "string"})),
        ("Arrived", lambda shape: shape["properties"].update(new={"type": "string"})),
    ],
)
def test_a_field_with_a_default_may_be_added(where, change):
    assert broken(shapes(), changed(where, change)) == []


def test_a_kind_may_be_added():
    assert broken(shapes(), {**shapes(), "New": {"type": "array", "prefixItems": [], "minItems": 0}}) == []


@pytest.mark.parametrize(
    ("where", "change", "why"),
    [
        ("Came", lambda shape: shape["prefixItems"].pop(), "Came.2 is gone"),
        ("Came", lambda shape: shape.update(minItems=4), "Came needs more items"),
        ("Came", lambda shape: shape["prefixItems"].insert(1, {"type": "integer"}), "Came.1"),
        ("Came", lambda shape: shape["prefixItems"][0].update(enum=[99]), "Came.0"),
        ("Arrived", lambda shape: shape["properties"].pop("flow"), "Arrived.flow is gone"),
        ("Arrived", lambda shape: shape["required"].append("new"), "Arrived needs ['new']"),
        ("Arrived", lambda shape: shape["properties"].update(flow={"type": "integer"}), "Arrived.flow"),
        ("Outcome", lambda shape: shape["enum"].append("new"), "Outcome"),
        ("Decided", lambda shape: shape["properties"].pop("queues"), "Decided.queues is gone"),
    ],
)
def test_what_the_release_before_would_not_understand_is_found(where, change, why):
    found = broken(shapes(), changed(where, change))
    assert any(line.startswith(why) for line in found), found


def test_a_kind_that_is_gone_is_found():
    after = {name: shape for name, shape in shapes().items() if name != "Ping"}
    assert "Ping is gone" in broken(shapes(), after)


def test_each_version_that_is_spoken_is_kept():
    assert {OLDEST, VERSION} == {version for version in range(1, VERSION + 2) if file_of(version).exists()}
