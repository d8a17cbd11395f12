"""The live view of `kvgate top`. It has the terminal's own 16 colours, or none where NO_COLOR is set."""

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import Footer, Static

from gateway.commands.top.dialogs import Confirm, Explain
from gateway.commands.top.figures import ENDPOINTS, FLOWS, REQUESTS, entries, headline, legend, model_line
from gateway.commands.top.following import Kvgate, Lost, RefusedError
from gateway.commands.top.table import Figures
from gateway.ops.pictures.picture import Endpoint, Picture

_MOST_FLOWS = 5
"""Rows of the queue before it scrolls."""


class Top(App[str]):
    """The view of one kvgate. What it returns is why it could not go on."""

    TITLE = "kvgate top"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Screen {{ background: ansi_default; layout: vertical; }}
    #where {{ height: 1; text-style: reverse; }}
    #headline {{ height: auto; max-height: 4; }}
    #models {{ height: auto; max-height: 4; margin-top: 1; }}
    #legend {{ height: 1; }}
    Figures {{ background: ansi_default; scrollbar-size: 1 1; overflow-x: hidden; }}
    .figures--header {{ background: ansi_default; color: ansi_default; text-style: bold underline; }}
    .figures--cursor {{ background: ansi_default; color: ansi_default; text-style: none; }}
    Figures:focus > .figures--cursor {{ text-style: bold underline; }}
    #endpoints {{ height: auto; max-height: 30%; }}
    #flows {{ height: auto; max-height: {_MOST_FLOWS + 1}; }}
    #requests {{ height: 1fr; min-height: 3; margin-top: 1; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("d", "drain", "Drain"),
        Binding("e", "explain", "Explain"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, kvgate: Kvgate) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._kvgate = kvgate
        self._width = 0
        self._picture: Picture | None = None
        self._lost: Lost | None = None
        self._where = Static(id="where", markup=False)
        self._headline = Static(id="headline", markup=False)
        self._endpoints = Figures(ENDPOINTS, lambda row: row.id, id="endpoints")
        self._models = Static(id="models", markup=False)
        self._flows = Figures(FLOWS, lambda row: (row.model, row.flow.band, row.flow.flow), id="flows")
        self._requests = Figures(REQUESTS, lambda row: row.key, id="requests")

    def compose(self) -> ComposeResult:
        """The parts of the screen, from its top."""
        yield self._where
        yield self._headline
        yield self._endpoints
        yield Static(legend(), id="legend")
        yield self._models
        yield self._flows
        yield self._requests
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to follow."""
        self._follow()

    def on_resize(self, event: Resize) -> None:
        """Write it again, for another width."""
        self._width = event.size.width
        self._show()

    def action_sort(self) -> None:
        """Sort the table with the focus by its next column."""
        if isinstance(self.focused, Figures):
            self.focused.sort_by_next()
            self._show()

    def action_drain(self) -> None:
        """Drain the endpoint under the cursor, or undrain it, once confirmed."""
        endpoint: Endpoint | None = self._endpoints.chosen
        if endpoint is not None:
            self._drain(endpoint)

    def action_explain(self) -> None:
        """Ask for a request, and say what would become of it."""
        self.push_screen(Explain(self._kvgate))

    @work(exclusive=True, group="drain")
    async def _drain(self, endpoint: Endpoint) -> None:
        back = endpoint.state == "draining"
        if not await self.push_screen_wait(Confirm(_question(endpoint, back=back))):
            return
        try:
            await self._kvgate.drain(endpoint.id, back=back)
        except RefusedError as error:
            self.notify(str(error), severity="error", markup=False)

    @work(exclusive=True, group="follow")
    async def _follow(self) -> None:
        try:
            async with self._kvgate:
                async for seen in self._kvgate.follow():
                    if isinstance(seen, Picture):
                        self._picture, self._lost = seen, None
                    else:
                        self._lost = seen
                    self._show()
        except RefusedError as error:
            self.exit(str(error))

    def _show(self) -> None:
        picture, width = self._picture, self._width
        self._where.update(self._about())
        self._headline.update(self._sentence())
        if picture is None:
            return
        self._models.update(Text("\n").join(map(model_line, picture.models)))
        self._endpoints.write(picture.endpoints, picture, width)
        self._flows.write(entries(picture), picture, width)
        self._requests.write(picture.requests, picture, width)

    def _about(self) -> Text:
        if self._picture is None:
            return Text(f"kvgate {self._kvgate.url}")
        return Text(f"kvgate {self._picture.version}  {self._kvgate.url}  {self._picture.mode}")

    def _sentence(self) -> Text:
        if self._lost is not None:
            again = "" if self._lost.again_in is None else f" It tries again in {self._lost.again_in:g} s."
            stale = "" if self._picture is None else " What follows is what was seen last."
            return Text(f"■ No connection: {self._lost.reason}.{again}{stale}", "bold red")
        return Text("Connecting.") if self._picture is None else headline(self._picture)


def _question(endpoint: Endpoint, *, back: bool) -> str:
    if back:
        return f"Undrain {endpoint.id}? It gets requests again as soon as a probe finds it healthy."
    running = "1 request" if endpoint.in_flight == 1 else f"{endpoint.in_flight:,} requests"
    return f"Drain {endpoint.id}? It gets no new requests; {running} on it will finish."
