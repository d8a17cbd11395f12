import os

import pytest

from gateway.admission.outcomes import Outcome
from gateway.relay.body_parsing import read
from gateway.relay.exchange import RefusedError
from gateway.tokens.count import CountingOverloadedError
from gateway.tokens.pool import WorkerDiedError
from gateway.wire.request import INLINE_BYTES, ForbiddenFieldError, InvalidRequestError

SMALL, LARGE = b"x" * INLINE_BYTES, b"x" * (INLINE_BYTES + 1)


class Pool:
    """Notes whose work it does, and how large it is; it may fail by itself."""

    def __init__(self, error=None):
        self.error = error
        self.jobs = []

    async def run(self, flow, size, work, *args, **kwargs):
        self.jobs.append((flow, size))
        if self.error is not None:
            raise self.error
        return work(*args, **kwargs)


def length(body, more, *, twice=False):
    return (len(body) + more) * (1 + twice)


async def test_a_small_body_is_read_at_once_and_a_large_one_in_the_pool():
    pool = Pool()
    assert await read(pool, "alice", length, SMALL, 1) == INLINE_BYTES + 1
    assert pool.jobs == []
    assert await read(pool, "alice", length, LARGE, 1, twice=True) == 2 * (INLINE_BYTES + 2)
    assert pool.jobs == [("alice", INLINE_BYTES + 1)]


@pytest.mark.parametrize("body", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InvalidRequestError("Not so.", "n"), Outcome.INVALID_REQUEST),
        (ForbiddenFieldError("Not so.", "n"), Outcome.FORBIDDEN_FIELD),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_with_the_field(body, error, outcome):
    def fails(_body):
        raise error

    with pytest.raises(RefusedError) as refused:
        await read(Pool(), "alice", fails, body)
    assert (refused.value.outcome, refused.value.message, refused.value.param) == (outcome, "Not so.", "n")
    assert refused.value.retry_after is None


@pytest.mark.parametrize(
    ("error", "outcome", "retry_after"),
    [
        (CountingOverloadedError("9 bytes wait"), Outcome.QUEUE_FULL, 1.0),
        (WorkerDiedError("the process died"), Outcome.INTERNAL_ERROR, None),
    ],
)
async def test_a_pool_that_does_not_read_it_refuses_it(error, outcome, retry_after):
    with pytest.raises(RefusedError) as refused:
        await read(Pool(error), "alice", len, LARGE)
    assert (refused.value.outcome, refused.value.retry_after) == (outcome, retry_after)


async def test_a_defect_is_nobodys_refusal():
    with pytest.raises(ZeroDivisionError):
        await read(Pool(), "alice", lambda _: os.getpid() // 0, SMALL)
