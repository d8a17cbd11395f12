"""What is predicted of a request, and when anew."""

from gateway.admission.events import Arrived, Demand
from gateway.admission.placing.request import RequestRecord, service
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.tuning import TUNING


def estimated(predictor):
    """A request of two prompts, weighed as it arrives."""
    arrival = Arrived(1, Demand((10, 20), 1000))
    request = RequestRecord(arrival, 0.0, predictor.kind(arrival))
    request.estimate_cost(predictor)
    return request


def learn(predictor, request, tokens):
    for _ in range(2 * TUNING.lengths_enough):
        predictor.learn(request.kind, tokens, 1000)


def test_its_cost_is_the_service_of_all_its_sequences_at_the_median():
    predictor = Predictor()
    learn(predictor, estimated(predictor), 100)
    assert estimated(predictor).cost == service(30, 2 * 100)


def test_its_length_is_predicted_again_at_another_quantile_or_when_it_waits_again():
    predictor = Predictor()
    request = estimated(predictor)
    learn(predictor, request, 100)
    assert request.expected_length(predictor, 0.7) == 100
    learn(predictor, request, 400)
    learn(predictor, request, 400)
    assert request.expected_length(predictor, 0.7) == 100
    assert request.expected_length(predictor, 0.8) == 400
    learn(predictor, request, 900)
    learn(predictor, request, 900)
    learn(predictor, request, 900)
    assert request.expected_length(predictor, 0.8) == 400
    request.estimate_cost(predictor)
    assert request.expected_length(predictor, 0.8) == 900
