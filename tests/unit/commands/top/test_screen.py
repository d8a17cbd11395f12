import contextlib
from dataclasses import replace

import pytest

from gateway.commands.top.figures import REQUESTS
from gateway.commands.top.following import Lost, RefusedError
from gateway.commands.top.screen import Top
from gateway.ops.pictures.picture import Flow, Sign, Split
from tests.unit.commands.top.following_fake import Led, text
from tests.unit.ops.pictures.pictures import endpoint, model, picture, request
from tests.until import until

SPLIT = Split(running=0.5, shared=0.1, foreign=0.0, promised=0.1, free=0.3)
LIMIT = Sign(key="gate", level="busy", text="Serving at its limit. KV 91 %, 3 waiting, 0 refused in 5 min.")
BUSY = picture(
    headline=LIMIT,
    signs=(LIMIT,),
    endpoints=(endpoint("gpu-1:8000", split=SPLIT, sequences=12), endpoint("gpu-2:8000", in_flight=3)),
    models=(model(waiting=3, flows=(Flow(band=2, flow="batch", weight=1.0, waiting=3, oldest=996.0),)),),
    requests=tuple(
        request(str(number), flow=f"flow-{number}", prompt=100 - number, held=number % 7) for number in range(60)
    ),
)


@contextlib.asynccontextmanager
async def top(*seen, size=(80, 24)):
    kvgate = Led(*seen)
    app = Top(kvgate)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(kvgate.seen.empty)
        await pilot.pause()
        yield app, kvgate, pilot


def rows(app):
    """The requests on the screen, by the number of their flow."""
    lines = [line.split() for line in text(app).splitlines() if line.startswith("running ")]
    return [int(line[1].removeprefix("flow-")) for line in lines]


@pytest.mark.parametrize("size", [(80, 24), (60, 15), (200, 60)])
async def test_all_parts_are_on_the_screen(size):
    async with top(BUSY, size=size) as (app, _, _):
        wanted = ["Serving at its limit.", "gpu-1:8000", "gpu-2:8000", "71 %", "█", "batch", "flow-0", "Quit"]
        await until(lambda: all(part in text(app) for part in wanted))  # its last line is composed a moment later
        assert text(app).count("\n") == size[1] - 1


async def test_it_writes_itself_for_a_terminal_of_another_size():
    async with top(BUSY) as (app, _, pilot):
        assert "prefill" not in text(app)
        await pilot.resize_terminal(140, 40)
        await until(lambda: "prefill" in text(app))
        await pilot.resize_terminal(80, 24)
        await until(lambda: "prefill" not in text(app))
        assert "gpu-1:8000" in text(app)


async def test_a_key_sorts_the_table_with_the_focus_by_the_next_column_and_back():
    async with top(BUSY) as (app, _, pilot):
        assert rows(app)[:3] == [0, 1, 2]
        await pilot.press("tab", "tab", "s", "s", "s")
        assert "in▾" in text(app)
        await pilot.press("s", "s")
        assert "blocks▾" in text(app)
        assert rows(app)[:3] == [6, 13, 20]
        await pilot.press("s", "s", "s")
        assert rows(app)[:3] == [0, 1, 2]


async def test_the_cursor_stays_on_its_request_while_others_come():
    async with top(BUSY) as (app, kvgate, pilot):
        await pilot.press("tab", "tab", "down", "down", "down")
        kvgate.seen.put_nowait(picture(requests=(request("new", flow="flow-99"), *BUSY.requests)))
        await until(lambda: 99 in rows(app))
        assert app.focused.chosen.key == "3"


async def test_the_cursor_goes_where_keys_and_mouse_send_it_and_is_seen_there():
    async with top(BUSY) as (app, _, pilot):
        await pilot.press("tab", "tab", "pagedown")
        assert app.focused.chosen.key in {str(number) for number in rows(app)} - {"0"}
        await pilot.press("end")
        assert (app.focused.chosen.key, rows(app)[-1]) == ("59", 59)
        await pilot.press("down", "up")
        assert app.focused.chosen.key == "58"
        await pilot.press("home", "pageup")
        assert (app.focused.chosen.key, rows(app)[0]) == ("0", 0)
        await pilot.click("#requests", offset=(3, 4))
        assert app.focused.chosen.key == "3"
        await pilot.click("#endpoints", offset=(3, 2))
        assert app.focused.chosen.id == "gpu-2:8000"


