import gzip
from collections import Counter
from pathlib import Path

import pytest

from gateway.simulation import workload
from gateway.simulation.workload import Request, WorkloadError
from gateway.tokens.prefix import prefix_of

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2225670,879,55
"""
TRACES = Path(__file__).parents[3] / "loadtests" / "traces"


def file(folder, text, name="trace.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_azures_traces_are_read(tmp_path, name):
    first, second, _ = workload.load(file(tmp_path, AZURE, name))
    assert (first.arrival, first.prompt, first.output) == (0.0, 374, 44)
    assert second.arrival == pytest.approx(4.314579, abs=1e-5)


BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,API log
118,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1300, "output_length": 50, "hash_ids": [1, 2, 3]}
{"timestamp": 4000, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 4]}

{"timestamp": 4500, "input_length": 600, "output_length": 9, "hash_ids": [1, 5]}
{"timestamp": 5000, "input_length": 400, "output_length": 9, "hash_ids": [6]}
"""


def test_burstgpts_are_read_without_what_failed(tmp_path):
    found = workload.load(file(tmp_path, BURSTGPT))
    assert [(each.arrival, each.prompt, each.output) for each in found] == [(0, 472, 18), (113, 417, 276)]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_mooncakes_are_read_with_the_prefixes_that_requests_share(tmp_path, name):
    found = workload.load(file(tmp_path, MOONCAKE, name))
    assert [(each.arrival, each.prompt, each.output) for each in found] == [
        (0.0, 1300, 50),
        (3.0, 1100, 7),
        (3.5, 600, 9),
        (4.0, 400, 9),
    ]
    prefixes = [dict(workload.prefix(each, number)) for number, each in enumerate(found)]

    def common(one, other):
        return max([end for end, part in prefixes[one].items() if prefixes[other].get(end) == part], default=0)

    assert (common(0, 1), common(0, 2), common(1, 2), common(0, 3)) == (1024, 512, 512, 0)


def test_a_line_of_mooncakes_that_lacks_something_is_refused(tmp_path):
    with pytest.raises(WorkloadError, match="without 'hash_ids'"):
        workload.load(file(tmp_path, '{"timestamp": 1, "input_length": 3, "output_length": 3}\n'))


def test_plain_ones_are_read_in_the_order_of_arrival(tmp_path):
    found = workload.load(file(tmp_path, "arrival,prompt,output\n3,10,1\n1.5,20,2\n"))
    assert [(request.arrival, request.prompt) for request in found] == [(0.0, 20), (1.5, 10)]


def test_a_limit_takes_the_first(tmp_path):
    assert len(workload.load(file(tmp_path, AZURE), 2)) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "columns are a, b"),
        ("", "columns are none"),
        ("arrival,prompt,output\n", "no requests"),
        ("arrival,prompt,output\n1,ten,2\n", "ten"),
        ("arrival,prompt,output\nsoon,10,2\n", "soon"),
        ("arrival,prompt,output\n1,10\n", "trace.csv"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, said):
    with pytest.raises(WorkloadError, match=said):
        workload.load(file(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(WorkloadError, match=r"none\.csv"):
        workload.load(tmp_path / "none.csv")


@pytest.mark.parametrize(("name", "requests"), [("conv", 19_366), ("code", 8_819)])
def test_the_traces_of_the_project_are_whole(name, requests):
    assert len(workload.load(TRACES / f"azure_llm_2023_{name}.csv.gz")) == requests


def test_a_rate_rescales_the_clock_and_keeps_the_bursts():
    offered = (Request(0, 1, 1), Request(1, 1, 1), Request(10, 1, 1))
    found = workload.at_rate(offered, 0.6)
    assert [request.arrival for request in found] == pytest.approx([0, 0.5, 5])
    assert workload.rate(found) == pytest.approx(0.6)


def test_lengths_are_scaled_and_what_clients_ask_for_goes_with_outputs():
    (found,) = workload.scaled((Request(0, 10, 3, max_tokens=100),), prompts=8, outputs=4)
    assert (found.prompt, found.output, found.max_tokens) == (80, 12, 400)


def test_what_does_not_fit_is_cut():
    (found,) = workload.fitted((Request(0, 5000, 900, max_tokens=2000),), 4096, 100_000)
    assert (found.prompt, found.output, found.max_tokens) == (2096, 900, 2000)


def test_groups_share_the_hashes_of_what_they_share_and_no_more():
    offered = workload.sharing(tuple(Request(0, 1000, 1) for _ in range(40)), 0.5, groups=2, seed=3)
    prefixes = [workload.prefix(request, number) for number, request in enumerate(offered)]
    for one, a in zip(offered, prefixes, strict=True):
        for other, b in zip(offered, prefixes, strict=True):
            common = set(a) & set(b)
            if one is not other:
                assert {tokens for tokens, _ in common} == set(range(64, 501, 64) if one.shared == other.shared else ())


@pytest.mark.parametrize("prompt", [1, 64, 65, 1024, 1025, 3000, 50_000])
def test_prompts_are_cut_into_parts_where_the_gateway_cuts_them(prompt):
    parts = workload.prefix(Request(0, prompt, 1), 0)
    assert [tokens for tokens, _ in parts] == [tokens for tokens, _ in prefix_of([1] * prompt, b"key", "")]


def test_flows_send_unequal_parts_and_nothing_else_changes():
    offered = tuple(Request(float(number), 10, 20) for number in range(6000))
    dealt = workload.in_flows(offered, 3)
    parts = Counter(request.flow for request in dealt)
    assert [parts[flow] / 1000 for flow in ("1", "2", "3")] == pytest.approx([1, 2, 3], rel=0.1)
    assert [(request.arrival, request.prompt, request.output) for request in dealt] == [
        (request.arrival, request.prompt, request.output) for request in offered
    ]
    assert dealt == workload.in_flows(offered, 3)
