import re

import pytest
import yaml
from pydantic import ValidationError

from gateway.config.engine import EngineSettings


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
