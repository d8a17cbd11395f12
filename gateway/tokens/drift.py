"""PURE. Holds counts against what engines report, and says which kinds of requests cannot be counted here for now."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Feature
from gateway.wire.request import Api

WINDOW = 100
"""Local counts that are remembered, of each feature of each API."""
LIMIT = 3
"""Wrong ones among them that are no accident."""
FIRST_WAIT = 60.0
"""Seconds from the first doubt to the probes that may end it; each further doubt, and each failed probe, doubles it."""
LONGEST_WAIT = 3600.0
"""Seconds."""

Part = tuple[Api, Feature]
"""What is doubted or trusted. With `PROMPT` it is every request of that API."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A count that differs from the engine's usage."""

    cause: str
    """Who counted, and what kind of request: `local chat+tools`."""
    counted: int
    reported: int
    first: bool
    """Whether this cause is seen for the first time."""
    doubted: tuple[Part, ...]
    """What is not counted here from now on."""


@dataclass(slots=True)
class _Doubt:
    wait: float
    due: float | None
    """When to probe; None once probes have ended the doubt. Then only the wait is remembered, for a relapse."""


class DriftWatch:
    """What was counted against what was reported, for one model."""

    def __init__(self) -> None:
        self._recent: dict[Part, deque[bool]] = {}
        self._doubts: dict[Part, _Doubt] = {}
        self._causes: set[str] = set()

    def doubted(self, api: Api) -> frozenset[Feature]:
        """The features whose requests drift too often."""
        return frozenset(
            feature for (of, feature), doubt in self._doubts.items() if of is api and doubt.due is not None
        )

    def settle(self, count: PromptCount, reported: int, now: float) -> Drift | None:
        """Compare one count; an estimate is not held to it."""
        if count.source is Source.ESTIMATE:
            return None
        counted = sum(count.prompts)
        doubted = self._note(count, counted != reported, now) if count.source is Source.LOCAL else ()
        if counted == reported:
            return None
        cause = f"{count.source} {count.kind}"
        first = cause not in self._causes
        self._causes.add(cause)
        return Drift(cause, counted, reported, first, doubted)

    def due(self, now: float) -> bool:
        """Whether it is time to probe the endpoints for something doubted."""
        return any(doubt.due is not None and doubt.due <= now for doubt in self._doubts.values())

    def probed(self, equal: Callable[[Part], bool], now: float) -> tuple[Part, ...]:
        """Take what the probes showed; return what is counted here again."""
        trusted = []
        for part, doubt in self._doubts.items():
            if doubt.due is None or doubt.due > now:
                continue
            if equal(part):
                doubt.due = None
                trusted.append(part)
            else:
                doubt.wait = min(2 * doubt.wait, LONGEST_WAIT)
                doubt.due = now + doubt.wait
        return tuple(trusted)

    def _note(self, count: PromptCount, wrong: bool, now: float) -> tuple[Part, ...]:  # noqa: FBT001
        """Remember one count; return what it makes doubtful.

        A wrong count speaks against those of its features that were wrong most often of late: where tools are counted
        right and tool calls never, a request with both speaks against tool calls.
        """
        kind = count.kind
        shares: dict[Part, float] = {}
        for feature in kind.features - {Feature.PROMPT} or {Feature.PROMPT}:
            recent = self._recent.setdefault((kind.api, feature), deque(maxlen=WINDOW))
            recent.append(wrong)
            shares[kind.api, feature] = sum(recent) / len(recent)
            if len(recent) == WINDOW and not any(recent):
                self._forget((kind.api, feature))
        if not wrong:
            return ()
        suspects = [part for part, share in shares.items() if share == max(shares.values())]
        return tuple(part for part in suspects if self._doubt(part, now))

    def _doubt(self, part: Part, now: float) -> bool:
        known = self._doubts.get(part)
        if sum(self._recent[part]) < LIMIT or (known is not None and known.due is not None):
            return False
        wait = FIRST_WAIT if known is None else min(2 * known.wait, LONGEST_WAIT)
        self._doubts[part] = _Doubt(wait, now + wait)
        self._recent[part].clear()
        return True

    def _forget(self, part: Part) -> None:
        """A feature that was right all along is new to doubt."""
        doubt = self._doubts.get(part)
        if doubt is not None and doubt.due is None:
            del self._doubts[part]
