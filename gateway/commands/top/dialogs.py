"""The dialogs of `kvgate top`: a question before a change, and the explanation of a request."""

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

from gateway.commands.top.explaining import explanation
from gateway.commands.top.following import Kvgate, RefusedError

_CSS = """
{name} {{ align: center middle; }}
{name} > * {{
    width: 90%; max-width: 110; height: auto; max-height: 90%; padding: 0 1; border: round ansi_default;
    background: ansi_default;
}}
"""


class Confirm(ModalScreen[bool]):
    """A question of yes or no."""

    DEFAULT_CSS = _CSS.format(name="Confirm")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)"),
        Binding("n,escape,q", "dismiss(False)"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question, and its answers."""
        with Vertical():
            yield Static(Text(f"{self._question}\n\ny  yes    n  no"))


class Request(TextArea):
    """A field for a request: Enter ends it, as what is pasted does not come as keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", priority=True)]

    class Given(Message):
        """It is written."""

    def action_submit(self) -> None:
        """Tell that it is written."""
        self.post_message(self.Given())


class Explain(ModalScreen[None]):
    """A field for a request, and below it what would become of that."""

    DEFAULT_CSS = _CSS.format(name="Explain") + "Explain Request { height: 6; border: none; background: ansi_default; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)")]

    def __init__(self, kvgate: Kvgate) -> None:
        super().__init__()
        self._kvgate = kvgate

    def compose(self) -> ComposeResult:
        """The field, and a place for the answer."""
        with VerticalScroll(can_focus=False):
            yield Static(
                Text("Paste a request's body, or write the name of a JSON file with one. Enter explains, Esc leaves.")
            )
            yield Request(soft_wrap=True)
            yield Static(id="explained", markup=False)

    @on(Request.Given)
    async def explain(self) -> None:
        """Ask, and show the answer."""
        given = self.query_one(Request).text.strip()
        if not given:
            return
        try:
            said = explanation(await self._kvgate.explain(_body(given)))
        except OSError as error:
            said = Text(f"{given} cannot be read: {error.strerror}", "red")
        except RefusedError as error:
            said = Text(str(error), "red")
        self.query_one("#explained", Static).update(said)


def _body(given: str) -> bytes:
    return given.encode() if given.startswith("{") else Path(given).expanduser().read_bytes()
