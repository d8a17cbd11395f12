import pytest

from loadtests.stream_check import StreamCheck

CHUNK = 'data: {"id":"x","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}'
ROLE = CHUNK % ('{"role":"assistant","content":""}', "null")
LAST = CHUNK % ('{"content":" 3"}', '"length"')
DONE = "data: [DONE]"


def token(number: int) -> str:
    return CHUNK % (f'{{"content":" {number}"}}', "null")


WHOLE = [ROLE, token(0), token(1), token(2), LAST, DONE]


def check(events: list[str], size: int = 1 << 20) -> StreamCheck:
    stream = "".join(f"{event}\n\n" for event in events).encode()
    checked = StreamCheck()
    for at in range(0, len(stream), size):
        checked.feed(stream[at : at + size])
    return checked


@pytest.mark.parametrize("size", [1, 10, 97, 1 << 20])
def test_a_whole_stream_is_intact_however_it_arrives(size):
    checked = check(WHOLE, size)
    assert checked.intact
    assert checked.events == 4


@pytest.mark.parametrize(
    "events",
    [
        [ROLE, token(0), token(2), LAST, DONE],
        [ROLE, token(0), token(1), token(1), token(2), LAST, DONE],
        [ROLE, token(0), token(2), token(1), LAST, DONE],
        [ROLE, token(0), token(1), token(2).replace("x", "y"), LAST, DONE],
        [ROLE, token(0), token(1), token(2), LAST],
        [ROLE, token(0), token(1), token(2), DONE],
        [ROLE, token(0), token(1), token(2), LAST, 'data: {"choices":[],"usage":{}}', DONE],
        [*WHOLE, token(4)],
        [],
    ],
    ids=["lost", "doubled", "swapped", "changed", "no done", "no finish", "usage nobody asked for", "too many", "none"],
)
def test_anything_else_is_not(events):
    assert not check(events).intact
