"""Whatever happens, a cold endpoint beside a warm one has one request, and no request waits for that alone."""

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.admission.commands import Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointDown,
    EndpointUp,
    Finished,
    Observed,
    RequestId,
    Tick,
    Verdict,
)
from gateway.admission.policy import Policy

NAMES = ("a", "b", "c")
CAPACITY = Capacity(4096, 10_000)

steps = st.lists(
    st.one_of(
        *[st.just(("arrives",))] * 3,
        st.tuples(st.just("ends"), st.integers(0, 9)),
        st.tuples(st.just("up"), st.sampled_from(NAMES)),
        st.tuples(st.just("down"), st.sampled_from(NAMES)),
        st.tuples(st.just("scraped"), st.sampled_from(NAMES), st.sampled_from([None, 0.0, 7.0])),
    ),
    min_size=8,
    max_size=60,
)


class World:
    """What an onlooker knows: who is live, who has generated since it came up, and what is where."""

    def __init__(self):
        self.core = AdmissionController(Policy(ttft_target=None))
        self.now = 0.0
        self.live = set()
        self.warm = set()
        self.seen = set()
        """Whose scrape said so, which others go by."""
        self.where = {}
        self.waiting = set()
        self.numbers = iter(range(1, 1000))

    def tell(self, event):
        for command in self.core.handle(event, self.now):
            if isinstance(command, Dispatch):
                there = list(self.where.values()).count(command.endpoint)
                spared = command.endpoint not in self.warm and self.live & self.seen
                assert not (spared and there), "one at a time"
                self.where[command.request] = command.endpoint
                self.waiting.discard(command.request)

    def happen(self, step):
        self.now += 0.1
        match step:
            case ("arrives",):
                number = RequestId(next(self.numbers))
                self.waiting.add(number)
                self.tell(Arrived(number, Demand((10,), 10)))
            case ("ends", which) if self.where:
                request = sorted(self.where)[which % len(self.where)]
                name = self.where.pop(request)
                self.warm.add(name)
                self.tell(Finished(request, Verdict.DONE, 5))
            case ("up", name):
                if name not in self.live:
                    self.warm.discard(name)
                    self.seen.discard(name)
                self.live.add(name)
                self.tell(EndpointUp(name, CAPACITY))
            case ("down", name):
                self.live.discard(name)
                self.tell(EndpointDown(name, "killed"))
            case ("scraped", name, tokens) if name in self.live:
                if tokens != 0.0:
                    self.warm.add(name)
                    self.seen.add(name)
                self.tell(Observed(name, self.now, 0.0, 0, 0, tokens))


WARMED_BY_AN_ANSWER = [
    *[("arrives",)] * 3,
    ("ends", 0),
    ("down", "a"),
    ("arrives",),
    ("up", "a"),
    ("ends", 0),
    ("scraped", "b", None),
    ("arrives",),
]


@given(steps)
@example(WARMED_BY_AN_ANSWER)
def test_a_cold_endpoint_beside_a_warm_one_has_one_request_and_nobody_waits_for_it(happened):
    world = World()
    for step in [("up", "a"), ("scraped", "a", 7.0), ("up", "b"), *happened]:
        world.happen(step)
        if world.live:
            world.tell(Tick())
            assert not world.waiting, "there is room for all on whoever is warm, or on all where nobody is"
