import pytest

from gateway.admission.events import EndpointId
from gateway.pools import stored_responses
from gateway.pools.stored_responses import StoredResponse, StoredResponses

A = EndpointId("a")


@pytest.fixture
def responses(monkeypatch: pytest.MonkeyPatch) -> StoredResponses:
    monkeypatch.setattr(stored_responses, "MOST", 4)
    return StoredResponses()


def of(key: str | None) -> StoredResponse:
    return StoredResponse(A, "m", key)


def test_a_response_is_found_by_its_id(responses: StoredResponses) -> None:
    responses.remember("r", of("alice"))
    assert (responses.find("r"), responses.find("another")) == (of("alice"), None)


def test_the_key_with_the_most_loses_the_one_it_used_least_lately(responses: StoredResponses) -> None:
    responses.remember("hers", of("bob"))
    for number in range(3):
        responses.remember(f"r{number}", of("alice"))
    assert responses.find("r0") == of("alice")
    for number in range(3, 5):
        responses.remember(f"r{number}", of("alice"))
    known = [name for name in ("hers", "r0", "r1", "r2", "r3", "r4") if responses.find(name)]
    assert known == ["hers", "r0", "r3", "r4"]


def test_an_id_that_is_made_again_is_its_last_makers(responses: StoredResponses) -> None:
    responses.remember("r", of("alice"))
    responses.remember("r", of(None))
    assert responses.find("r") == of(None)
    for number in range(9):
        responses.remember(f"b{number}", of("bob"))
    assert responses.find("r") == of(None)


def test_an_id_of_any_length_is_not_remembered(responses: StoredResponses) -> None:
    long = "x" * 100_000  # vLLM takes whatever its client names as `request_id`
    responses.remember(long, of("alice"))
    assert responses.find(long) is None
