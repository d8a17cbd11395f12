"""Endpoints that come and go: looks again and again where the settings say, and has the change carried out.

One process looks: a gateway alone, or the supervisor of several. What it finds stands in the settings that it hands on,
as if somebody had written it there.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gateway.config.discovery import DiscoverySettings
from gateway.config.endpoint import EndpointSettings
from gateway.config.settings import Settings
from gateway.config.sources import endpoints_of

MOST_ENDPOINTS = 256
"""Most endpoints of one source. More are a mistake, and each is scraped every second."""
REMINDER = 60.0
"""Seconds between two warnings that a source tells nothing."""
_LOOK = 1.0
"""Most seconds between two looks at what is due. A file is looked at each time."""
_LEAST_TTL = 1.0

Tell = Callable[[str], None]


class _NothingFoundError(Exception):
    """A source names no endpoint now. The message says why."""


class _Mark(NamedTuple):
    """What tells one state of a file from another."""

    inode: int
    size: int
    changed_at: int


@dataclass(slots=True)
class _Source:
    """What is known of one source.

    Attributes:
        endpoints: found at the last look that found any.
        due: time of the next look, seconds.
        mark: of the file that they were read from.
        fault: why the last look found nothing; None if it did.
        told_at: when that was last said.
    """

    endpoints: tuple[EndpointSettings, ...] = ()
    due: float = -inf
    mark: _Mark | None = None
    fault: str | None = None
    told_at: float = -inf


class Discovery:
    """The endpoints found for some settings.

    A source that cannot be asked, or that names nobody, changes nothing: what was found before stays.

    Attributes:
        settings: those in force, with what was found.
        turn: held while settings change.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.turn = asyncio.Lock()
        self._given = settings
        self._clock = clock
        self._known: dict[DiscoverySettings, _Source] = {}
        self._failed_at = -inf

    async def complete(self, given: Settings) -> Settings:
        """These settings with the endpoints found. Looks first where nobody has looked yet."""
        sources = _sources(given)
        for source in sources:
            self._known.setdefault(source, _Source())
        await self._look(source for source in sources if self._known[source].due == -inf)
        return self._completed(given)

    async def begin(self) -> None:
        """Look everywhere once, before anything runs."""
        self.settings = await self.complete(self._given)

    def follow(self, given: Settings, completed: Settings) -> None:
        """Go by other settings: `completed` are in force now, and came from the `given`."""
        self._given, self.settings = given, completed
        self._known = {source: self._known[source] for source in _sources(given)}

    async def run(self, change: Callable[[Settings], Awaitable[None]], tell: Tell) -> None:
        """Look for ever, and call `change` with other settings when endpoints came or went.

        A change that fails is tried again.
        """
        while True:
            now = self._clock()
            known = [self._known[source] for source in _sources(self._given)]
            await asyncio.sleep(min((_LOOK, *(max(0.0, source.due - now) for source in known))))
            await self.look_again(change, tell)

    async def look_again(self, change: Callable[[Settings], Awaitable[None]], tell: Tell) -> None:
        """Look at what is due, and have what changed carried out."""
        await self._look(source for source in _sources(self._given) if self._known[source].due <= self._clock())
        self._remind(tell)
        async with self.turn:
            completed = self._completed(self._given)
            if completed == self.settings:
                return
            try:
                await change(completed)
            except Exception as error:  # noqa: BLE001 - whatever it was, endpoints come and go tomorrow, too
                self._failed(error, tell)
                return
            tell(_said(self.settings, completed))
            self.settings, self._failed_at = completed, -inf

    async def _look(self, sources: Iterable[DiscoverySettings]) -> None:
        async with asyncio.TaskGroup() as looks:
            for source in sources:
                looks.create_task(self._look_at(source, self._known[source]))

    async def _look_at(self, source: DiscoverySettings, known: _Source) -> None:
        before, fault = known.fault, None
        holds = 0.0
        try:
            if source.file is not None:
                await asyncio.to_thread(_read, source, known)
            else:
                from gateway.endpoints.names import endpoints_behind  # noqa: PLC0415 - with it comes a whole resolver

                urls, holds = await endpoints_behind(source)
                known.endpoints = _bounded([source.endpoint(url=url) for url in urls])
        except Exception as error:  # noqa: BLE001 - whatever one source tells, the others are asked, and asked again
            fault = "; ".join(str(error).splitlines()) or type(error).__name__
        known.due = self._clock() + (_LOOK if source.file is not None else min(source.interval, max(holds, _LEAST_TTL)))
        known.fault = fault
        if (before is None) != (fault is None):
            known.told_at = -inf

    def _remind(self, tell: Tell) -> None:
        now = self._clock()
        for source in _sources(self._given):
            known = self._known[source]
            if known.fault is not None and now - known.told_at >= REMINDER:
                known.told_at = now
                tell(f"{source.name} names no endpoints, and those known ({len(known.endpoints)}) stay: {known.fault}")

    def _failed(self, error: Exception, tell: Tell) -> None:
        if self._clock() - self._failed_at >= REMINDER:
            self._failed_at = self._clock()
            tell(f"endpoints came or went, and that could not be carried out; it is tried again: {error!r}")

    def _completed(self, given: Settings) -> Settings:
        """The settings with what was found.

        Of two endpoints with one address the first counts; before it, one whose source names it now: an engine may have
        the address of one that is gone, whose source has named nobody since.
        """
        taken = {endpoint.address for model in given.models for endpoint in model.endpoints}
        known = [self._known[source] for source in _sources(given)]
        named = {endpoint.address for source in known if source.fault is None for endpoint in source.endpoints}
        models = []
        for model in given.models:
            found = []
            for source in (self._known[source] for source in model.discover):
                others = taken if source.fault is None else taken | named
                new = [endpoint for endpoint in source.endpoints if endpoint.address not in others]
                taken.update(endpoint.address for endpoint in new)
                found += new
            models.append(model.model_copy(update={"endpoints": (*model.endpoints, *found)}))
        return given.model_copy(update={"models": tuple(models)})


def _sources(settings: Settings) -> list[DiscoverySettings]:
    return list(dict.fromkeys(source for model in settings.models for source in model.discover))


def _read(source: DiscoverySettings, known: _Source) -> None:
    """Read a file, unless it is the one that was read last."""
    assert source.file is not None  # noqa: S101 - who calls this looked
    try:
        stat = source.file.stat()
    except OSError as error:
        raise _NothingFoundError(f"cannot be read: {error.strerror}") from None
    mark = _Mark(stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if mark == known.mark:
        return
    known.mark = None
    found = _bounded(endpoints_of(source, source.file))
    known.endpoints, known.mark = found, mark


def _bounded(found: Iterable[EndpointSettings]) -> tuple[EndpointSettings, ...]:
    distinct = tuple({endpoint.address: endpoint for endpoint in found}.values())
    if not distinct:
        raise _NothingFoundError("the list is empty")
    if len(distinct) > MOST_ENDPOINTS:
        raise _NothingFoundError(f"{len(distinct)} endpoints, and {MOST_ENDPOINTS} are the most")
    return distinct


def _said(before: Settings, after: Settings) -> str:
    """Which endpoints came and went."""
    had, has = _addresses(before), _addresses(after)
    marked = [*(f"+{address}" for address in has if address not in had), *(f"-{a}" for a in had if a not in has)]
    return f"endpoints change: {', '.join(marked) or 'settings of some'}"


def _addresses(settings: Settings) -> dict[str, None]:
    return {endpoint.address: None for model in settings.models for endpoint in model.endpoints}
