import io
import json

from rich.console import Console

from engine.plan.cards import GIB, Hardware, find
from engine.plan.llama import report
from engine.plan.llama.planner import Machine, Wishes, plan
from tests.unit.engine.plan.llama.models import llama_8b, mixture, model


def machine(card="rtx-3060", host=64):
    found = find(card)
    return Machine(Hardware(found.name, 1, found.total_bytes), host and host * GIB, 8)


def shown(made):
    out = Console(file=io.StringIO(), width=80, highlight=False, markup=False)
    report.show(made, out)
    return out.file.getvalue()


def row(text, beginning):
    return next(line for line in text.splitlines() if line.startswith(beginning))


def test_the_parts_are_shown_where_they_lie():
    text = shown(plan(llama_8b(), machine()))
    assert "m.gguf on 1 x rtx-3060 (11.82 GiB): fits" in text
    assert row(text, "weights").split() == ["weights", "3.93", "0.28"]
    assert "128.0 KiB each" in text
    assert " to " in row(text, "compute buffers")
    assert "taken" in row(text, "all on the card")
    assert max(map(len, text.split("The command:")[0].splitlines())) <= 80


def test_each_way_has_its_slow_down_beside_the_first():
    text = shown(plan(llama_8b(), machine()))
    assert "1.0 x" in row(text, "all on the card")
    assert float(row(text, "all on the host").split()[-2]) > 5
    assert "not measured" in text


def test_the_command_can_be_copied():
    made = plan(mixture(), machine())
    assert " ".join(report.command(made)) in shown(made)
    assert "--n-cpu-moe" in report.command(made)


def test_what_does_not_fit_says_what_is_missing_and_what_would_do():
    text = shown(plan(llama_8b("f16"), machine(host=6)))
    assert "does not fit" in text
    assert "lacks 3.44 GiB of the card" in " ".join(text.split())
    assert "All of it would fit on 1 x " in text
    assert "The command" not in text


def test_a_small_cache_is_named_where_it_would_help():
    text = shown(plan(llama_8b(), machine(), Wishes(context=65536)))
    assert "--cache-type-k q8_0" in text
    assert "--cache-type-k" not in shown(plan(model(), machine()))


def test_a_host_nobody_measured_and_a_speed_nobody_knows_are_said():
    text = shown(plan(model(), Machine(Hardware("a card of 8GiB", 1, 8 * GIB))))
    assert "unknown" in row(text, "there are")
    assert "?" in row(text, "all on the card")


def test_notes_are_shown():
    assert "index" in shown(plan(model("deepseek32"), machine()))


def test_everything_is_in_the_json():
    made = plan(llama_8b(), machine())
    told = json.loads(report.as_json(made))
    assert told["verdict"] == "fits"
    assert told["settings"]["gpu_layers"] == 33
    assert told["command"] == list(report.command(made))
    assert [rung["fits"] for rung in told["rungs"]] == [rung.fits for rung in made.rungs]
    assert told["rungs"][0]["tokens_per_second"] == 1 / made.rungs[0].seconds
    assert told["rungs"][0]["memory"]["cards"][0]["kv"] == made.rungs[0].memory.cards[0].kv
    assert len(told["model"]["layers"]) == 32
