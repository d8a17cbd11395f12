import gzip
from pathlib import Path

import pytest

from engine.plan.trace_file import read_trace
from engine.plan.traffic import Range, TrafficError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:16:46.6805900,10,9
"""
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,2.5,ChatGPT,472,18,490,Conversation log\n6,1,4,GPT-4,1087,230,1317,API log\n7,2,1,GPT-4,900,0,900,API log\n"
)


def write(tmp_path, text, name="trace.csv"):
    file = tmp_path / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return file


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_azures_columns(tmp_path, name):
    traffic = read_trace(write(tmp_path, AZURE, name))
    assert (traffic.requests, traffic.span, traffic.concurrency) == (2, 60, None)
    assert traffic.total_tokens.most == Range(418, 418)
    assert traffic.source.endswith(name)


def test_burstgpts_columns_with_how_long_it_took_and_without_what_failed(tmp_path):
    traffic = read_trace(write(tmp_path, BURST))
    assert (traffic.requests, traffic.span) == (2, 5)
    assert traffic.prompt_tokens.most == Range(1087, 1087)
    assert traffic.concurrency.most == Range(2, 2)


def test_our_own_columns(tmp_path):
    assert read_trace(write(tmp_path, "arrival,prompt,output\n0.5,10,5\n\n1,20,5\n")).prompt_tokens.p50 == Range(10, 10)


def test_a_production_trace():
    traffic = read_trace(Path(__file__).parents[4] / "loadtests/traces/azure_llm_2023_conv.csv.gz")
    assert (traffic.requests, round(traffic.span)) == (19366, 3502)
    assert traffic.total_tokens.p99 == Range(4259, 4259)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a trace with the columns TIMESTAMP,ContextTokens"),
        ("a,b\n1,2\n", r"Timestamp,Request tokens,Response tokens.*its first line is 'a,b'"),
        ("arrival,prompt,output\n1,2\n", "trace.csv, line 2: expected arrival, prompt and output"),
        ("arrival,prompt,output\n1,2,3\n1,many,3\n", "line 3: .*found '1,many,3'"),
    ],
)
def test_what_is_no_trace_is_told(tmp_path, text, said):
    with pytest.raises(TrafficError, match=said):
        read_trace(write(tmp_path, text))


def test_bytes_that_are_no_text_and_files_that_are_cut_short(tmp_path):
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(TrafficError, match="this is no text"):
        read_trace(tmp_path / "b")
    whole = gzip.compress(AZURE.encode())
    (tmp_path / "c").write_bytes(whole[:-12])
    with pytest.raises(TrafficError, match="damaged"):
        read_trace(tmp_path / "c")
    with pytest.raises(TrafficError, match="none: cannot be read: No such file"):
        read_trace(tmp_path / "none")
