import io
import json
import re
import shlex

import pytest
import yaml
from rich.console import Console

from engine.arguments import Arguments
from engine.plan.cards import GIB, Hardware
from engine.plan.planner import plan
from engine.plan.published import STARTS
from engine.plan.report import WIDTH, as_json, command, configuration, show, show_published
from engine.plan.traffic import Distribution, Range, Traffic
from tests.unit.engine.plan.models import hardware, request

LENGTHS = Distribution(Range(500, 500), Range(2000, 2000), Range(3000, 3000))
CASES = {
    "fits": request("Llama-3.1-8B"),
    "shorter": request("Llama-3.1-8B", "--enforce-eager", on=hardware("rtx-4090")),
    "quantized": request("Llama-3-70B", on=hardware("a100", 2)),
    "not": request("Llama-3-70B", on=hardware("rtx-4090")),
    "cpu": request("Llama-3.1-8B", on=Hardware("the CPU", 1, 64 * GIB, 60 * GIB, cpu=True)),
    "traffic": request("Qwen3-8B", traffic=Traffic("a.csv", 10, total_tokens=LENGTHS, concurrency=LENGTHS)),
    "parallel": request("Qwen3-32B", on=hardware("l40s", 4), all_cards=True),
}


def printed(show_it, *args):
    stream = io.StringIO()
    show_it(*args, Console(file=stream, width=WIDTH, highlight=False, markup=False))
    return stream.getvalue()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_plan_is_plain_text_of_80_columns_away_from_a_terminal(case):
    text = printed(show, plan(case), case)
    assert "\x1b" not in text
    assert max(map(len, text.partition("\nThe command")[0].splitlines())) <= WIDTH


def test_a_plan_shows_where_the_card_goes():
    case = CASES["fits"]
    text = printed(show, plan(case), case)
    (bar,) = [line for line in text.splitlines() if line.startswith("|")]
    assert len(bar) == 62
    assert bar.count("█") == pytest.approx(60 * 14.96 / 79.19, abs=1)
    for word in ("Llama-3.1-8B on 1 x h100", "fits", "weights", "CUDA graphs", "128.0 KiB a token", "at once"):
        assert word in text


def test_changes_are_shown_with_their_reasons_and_the_command():
    case = CASES["shorter"]
    made = plan(case)
    text = printed(show, made, case)
    assert "fits with changes" in text
    assert "--max-model-len" in text
    assert shlex.join(command(made, case)) in text.splitlines()  # unbroken, to be copied
    assert command(made, case)[:4] == ("vllm", "serve", "Llama-3.1-8B", "--enforce-eager")


def test_what_does_not_fit_says_what_is_missing_and_what_would():
    case = CASES["not"]
    text = printed(show, plan(case), case)
    assert "does not fit" in text
    assert "Missing on each card" in text
    assert "The nearest that fits: 8 x rtx-4090" in text
    assert "vllm serve" not in text


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_config_is_what_kvgate_reads(case):
    (model,) = yaml.safe_load(configuration(plan(case), case))["models"]
    assert set(model["engine"]) <= {"model", "args", "env"}
    assert all(isinstance(word, str) for word in model["engine"].get("args", ()))


def test_another_checkpoint_is_named_as_one():
    case = request("Qwen3-32B", "--max-model-len", "8192", on=hardware("l4"))
    made = plan(case)
    assert [change.checkpoint for change in made.changes if change.checkpoint] == ["awq"]
    assert command(made, case)[2] == "Qwen3-32B-AWQ"
    assert "-AWQ" in printed(show, made, case)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_json_has_it_all(case):
    made = plan(case)
    told = json.loads(as_json(made, case))
    assert told["verdict"] == made.verdict
    assert told["budget"]["kv"]["low"] == made.budget.kv.low
    assert told["settings"]["max_model_len"] == made.settings.max_model_len
    assert told["hardware"]["total_bytes"] == case.hardware.total_bytes
    assert tuple(told["command"]) == command(made, case)
    assert [change["remedy"] for change in told["changes"]] == [change.remedy for change in made.changes]


def test_published_starts_are_all_shown_with_where_they_are_from():
    text = printed(show_published)
    for start in STARTS:
        assert start.url in text
        assert f"{start.available:.2f}" in text
    outside = sum(bool(start.differs) for start in STARTS)
    assert f"{len(STARTS) - outside} of {len(STARTS)} within the range" in text


def test_cards_that_were_asked_for_are_in_the_command():
    case = CASES["parallel"]
    assert command(plan(case), case)[3:5] == ("--tensor-parallel-size", "4")
    given = request("Qwen3-32B", "--tensor-parallel-size", "4", on=hardware("l40s", 4), all_cards=True)
    assert command(plan(given), given).count("--tensor-parallel-size") == 1


def test_no_kv_cache_is_shown_as_none():
    case = CASES["not"]
    assert re.search(r"KV cache +0.00 GiB", printed(show, plan(case), case))


def test_what_was_given_is_in_the_command_as_it_was():
    case = request("Qwen2.5-7B", "--enforce-eager", "--max-num-seqs", "8")
    assert case.arguments == Arguments.parse(command(plan(case), case)[3:])
