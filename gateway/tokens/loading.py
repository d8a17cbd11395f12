"""The tokenizers, loaded or loading: each only once, however many models count with it."""

import asyncio

from gateway.tokens.local_count import load
from gateway.tokens.pool import CountingPool
from gateway.tokens.render import TokenizerSource, TokenizerUnavailableError


class Tokenizers:
    """Loads tokenizers into a counting pool, so that no count waits for one."""

    def __init__(self, pool: CountingPool) -> None:
        self._pool = pool
        self._loads: dict[TokenizerSource, asyncio.Task[str]] = {}
        self._changed: set[TokenizerSource] = set()

    def unavailable(self, source: TokenizerSource) -> str:
        """Why a tokenizer cannot count now; empty once it is loaded."""
        known = self._loads.get(source)
        return _outcome(known) if known is not None and known.done() else "the tokenizer is not loaded yet"

    def changed(self, source: TokenizerSource) -> bool:
        """Note that a tokenizer's files have changed; whether that is news."""
        news = source not in self._changed
        self._changed.add(source)
        return news

    async def load(self, source: TokenizerSource) -> str:
        """Load a tokenizer here, and in the processes if that takes seconds. Returns the same as `unavailable`.

        A failed one is tried again.

        Raises:
            TokenizerUnavailableError, WorkerDiedError, OSError: for a temporary reason.
        """
        known = self._loads.get(source)
        if known is None or (known.done() and _outcome(known)):
            known = self._loads[source] = asyncio.create_task(self._load(source))
        return await asyncio.shield(known)

    async def _load(self, source: TokenizerSource) -> str:
        try:
            await self._pool.run_everywhere(load, source)
        except TokenizerUnavailableError as error:
            if error.passes:
                raise
            return str(error)
        return ""


def _outcome(load: asyncio.Task[str]) -> str:
    error = load.exception()
    return load.result() if error is None else str(error)
