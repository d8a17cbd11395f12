"""PURE. The drift watch: compares counts with the engines' usage, and names the requests not to count so for now."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.tokens.count import PromptCount
from gateway.tokens.features import Feature
from gateway.wire.request import Api

WINDOW = 100
"""Counts remembered for each feature of each API."""
LIMIT = 3
"""Wrong counts among them from which a feature is doubted."""
FIRST_WAIT = 60.0
"""Seconds from the first doubt to the probes that may end it. Each further doubt or failed probe doubles them."""
LONGEST_WAIT = 3600.0
"""Most seconds of that wait."""

Part = tuple[Api, Feature]
"""The requests of an API that bring a feature: doubted or trusted together. With `PROMPT`, all of that API."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A count that differs from the engine's usage."""

    cause: str
    """The count's source and the kind of request: `local chat+tools`."""
    counted: int
    reported: int
    first: bool
    """Whether this cause appears for the first time."""
    doubted: tuple[Part, ...]
    """The parts that are doubted from now on."""


@dataclass(slots=True)
class _Doubt:
    wait: float
    due: float | None
    """When to probe; None once probes have ended the doubt. Then only the wait is kept, for a relapse."""


class DriftWatch:
    """The drift of one model's counts, of one source, from the engines' usage."""

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
        """Compare one count with the engine's."""
        counted = count.tokens
        doubted = self._note(count, counted != reported, now)
        if counted == reported:
            return None
        cause = f"{count.source} {count.kind}"
        first = cause not in self._causes
        self._causes.add(cause)
        return Drift(cause, counted, reported, first, doubted)

    def due(self, now: float) -> bool:
        """Whether a probe of the endpoints is due for a doubted part."""
        return any(doubt.due is not None and doubt.due <= now for doubt in self._doubts.values())

    def probed(self, equal: Callable[[Part], bool], now: float) -> tuple[Part, ...]:
        """Take the probes' result; return the parts counted here again."""
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
        """Remember one count; return the parts it makes doubtful.

        A wrong count speaks against those of its features that were wrong most often lately. If tools are always
        counted right and tool calls never, a wrong request with both speaks against tool calls.
        """
        kind = count.kind
        shares: dict[Part, float] = {}
        for feature in kind.features - {Feature.PROMPT} or {Feature.PROMPT}:
            recent = self._recent.setdefault((kind.api, feature), deque(maxlen=WINDOW))
            recent.append(wrong)
            if wrong:
                shares[kind.api, feature] = sum(recent) / len(recent)
            if self._doubts and len(recent) == WINDOW and not any(recent):
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
        """Forget the waits of a feature that was right all along."""
        doubt = self._doubts.get(part)
        if doubt is not None and doubt.due is None:
            del self._doubts[part]
