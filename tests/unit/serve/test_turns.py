import pytest

from gateway.config.settings import Settings
from gateway.serve.turns import shared, with_turns


def described(*engines, **more):
    models = [
        {"name": name, "engine": {"model": "org/m", "on_demand": True, "gpus": [[0]], **engine}}
        for name, engine in zip("abc", engines, strict=False)
    ]
    return Settings.model_validate({"models": models, **more})


def ways(settings):
    return [(model.engine.group, model.engine.share_gpu) for model in with_turns(settings).models]


HALF = {"args": ["--gpu-memory-utilization", "0.45"]}


def test_engines_that_the_gpus_they_name_do_not_hold_at_once_take_turns():
    settings = described({}, HALF)
    assert ways(settings) == [("GPU 0", False)] * 2
    assert [str(each) for each in shared(settings)] == [
        "a, b: take turns on GPU 0, of which they would take 137% at once"
    ]


def test_engines_that_fit_at_once_run_side_by_side():
    settings = described(HALF, HALF)
    assert ways(settings) == [(None, True)] * 2
    assert [str(each) for each in shared(settings)] == ["a, b: run side by side on GPU 0, of which they take 90%"]
    assert ways(described(HALF, HALF, HALF)) == [("GPU 0", False)] * 3
    whole = {"args": ["--gpu-memory-utilization", "0.5"]}
    assert ways(described(whole, whole)) == [("GPU 0", False)] * 2, "the driver has a part, too"


def test_a_llama_server_takes_what_it_finds_free():
    assert ways(described({"model": "/m.gguf"}, HALF)) == [("GPU 0", False)] * 2


@pytest.mark.parametrize(
    "other", [{"gpus": [[1]]}, {"gpus": None}, {"group": "card"}, {"share_gpu": True}, {"on_demand": False}]
)
def test_what_the_settings_say_stays(other):
    settings = described({}, other)
    assert with_turns(settings) == settings
    assert [*shared(settings)] == []


def test_gpus_of_two_machines_are_not_the_same():
    one, two, three = ({"at": at} for at in ("a:1", "b:1", "a:2"))
    assert ways(described(one, two, three)) == [("GPU 0", False), (None, False), ("GPU 0", False)]


def test_several_cards_are_named_together():
    both = {"gpus": [[0, 1]], "args": ["-tp", "2"]}
    assert ways(described(both, both)) == [("GPUs 0, 1", False)] * 2
