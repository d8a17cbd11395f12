from gateway.admission.events import ResidencyPhase
from gateway.app.parent import Parent, as_line
from gateway.pools.launcher import EngineEnded, EngineNews


async def test_what_is_to_run_and_to_end_is_asked_a_line_each():
    parent = Parent()
    parent.run("127.0.0.1:1")
    parent.end("127.0.0.1:1")
    assert [await parent.next_line(), await parent.next_line()] == ["run 127.0.0.1:1", "end 127.0.0.1:1"]
    parent.seems("127.0.0.1:1", "hung", "no progress\nfor long")
    assert await parent.next_line() == "hung 127.0.0.1:1 no progress for long"


def test_news_is_taken_and_other_lines_are_left():
    parent, heard, ends = Parent(), [], []
    parent.on_news, parent.on_ended = heard.append, ends.append
    news = EngineNews("127.0.0.1:1", phase=ResidencyPhase.STOPPED, takes=2.5, wrong="It ran out of memory.")
    ended = EngineEnded("127.0.0.1:1", "It was killed.", "Give it more memory.")
    assert parent.heard(as_line(news))
    assert parent.heard(as_line(ended))
    assert not parent.heard(b'{"server": {}}')
    assert (heard, ends) == ([news], [ended])
