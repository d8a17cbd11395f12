import json

import pytest
from textual.app import App
from textual.events import Paste

from gateway.commands.top.dialogs import Confirm, Explain
from tests.unit.commands.top.following_fake import Led, text
from tests.unit.commands.top.test_explaining import explained

BODY = json.dumps({"model": "m", "messages": []}, indent=2)


@pytest.mark.parametrize(("key", "answer"), [("y", True), ("n", False), ("escape", False), ("q", False)])
async def test_a_question_has_two_answers(key, answer):
    answers = []
    app = App()
    async with app.run_test() as pilot:
        app.push_screen(Confirm("Drain [red]a:1?"), answers.append)
        await pilot.pause()
        assert "Drain [red]a:1?" in text(app)
        await pilot.press("enter", "x")
        assert answers == []
        await pilot.press(key)
    assert answers == [answer]


async def asked(given, kvgate):
    """What the dialog shows of this, once it is pasted."""
    app = App()
    async with app.run_test(size=(100, 30)) as pilot:
        await app.push_screen(Explain(kvgate))
        app.post_message(Paste(given))
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        return text(app)


async def test_a_pasted_body_of_several_lines_is_explained():
    kvgate = Led(explained=explained())
    assert "It would wait, then go to a:1 (rule order)." in await asked(BODY, kvgate)
    assert kvgate.bodies == [BODY.encode()]


async def test_a_file_is_read(tmp_path):
    file = tmp_path / "b.json"
    file.write_text(BODY)
    kvgate = Led(explained=explained())
    assert "It would wait" in await asked(f" {file}\n", kvgate)
    assert kvgate.bodies == [BODY.encode()]


async def test_what_cannot_be_read_or_is_refused_says_so():
    assert "/nonexistent/b.json cannot be read: No such file" in await asked("/nonexistent/b.json", Led())
    assert "400: no model" in await asked("{}", Led())
    kvgate = Led()
    await asked("  ", kvgate)
    assert kvgate.bodies == []
