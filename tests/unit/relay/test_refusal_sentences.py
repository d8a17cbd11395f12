from math import inf

import pytest

from gateway.admission.commands import Reject
from gateway.admission.events import RequestId
from gateway.admission.limits.limit import Exceeded, Limit
from gateway.admission.outcomes import Outcome
from gateway.relay.refusal_sentences import refusal

OVER, LATE = Outcome.RATE_LIMIT_EXCEEDED, Outcome.WAIT_TOO_LONG


@pytest.mark.parametrize(
    ("outcome", "retry_after", "exceeded", "told"),
    [
        (OVER, 8.2, Exceeded(Limit.REQUESTS, 5, 1, 8.2), "Your limit is 5 requests per minute. Please retry in 9 s."),
        (OVER, None, Exceeded(Limit.TOKENS, 50, 51, None), "This request alone asks for 51: shorten its prompt."),
        (OVER, 2.0, Exceeded(Limit.TOKENS, 50, 5, 2.0), "This request asks for 5. Please retry in 2 s."),
        (OVER, None, Exceeded(Limit.CONCURRENT, 2, 3, None), "As many wait or run: wait until one has ended."),
        (OVER, None, Exceeded(Limit.KV, 960, 1001, None), "This request alone asks for 1001: shorten its prompt."),
        (LATE, 3.0, Exceeded(Limit.KV, 960, 90, None), "Your own requests hold them: wait until one has ended."),
        (LATE, 3.0, None, "The first token could not come within the TTFT target. Please retry in 3 s."),
    ],
)
def test_a_refusal_names_the_limit_and_what_to_do(outcome, retry_after, exceeded, told):
    refused = refusal(Reject(RequestId(1), outcome, retry_after, exceeded))
    assert told in refused.message
    never = exceeded is not None and exceeded.which in {Limit.TOKENS, Limit.KV} and exceeded.asked > exceeded.limit
    assert refused.retry_after == (inf if never else retry_after)