async def test_only_rows_on_the_screen_are_made_into_text(monkeypatch):
    made = []
    first, *others = REQUESTS
    noting = replace(first, text=lambda row, *rest: made.append(row.key) or first.text(row, *rest))
    monkeypatch.setattr("gateway.commands.top.screen.REQUESTS", (noting, *others))
    async with top(BUSY) as (app, _, _):
        assert set(made) == {str(number) for number in rows(app)}
        assert len(rows(app)) < 20


async def test_the_place_in_a_table_stays_while_pictures_come():
    async with top(BUSY) as (app, kvgate, pilot):
        app.query_one("#requests").scroll_to(y=20, animate=False)
        await until(lambda: rows(app)[0] == 20)
        kvgate.seen.put_nowait(picture(requests=BUSY.requests, endpoints=(endpoint("gpu-9:8000"),)))
        await until(lambda: "gpu-9:8000" in text(app))
        await pilot.pause()
        assert rows(app)[0] == 20


async def test_a_drain_is_asked_for_confirmed_and_taken_back():
    async with top(BUSY) as (app, kvgate, pilot):
        await pilot.press("down", "d")
        assert "Drain gpu-2:8000? It gets no new requests; 3 requests on it will" in text(app)
        await pilot.press("n")
        assert kvgate.drained == []
        await pilot.press("d", "y")
        await until(lambda: kvgate.drained == [("gpu-2:8000", False)])
        drained = endpoint("gpu-2:8000", healthy=False, state="draining")
        kvgate.seen.put_nowait(picture(endpoints=(BUSY.endpoints[0], drained)))
        await until(lambda: "draining" in text(app))
        await pilot.press("d")
        assert "Undrain gpu-2:8000?" in text(app)
        await pilot.press("y")
        await until(lambda: kvgate.drained[1:] == [("gpu-2:8000", True)])


async def test_a_drain_that_is_refused_says_why():
    async with top(picture(endpoints=(endpoint("refused:1"),))) as (app, _, pilot):
        await pilot.press("d", "y")
        await until(lambda: "Only from this machine." in text(app))


async def test_pictures_come_while_a_dialog_is_open():
    async with top(BUSY) as (app, kvgate, pilot):
        await pilot.press("e")
        kvgate.seen.put_nowait(picture(endpoints=(endpoint("gpu-9:8000"),)))
        await until(kvgate.seen.empty)
        await pilot.press("escape")
        assert "gpu-9:8000" in text(app)


async def test_a_lost_connection_is_told_above_what_was_seen_last():
    async with top(BUSY, Lost("connection refused", 2.0)) as (app, kvgate, _):
        shown = " ".join(text(app).split())
        assert "No connection: connection refused. It tries again in 2 s. What follows is what was seen last." in shown
        assert "gpu-1:8000" in shown
        kvgate.seen.put_nowait(BUSY)
        await until(lambda: "No connection" not in text(app))
        assert "Serving at its limit." in text(app)


async def test_before_the_first_picture_it_says_that_it_tries():
    async with top() as (app, kvgate, pilot):
        assert "Connecting." in text(app)
        await pilot.press("d", "s")
        kvgate.seen.put_nowait(Lost("connection refused", 0.5))
        await until(lambda: "No connection: connection refused." in text(app))


async def test_what_no_other_attempt_changes_ends_it():
    kvgate = Led(RefusedError("it wants an admin key"))
    app = Top(kvgate)
    async with app.run_test():
        await until(lambda: app.return_value is not None)
    assert app.return_value == "it wants an admin key"
    assert kvgate.closed


async def test_q_ends_it():
    async with top(BUSY) as (app, _, pilot):
        await pilot.press("q")
    assert app.return_value is None


@pytest.mark.parametrize("no_color", ["1", None])
async def test_it_has_the_terminals_own_colours_or_none(monkeypatch, no_color):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    async with top(BUSY) as (app, _, _):
        svg = app.export_screenshot()
        used = {
            each.name
            for strip in app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
            for each in (segment.style.color, segment.style.bgcolor)
            if each is not None
        }
    assert "gpu-1" in svg
    assert not any(name.startswith("#") for name in used), used
