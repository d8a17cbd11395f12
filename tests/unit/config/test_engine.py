import re
from typing import get_args

import pytest
import yaml
from pydantic import ValidationError

from engine.plan.quality import Quality
from gateway.config.engine import EngineSettings, OnDemand, as_word, from_words, place_of


@pytest.mark.parametrize(
    ("written_as", "words"),
    [
        ("[--max-model-len, 2048]", ["--max-model-len", "2048"]),
        ("[--gpu-memory-utilization, 0.9, -tp, 2]", ["--gpu-memory-utilization", "0.9", "-tp", "2"]),
        ("[--enable-prefix-caching, true]", ["--enable-prefix-caching"]),
        ("[--enable-prefix-caching, off, --port-of=x]", ["--no-enable-prefix-caching", "--port-of=x"]),
        ('[--served, "two words", "--json={\\"a\\": 1}"]', ["--served", "two words", '--json={"a": 1}']),
    ],
)
def test_arguments_for_vllm_may_be_what_yaml_makes_of_them(written_as, words):
    engine = EngineSettings.model_validate(yaml.safe_load(f"{{model: m, fit: off, args: {written_as}, env: {{N: 1}}}}"))
    assert list(engine.args) == words
    assert engine.fit == "off"
    assert engine.env["N"].get_secret_value() == "1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"args": ["--max-model-len 8"]}, "'--max-model-len 8' is two words: write [--max-model-len, 8]"),
        ({"args": [True]}, "`true` and `false` go after a switch"),
        ({"args": ["--a=b", False]}, "`true` and `false` go after a switch"),
        ({"args": "--a"}, "tuple"),
        ({"env": ["A=1"]}, "dictionary"),
        ({"replicas": 2, "gpus": [[0]]}, "`gpus` names GPUs for 1 replicas, and there are 2"),
    ],
)
def test_what_cannot_be_a_command_line_is_refused(given, said):
    with pytest.raises(ValidationError, match=re.escape(said)):
        EngineSettings(model="m", **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"alternatives": ["m.gguf"]}, "`alternatives` is for `choice: auto`"),
        ({"quality": ["weights"]}, "`quality` is for `choice: auto`"),
        ({"choice": "auto", "share_gpu": True}, "it cannot `share_gpu`"),
        ({"choice": "auto", "quality": ["all"]}, "'kv-cache' or 'weights'"),
    ],
)
def test_what_makes_no_choice_is_refused(given, said):
    with pytest.raises(ValidationError, match=re.escape(said)):
        EngineSettings(model="m", **given)


def test_what_may_be_made_smaller_is_what_the_planner_knows():
    quality = EngineSettings.model_fields["quality"].annotation
    assert set(get_args(get_args(quality)[0])) == {one.value for one in Quality}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_demand": True, "replicas": 2}, "is one process, and `replicas` is 2"),
        ({"group": "card"}, "say `on_demand: true`, too"),
        ({"idle": "sleep"}, "say `on_demand: true`, too"),
        ({"at": "h:1"}, "say `on_demand: true`, too"),
        ({"at": "h:1", "on_demand": True, "idle": "sleep"}, "others reach this engine"),
        ({"at": "h:1", "on_demand": True, "choice": "auto"}, "all gateways know"),
        ({"at": "0.0.0.0:1", "on_demand": True}, "not every address"),
    ],
)
def test_engines_that_come_and_go_are_one_process_each(given, said):
    with pytest.raises(ValidationError, match=said):
        EngineSettings.model_validate({"model": "m", **given})


def test_how_an_engine_comes_and_goes_survives_a_command_line():
    comes = EngineSettings.model_validate({"model": "m", "on_demand": True, "idle_stop": "none", "group": "card"})
    stays = EngineSettings.model_validate({"model": "m"})
    words = [as_word("127.0.0.1:1", comes, place_of(comes, "m", 1)), as_word("127.0.0.1:2", stays, "")]
    assert from_words(words) == {"127.0.0.1:1": OnDemand(None, "group card"), "127.0.0.1:2": None}


def test_engines_of_one_group_on_two_machines_have_no_cards_in_common():
    of = {"model": "m", "on_demand": True, "group": "card"}
    engines = [EngineSettings.model_validate({**of, "at": at}) for at in ("a:1", "A:2", "b:1")]
    places = [place_of(engine, "m", number) for number, engine in enumerate(engines, 1)]
    assert places == ["group card at a", "group card at a", "group card at b"]


def test_one_of_no_group_has_a_place_of_its_model_and_no_group_is_called_as_a_model():
    alone = EngineSettings.model_validate({"model": "m", "on_demand": True})
    grouped = alone.model_copy(update={"group": "red"})
    assert place_of(alone, "red", 1) == place_of(alone, "red", 1) != place_of(alone, "blue", 1)
    assert place_of(alone, "red", 1) != place_of(alone, "red", 2)
    assert place_of(grouped, "blue", 1) == place_of(grouped, "green", 1) != place_of(alone, "red", 1)
