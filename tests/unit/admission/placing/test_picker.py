from gateway.admission.events import Arrived, Capacity, Demand
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.picker import pick
from gateway.admission.placing.request import RequestRecord
from gateway.admission.policy import Policy
from gateway.admission.prediction.predictor import Predictor

ARRIVAL = Arrived(9, Demand((100,), 10))
REQUEST = RequestRecord(ARRIVAL, 0.0, Predictor().kind(ARRIVAL))


def endpoint(name, *prompts, blocks=100):
    """An endpoint with a request in flight for each prompt."""
    made = EndpointRecord(name, Capacity(10_000, blocks, 16), Policy(), Predictor())
    for prompt in prompts:
        made.reserve(RequestRecord(Arrived(0, Demand((prompt,), 10)), 0.0, Predictor().kind(ARRIVAL)), 0.0)
    return made


def test_nobody_is_picked_of_none():
    assert pick([], REQUEST, 0.0) is None


def test_least_usage_wins_not_least_blocks():
    small, large = endpoint("small", 15, blocks=10), endpoint("large", 15, 15, blocks=1000)
    assert pick([small, large], REQUEST, 0.0) is large


def test_of_equal_usage_the_fewer_in_flight_wins():
    assert pick([endpoint("a", 15, 15), endpoint("b", 31)], REQUEST, 0.0).id == "b"


def test_of_equals_the_first_by_id_wins():
    assert pick([endpoint("b"), endpoint("a")], REQUEST, 0.0).id == "a"
