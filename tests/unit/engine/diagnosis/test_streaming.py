import pytest

from engine.diagnosis.streaming import Arrivals, Flow, flow, judge


def spread(events: int, seconds: float, first: float = 0.05) -> list[tuple[float, int]]:
    return [(first + seconds * number / events, 1) for number in range(events)]


LUMP = [(2.0, 60), (2.01, 4)]
ALMOST = [(0.5, 0), (1.95, 30), (2.0, 34)]
CHUNKS = [(number * 0.25, 8) for number in range(1, 9)]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (spread(64, 2.0), Flow.SPREAD),
        (spread(64, 2.0, first=5.0), Flow.SPREAD),  # a long prefill, then tokens one by one
        (LUMP, Flow.LUMP),
        (ALMOST, Flow.LUMP),
        (CHUNKS, Flow.CHUNKS),
        (spread(64, 0.1), Flow.UNCLEAR),
        (spread(4, 2.0), Flow.UNCLEAR),
        ([], Flow.UNCLEAR),
        ([(3.0, 0)], Flow.UNCLEAR),
    ],
)
def test_how_a_stream_came(reads: list[tuple[float, int]], expected: Flow) -> None:
    assert flow(Arrivals(reads)) is expected


def test_pieces_that_come_at_once_are_one_read() -> None:
    pieces = [(2.0 + number * 0.00005, 1) for number in range(64)]
    assert len(Arrivals(pieces).reads) == 1
    assert flow(Arrivals(pieces)) is Flow.LUMP
    waited = [(60.0 + number * 0.01, 1) for number in range(64)]  # a minute in a queue, then token by token
    assert flow(Arrivals(waited)) is Flow.SPREAD


def test_events_of_many_tokens_in_one_read_are_a_lump_too() -> None:
    assert flow(Arrivals([(2.0, 4)], tokens=64)) is Flow.LUMP


def test_a_buffered_stream_is_told_with_its_times_and_who_it_may_be() -> None:
    found = judge(Arrivals(LUMP, 64, {"server": "nginx/1.27", "x-request-id": "7"}))
    assert found is not None
    assert found.evidence == (
        "64 events of 64 tokens came in 2 reads, the first after 2.00 s and the last after 2.01 s (server: nginx/1.27)"
    )
    assert "proxy_buffering off" in found.remedy


def test_a_stream_that_flows_is_no_finding() -> None:
    assert judge(Arrivals(spread(64, 2.0))) is None
    assert judge(Arrivals(spread(64, 0.1))) is None
