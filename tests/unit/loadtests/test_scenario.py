from pathlib import Path

import pytest

from loadtests.scenario import Request, RequestChange, Scenario, ScenarioError, load, names

GOOD = "description: x\nphases: [{seconds: 10}]\n"
REQUESTS = "requests: [{prompt: 10, output: 5}]\n"


def read(folder: Path, text: str) -> Scenario:
    file = folder / "mine.yaml"
    file.write_text(text)
    return load(str(file))


@pytest.mark.parametrize("name", names())
def test_every_scenario_that_comes_with_the_load_tests_is_whole(name):
    scenario = load(name)
    assert scenario.description
    assert scenario.duration >= 60


def test_the_cases_an_operator_looks_for_are_there():
    named = {"azure-conversation", "azure-code", "long-outputs", "burst", "long-among-short", "noisy-neighbour"}
    assert named | {"spike", "agents", "peak", "fair-shares"} <= set(names())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + REQUESTS + "ratee: 3\n", "ratee"),
        (GOOD.replace("10", "-1") + REQUESTS, r"\$\.phases\[0\]\.seconds"),
        (GOOD + REQUESTS.replace("10", "0"), r"\$\.requests\[0\]\.prompt"),
        (GOOD + "requests: [{prompt: [1, 2, 3], output: 5}]\n", r"\$\.requests\[0\]\.prompt"),
        (GOOD + "requests: [{prompt: [9, 2], output: 5}]\n", "`prompt` runs from 9 down to 2"),
        (GOOD + "requests: [{prompt: 9}]\n", "either `trace`, or both `prompt` and `output`"),
        (GOOD + "requests: [{prompt: 9, output: 1, trace: {file: x}}]\n", "either `trace`"),
        (GOOD + "requests: [{trace: {file: x, prompt_scale: 0}}]\n", r"\$\.requests\[0\]\.trace\.prompt_scale"),
        (GOOD, "`requests` is empty"),
        (GOOD + REQUESTS + "alone: who\n", "`alone` is 'who'"),
        (GOOD + REQUESTS + "flows: [{name: a}, {name: a}]\n", "a name twice"),
        (GOOD + REQUESTS + "arrivals: trace\n", "`arrivals: trace` needs"),
        (GOOD + REQUESTS + "arrivals: sometimes\n", r"\$\.arrivals"),
        (GOOD + REQUESTS + "verdict: [{figure: lost}]\n", "one of `most` and `least`"),
        ("phases: [\n", "mine.yaml"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_field(tmp_path, text, said):
    with pytest.raises(ScenarioError, match=said) as caught:
        read(tmp_path, text)
    assert "mine.yaml" in str(caught.value)


def test_a_name_that_is_none_is_answered_with_those_that_are():
    with pytest.raises(ScenarioError, match="long-outputs"):
        load("long-output")


def test_time_is_that_of_the_phases_unless_it_is_said(tmp_path):
    text = "description: x\nphases: [{seconds: 10}, {seconds: 5, load: 2}]\n" + REQUESTS
    assert read(tmp_path, text).duration == 15
    assert read(tmp_path, text + "seconds: 60\n").duration == 60


def test_lengths_are_scaled_for_a_smaller_machine():
    request = RequestChange(0.1, 0.5)(Request(prompt=(100, 200), output=300, max_tokens_slack=10))
    assert (request.prompt, request.output, request.max_tokens_slack) == ((10, 20), 150, 5)


def test_no_length_is_scaled_to_nothing():
    assert RequestChange(0.001)(Request(prompt=10, output=5)).prompt == 1


def test_the_peak_fixes_lengths_but_not_those_of_a_trace():
    assert RequestChange(prompt=8000)(Request(prompt=(100, 200), output=3)).prompt == 8000
    with pytest.raises(ScenarioError, match="scaled, not fixed"):
        load("azure-code").with_requests(RequestChange(prompt=8000))
