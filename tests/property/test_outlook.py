"""What holds of an endpoint's forecast whatever comes, goes on and goes, against a count of every step."""

from fractions import Fraction
from math import ceil

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.admission.endpoint import Endpoint
from gateway.admission.events import Arrived, Capacity, Demand
from gateway.admission.outlook import FRESH, HOLDS
from gateway.admission.policy import Policy, Rule
from gateway.admission.predictor import Predictor
from gateway.admission.request import Request

BLOCK = 16
PREFIXES = ((), (), ((32, 1), (64, 2)), ((32, 1), (96, 3)), ((32, 1),), ((48, 4),))


def most_held(rows, shared):
    """Step by step, those that have not ended with it: where a request has several ends, the mean of what it holds."""
    steps = range(max((remaining for _, remaining, _, _ in rows), default=0) + 1)
    held = (sum(weight * (h + step * grows) for weight, r, h, grows in rows if r >= step) for step in steps)
    return shared + ceil(max(held))


class Outlooks(RuleBasedStateMachine):
    """Requests come to one endpoint, go on and leave, together or each at its own pace."""

    def __init__(self):
        super().__init__()
        self.predictor = Predictor()
        self.endpoint = Endpoint("a", Capacity(10_000, 1000, BLOCK), Policy(rule=Rule.FORECAST), self.predictor)
        self.now = 10.0
        self.flying = []
        self.grown = 0
        """Tokens that requests took since the forecast was made."""
        self.made_at = None
        self.names = 0

    # What happens

    def request(self, prompt, max_tokens, n, prefix):
        self.names += 1
        arrival = Arrived(self.names, Demand((prompt,), max_tokens, n), prefix=prefix)
        return Request(arrival, self.now, self.predictor.kind(arrival))

    @rule(
        prompt=st.integers(97, 160),
        max_tokens=st.sampled_from([1, 5, 40, 400]),
        n=st.sampled_from([1, 1, 1, 3, 40]),  # the last soon makes it more in flight than have several predictions
        prefix=st.sampled_from(PREFIXES),
    )
    def send(self, *, prompt, max_tokens, n, prefix):
        self.flying.append(self.endpoint.reserve(self.request(prompt, max_tokens, n, prefix), self.now))

    @rule(prompt=st.integers(97, 160), max_tokens=st.sampled_from([1, 40, 400]), prefix=st.sampled_from(PREFIXES))
    def ask(self, prompt, max_tokens, prefix):
        """For real: the forecast is made anew where it is due."""
        self.endpoint.forecast_with(self.request(prompt, max_tokens, 1, prefix), self.now)
        if self.endpoint.outlook._made_at != self.made_at:
            self.made_at, self.grown = self.endpoint.outlook._made_at, 0

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), tokens=st.integers(1, 60))
    def go_on(self, data, tokens):
        for reservation in data.draw(st.lists(st.sampled_from(self.flying), unique=True)):
            ceiling = reservation.limit * reservation.sequences
            seen = min(reservation.seen + tokens * reservation.sequences, ceiling)
            before = reservation.held
            self.endpoint.ledger.progress(reservation, seen, self.now)
            self.grown += (reservation.held - before) * BLOCK

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def leave(self, data):
        reservation = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.endpoint.release(reservation, None, self.now, aborted=False)

    @rule(lengths=st.lists(st.integers(1, 300), min_size=24, max_size=40), max_tokens=st.sampled_from([5, 40, 400]))
    def learn(self, lengths, max_tokens):
        kind = self.request(10, max_tokens, 1, ()).kind
        for length in lengths:
            self.predictor.learn(kind, min(length, max_tokens), max_tokens)

    @rule(step=st.sampled_from([0.0001, 0.0005, 0.1, FRESH]))
    def wait(self, step):
        self.now += step

    # What must hold

    def rows(self, *, anew):
        rows = []
        for reservation in self.flying:
            lengths, generated = reservation.lengths, reservation.generated
            parts = len(lengths)
            if anew and generated >= reservation.review:
                draws = [(part + reservation.draw) / parts for part in range(parts)]
                levels = [self.endpoint.outlook.level.at(draw, self.endpoint.ledger.sequences) for draw in draws]
                kind, limit = reservation.kind, reservation.limit
                lengths = [self.predictor.predict(kind, level, generated, limit) for level in levels]
            holds = reservation.held * BLOCK - reservation.shared
            rows += [
                (Fraction(1, parts), max(0, length - generated), holds, reservation.sequences) for length in lengths
            ]
        return rows

    def brute_force(self, *more, anew):
        return most_held([*self.rows(anew=anew), *((1, *row) for row in more)], self.endpoint.ledger.shared_tokens)

    @invariant()
    def made_anew_it_is_exact(self):
        outlook = self.endpoint.outlook
        assert outlook.peak(BLOCK, self.now + 2 * FRESH) == self.brute_force(anew=True)
        for row in ((30, 100, 1), (0, 64, 1), (300, 10, 4)):
            with_one = outlook.peak_with(row, BLOCK, self.now + 2 * FRESH, peek=True)
            assert with_one == self.brute_force(row, anew=True)

    @invariant()
    def in_between_it_is_too_low_by_no_more_than_those_in_flight_have_grown(self):
        outlook = self.endpoint.outlook
        holds = min(FRESH, len(self.endpoint.ledger) * HOLDS) if outlook._changed else FRESH
        if self.now - outlook._made_at < holds:
            assert outlook.peak(BLOCK, self.now) >= self.brute_force(anew=False) - self.grown
        else:
            assert outlook.peak(BLOCK, self.now) == self.brute_force(anew=True)

    @invariant()
    def asking_leaves_no_trace(self):
        outlook = self.endpoint.outlook
        made = [getattr(outlook, name) for name in outlook.__slots__]
        own = [(r.lengths, r.review) for r in self.flying]
        outlook.peak_with((30, 100, 1), BLOCK, self.now + 2 * FRESH, peek=True)
        self.endpoint.forecast(self.now + 2 * FRESH)
        assert made == [getattr(outlook, name) for name in outlook.__slots__]
        assert own == [(r.lengths, r.review) for r in self.flying]


Outlooks.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestOutlooks = Outlooks.TestCase
