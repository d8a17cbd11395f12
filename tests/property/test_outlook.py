"""What holds of an endpoint's forecast whatever comes, goes on and goes, against a count of every step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.admission.events import Arrived, Capacity, Demand
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.policy import Bounds, Policy
from gateway.admission.prediction.forecast import Forecast
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.tuning import TUNING

BLOCK = 16
PREFIXES = ((), (), ((32, 1), (64, 2)), ((32, 1), (96, 3)), ((32, 1),), ((48, 4),))


def most_held(rows, shared):
    """Step by step, those that have not ended with it: where a request has several ends, the mean of what it holds.

    A row's first number says how many of `TUNING.predictions` parts of a request it is.
    """
    steps = range(max((remaining for _, remaining, _, _ in rows), default=0) + 1)
    held = [sum([parts * (h + step * grows) for parts, r, h, grows in rows if r >= step]) for step in steps]
    return shared - (-max(held) // TUNING.predictions)


class Outlooks(RuleBasedStateMachine):
    """Requests come to one endpoint, go on and leave, together or each at its own pace."""

    def __init__(self):
        super().__init__()
        self.predictor = Predictor()
        self.endpoint = EndpointRecord(
            "a", Capacity(10_000, 1000, BLOCK), Policy(bounds=Bounds.FORECAST), self.predictor
        )
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
        return RequestRecord(arrival, self.now, self.predictor.kind(arrival))

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
        """As before a decision: the forecast is made anew where it is due."""
        outlook = self.endpoint.outlook
        self.endpoint.refresh_forecast(self.now)
        self.endpoint.forecast_with(self.request(prompt, max_tokens, 1, prefix), self.now)
        if outlook._made_at != self.made_at:
            self.made_at, self.grown = outlook._made_at, 0
            assert outlook.peak == self.brute_force()
            for one in self.flying:
                assert one.generated < outlook[one].review or outlook[one].lengths[0] <= one.generated + 1
        else:
            assert self.now - outlook._made_at < TUNING.forecast_age

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), tokens=st.integers(1, 60))
    def go_on(self, data, tokens):
        for reservation in data.draw(st.lists(st.sampled_from(self.flying), unique=True)):
            ceiling = reservation.limit * reservation.sequences
            seen = min(reservation.reported + tokens * reservation.sequences, ceiling)
            before = reservation.held
            self.endpoint.ledger.progress(reservation, seen, self.now)
            self.grown += (reservation.held - before) * BLOCK

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), aborted=st.booleans())
    def leave(self, data, aborted):
        reservation = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.endpoint.release(reservation, None, self.now, aborted=aborted)

    @rule(lengths=st.lists(st.integers(1, 300), min_size=24, max_size=40), max_tokens=st.sampled_from([5, 40, 400]))
    def learn(self, lengths, max_tokens):
        kind = self.request(10, max_tokens, 1, ()).kind
        for length in lengths:
            self.predictor.learn(kind, min(length, max_tokens), max_tokens)

    @rule(step=st.sampled_from([0.0001, 0.0005, 0.1, TUNING.forecast_age, TUNING.abort_bound]))
    def wait(self, step):
        self.now += step
        self.endpoint.advance(self.now)

    # What must hold

    def rows(self):
        rows = []
        for one in self.endpoint.ledger:
            holds, lengths = one.held * BLOCK - one.shared, self.endpoint.outlook[one].lengths
            part = TUNING.predictions // len(lengths)
            rows += [(part, max(0, length - one.generated), holds, one.sequences) for length in lengths]
        return rows

    def brute_force(self, *more):
        rows = [*self.rows(), *((TUNING.predictions, *row) for row in more)]
        return most_held(rows, self.endpoint.ledger.shared_tokens)

    @invariant()
    def made_now_it_is_exact(self):
        forecast = Forecast(self.endpoint.outlook._ends(BLOCK), TUNING.predictions)
        beside = self.endpoint.ledger.shared_tokens
        assert forecast.peak + beside == self.brute_force()
        for row in ((30, 100, 1), (0, 64, 1), (300, 10, 4)):
            assert forecast.with_request(row) + beside == self.brute_force(row)

    @invariant()
    def what_holds_on_is_too_low_by_no_more_than_those_in_flight_have_grown(self):
        assert self.endpoint.outlook.peak >= self.brute_force() - self.grown


Outlooks.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestOutlooks = Outlooks.TestCase
