"""The reader of bodies that keeps the event loop free: small ones at once, large ones in the counting pool."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from gateway.admission.outcomes import Outcome
from gateway.relay.exchange import RefusedError
from gateway.tokens.count import CountingOverloadedError
from gateway.tokens.pool import CountingPool, WorkerDiedError
from gateway.wire.request import INLINE_BYTES, ForbiddenFieldError, InvalidRequestError

P = ParamSpec("P")
R = TypeVar("R")


async def read(
    pool: CountingPool,
    flow: str,
    work: Callable[Concatenate[bytes, P], R],
    body: bytes,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Apply `work`, a module-level function, to a body: at once if it is small, else in the counting pool.

    Raises:
        RefusedError: the body is invalid, or too many bodies wait to be read.
    """
    if len(body) > INLINE_BYTES:
        return await read_apart(pool, flow, work, body, *args, **kwargs)
    return read_here(work, body, *args, **kwargs)


def read_here(work: Callable[Concatenate[bytes, P], R], body: bytes, *args: P.args, **kwargs: P.kwargs) -> R:
    """Apply `work` to a body at once.

    Raises:
        RefusedError: the body is invalid.
    """
    try:
        return work(body, *args, **kwargs)
    except InvalidRequestError as error:
        raise _refusal(error) from None


async def read_apart(
    pool: CountingPool,
    flow: str,
    work: Callable[Concatenate[bytes, P], R],
    body: bytes,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Apply `work` to a body in the counting pool. Raises as `read`."""
    try:
        return await pool.run(flow, len(body), work, body, *args, **kwargs)
    except InvalidRequestError as error:
        raise _refusal(error) from None
    except CountingOverloadedError:
        message = "Too many prompts wait to be counted. Please retry."
        raise RefusedError(Outcome.QUEUE_FULL, message, retry_after=1.0) from None
    except WorkerDiedError as error:
        raise RefusedError(Outcome.INTERNAL_ERROR, f"The request could not be read: {error}.") from None


def _refusal(error: InvalidRequestError) -> RefusedError:
    outcome = Outcome.FORBIDDEN_FIELD if isinstance(error, ForbiddenFieldError) else Outcome.INVALID_REQUEST
    return RefusedError(outcome, error.message, error.param)
