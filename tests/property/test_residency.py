"""Engines that share their cards, under any demand: one runs at a time, every one has its turn, none goes too soon."""

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.events import EndpointId, ResidencyPhase
from gateway.admission.residency import BUSY_STAY, LEAST_STAY, LINGER, Engine, Retire, Start, decide

STEP = 0.25
"""Seconds between two looks."""
STOPS = 1.0
"""Seconds from the end of an engine's last request to free cards."""


@dataclass
class Model:
    """An engine whose requests each take a while, one at a time."""

    takes: float
    serves: float
    arrivals: list[float]
    phase: ResidencyPhase = ResidencyPhase.STOPPED
    since: float = 0.0
    worked_at: float = -inf
    left_at: float = -inf
    busy_until: float | None = None
    waits: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def step(self, now: float) -> None:
        self.waits += [at for at in self.arrivals if now - STEP < at <= now]
        if self.busy_until is not None and now >= self.busy_until:
            self.busy_until = None
        match self.phase:
            case ResidencyPhase.STARTING if now >= self.since + self.takes:
                self.phase, self.since = ResidencyPhase.UP, now
            case ResidencyPhase.LEAVING if self.busy_until is None and now >= self.since + STOPS:
                self.phase, self.since, self.left_at = ResidencyPhase.STOPPED, now, now
        if self.phase is ResidencyPhase.UP and self.waits and self.busy_until is None:
            self.waited.append(now - self.waits.pop(0))
            self.busy_until = now + self.serves
        if self.waits or self.busy_until is not None:
            self.worked_at = now

    def seen(self, name: str) -> Engine:
        return Engine(
            EndpointId(name),
            self.phase,
            self.since,
            "card",
            takes=self.takes,
            waits_since=min(self.waits, default=None),
            busy=self.busy_until is not None,
            worked_at=self.worked_at,
            left_at=self.left_at,
            idle_stop=20.0,
        )


models = st.builds(
    Model,
    takes=st.floats(0.5, 8),
    serves=st.floats(0.1, 3),
    arrivals=st.lists(st.floats(0, 100), max_size=30).map(sorted),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(models, min_size=2, max_size=4))
def test_whatever_is_asked_for_every_request_has_its_turn_and_nothing_in_flight_is_ended(group):
    names = {EndpointId(str(number)): model for number, model in enumerate(group)}
    turn = max(LEAST_STAY, *(model.takes * BUSY_STAY for model in group))
    longest = max(model.takes + model.serves for model in group) + STOPS + 4 * STEP
    now, started = 0.0, []
    while now < 100 or any(model.waits or model.busy_until is not None for model in group):
        now += STEP
        assert now < 5000, "somebody waits for ever"
        for model in group:
            model.step(now)
        for command in decide([model.seen(name) for name, model in names.items()], now):
            model = names[command.engine]
            match command:
                case Start():
                    assert all(other.phase is ResidencyPhase.STOPPED for other in group), "the cards are not free"
                    assert model.waits, "nobody waits for it"
                    started.append(now)
                    model.phase, model.since = ResidencyPhase.STARTING, now
                case Retire():
                    assert model.phase is ResidencyPhase.UP, "its own requests wait for its start"
                    assert now >= model.since + min(LEAST_STAY, LINGER), "it has just come up"
                    model.phase, model.since = ResidencyPhase.LEAVING, now
    for before, after in pairwise(started):
        assert after - before >= LEAST_STAY + min(model.takes for model in group), "they thrash"
    for model in group:
        backlog = len(model.arrivals) * model.serves / min(turn, max(LEAST_STAY, BUSY_STAY * model.takes))
        rounds = 2 + backlog
        assert all(wait <= rounds * len(group) * (turn + longest) for wait in model.waited)
