"""The program in a gateway's process, as its signals and its supervisor see it."""

from collections.abc import Sequence
from typing import Protocol

from gateway.app.parent import Parent
from gateway.config.reloadable import SettingsChange
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus


class Served(Protocol):
    """What runs in this process: a gateway alone, a front, or the owner of the decisions."""

    @property
    def parent(self) -> Parent:
        """The talk with the parent that launches engines."""
        ...

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        ...

    @property
    def where(self) -> int | str:
        """The port or unix socket that clients use; 0 if it serves none."""
        ...

    @property
    def active(self) -> int:
        """What it would leave unfinished now."""
        ...

    @property
    def endpoints(self) -> Sequence[EndpointStatus]:
        """The present status of each endpoint."""
        ...

    @property
    def loaded(self) -> frozenset[str]:
        """Models that wait for no tokenizer."""
        ...

    async def start(self, settle: float = 0.0) -> None:
        """Begin."""
        ...

    async def change(self, settings: Settings) -> SettingsChange:
        """Put other settings in force."""
        ...

    async def drain(self, timeout: float) -> None:
        """Take no new work, and wait for what runs."""
        ...

    async def hand_over(self, timeout: float) -> None:
        """Leave new work to another process, and wait for what runs."""
        ...

    async def stop(self) -> None:
        """Close everything."""
        ...
