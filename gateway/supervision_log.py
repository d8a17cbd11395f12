"""What a person at the terminal sees of the supervisor, and its last words when it could not go on."""

from rich.console import Console

from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady, GaveUp, SupervisorEvent


class SupervisionLog:
    """Prints what happens as it happens. Programs that were given up are named again at the end, with the way out."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._given_up: dict[str, Diagnosis] = {}

    def __call__(self, event: SupervisorEvent) -> None:
        """Take in one event."""
        self._console.print(str(event), markup=False, soft_wrap=True)
        if isinstance(event, GaveUp):
            self._given_up[event.program] = event.diagnosis
        elif isinstance(event, BecameReady):
            self._given_up.pop(event.program, None)

    def last_words(self) -> None:
        """Say why it ended: after the log of an engine, and of others that were stopped, nobody would find it."""
        for program, diagnosis in self._given_up.items():
            for line in f"{program} could not run: {diagnosis}".splitlines():
                self._console.print(f"kvgate: {line}", markup=False, soft_wrap=True)
