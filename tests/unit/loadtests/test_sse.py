import pytest

from loadtests.sse import EventReader

STREAM = b'data: {"a":1}\n\n: keep-alive\n\nevent: x\ndata: one\ndata:two\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a":1}', b"one\ntwo", b"[DONE]"]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_the_bytes_arrive(size, ending):
    stream = STREAM.replace(b"\n", ending)
    reader = EventReader()
    found = [event for at in range(0, len(stream), size) for event in reader.feed(stream[at : at + size])]
    assert found == EVENTS
    assert not reader.torn


def test_an_event_without_its_end_is_torn():
    reader = EventReader()
    assert reader.feed(b'data: {"a"') == []
    assert reader.torn
