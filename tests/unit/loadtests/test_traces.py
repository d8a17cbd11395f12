import gzip

import pytest

from loadtests.traces import Row, read_trace

CSV = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.6815900,396,109\n"
)
ROWS = (Row(0.0, 374, 44), Row(4.001, 396, 109))


def test_a_trace_is_read_plain_or_packed(tmp_path):
    plain, packed = tmp_path / "plain.csv", tmp_path / "packed.csv"
    plain.write_text(CSV)
    packed.with_name("packed.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    assert read_trace(str(plain)) == read_trace(str(packed)) == ROWS


def test_a_trace_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        read_trace(str(tmp_path / "none.csv"))
