import pytest
from structlog.testing import capture_logs

from engine.plan.ladder import LlamaRequest, climb
from engine.plan.llama.planner import Machine
from engine.plan.quality import Quality
from gateway.config.engine import EngineSettings
from gateway.serve.choice import Choice
from gateway.serve.choice_log import tell
from tests.unit.engine.plan.llama.models import llama_8b
from tests.unit.engine.plan.models import hardware, request

GIB = 2**30


@pytest.fixture
def choice():
    """Llama 8B on a card that has room for it with fp8 weights only, which are allowed."""
    on = hardware("rtx-3060", free_bytes=int(11.5 * GIB))
    checkpoints = (request("Llama-3.1-8B", "--seed", "7", on=on), LlamaRequest(llama_8b()))
    machine = Machine(on, 30 * GIB, 8)
    ladder = climb(checkpoints, machine, allowed={Quality.WEIGHTS})
    asked = EngineSettings(model="Llama-3.1-8B", choice="auto", args=("--seed", "7"), quality=("weights",))
    return Choice(asked, "chat", asked, ladder, checkpoints, machine, frozenset(), (0,), on)


def test_people_get_a_table_and_what_was_taken(choice):
    with capture_logs() as lines:
        tell(choice, people=True)
    (said,) = (line["event"] for line in lines)
    first, *table, last = said.splitlines()
    assert (
        first == "chat: the ways to serve it on 1 x rtx-3060: 11.5 of 11.8 GiB are free; 30.0 GiB of the host are free"
    )
    assert any(line.startswith("vLLM, fp8 weights") and line.rstrip().endswith("taken") for line in table)
    assert last.startswith("chat: taken is vLLM, fp8 weights, with --quantization fp8")
    assert last.endswith("its weights will be smaller than the model's, which engine.quality allows")
    assert "--seed" not in said, "what the user gave may be a secret"


def test_a_program_gets_fields(choice):
    with capture_logs() as lines:
        tell(choice, people=False)
    (line,) = lines
    taken = [rung for rung in line["rungs"] if rung["remark"] == "taken"]
    assert [(rung["name"], rung["changes"]) for rung in taken] == [("vLLM, fp8 weights", ["weights"])]
    assert taken[0]["card_bytes"] < 11.5 * GIB
    assert taken[0]["tokens_per_second"] > 1
