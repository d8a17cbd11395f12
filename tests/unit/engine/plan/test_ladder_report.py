import io
import json

from rich.console import Console

from engine.plan import ladder_report
from engine.plan.ladder import climb
from tests.unit.engine.plan.llama.models import llama_8b
from tests.unit.engine.plan.models import hardware, request
from tests.unit.engine.plan.test_ladder import HOST, files, machine


def made(card, gguf=None, given=(), **more):
    return climb(
        (request("Llama-3.1-8B", *given, on=hardware(card), host_bytes=HOST), *files(gguf)), machine(card), **more
    )


def shown(ladder):
    out = Console(file=io.StringIO(), width=80, highlight=False, markup=False)
    ladder_report.show(ladder, out)
    return out.file.getvalue()


def row(text, beginning):
    return next(line for line in text.splitlines() if line.startswith(beginning))


def test_each_rung_says_why_it_is_taken_or_not():
    text = shown(made("rtx-3060", llama_8b()))
    assert row(text, "vLLM ").endswith("short") or "short" in row(text, "vLLM ")
    assert "allow weights" in row(text, "vLLM, fp8 weights")
    assert "taken" in row(text, "llama-server, all on the card")
    assert max(map(len, text.split("The command:")[0].splitlines())) <= 80


def test_the_command_is_that_of_the_rung():
    assert "llama-server --model m.gguf --fit off" in shown(made("rtx-3060", llama_8b()))
    assert "vllm serve Llama-3.1-8B --dtype bfloat16" in shown(made("h100", given=("--dtype", "bfloat16")))


def test_where_nothing_holds_it_is_said():
    text = shown(made("rtx-3060"))
    assert "None of them fits, keeps the wanted context, is allowed, and has what it needs." in text
    assert "The command" not in text


def test_a_rung_that_is_too_short_says_so():
    assert "too short" in row(shown(made("h100", wanted=200_000)), "vLLM ")


def test_everything_is_in_the_json():
    ladder = made("rtx-3060", llama_8b())
    told = json.loads(ladder_report.as_json(ladder))
    assert told["taken"] == ladder.taken
    assert told["rungs"][told["taken"]]["command"][:3] == ["llama-server", "--model", "m.gguf"]
    assert told["rungs"][0]["fits"] is False
    assert told["rungs"][1]["changes"] == ["weights"]
    assert told["rungs"][0]["tokens_per_second"] == 1 / ladder.rungs[0].seconds
