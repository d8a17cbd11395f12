"""An engine, asked for counts as a gateway asks it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.config.settings import UpstreamSettings
from gateway.tokens.engine_count import Target
from gateway.upstream.engine_questions import EngineQuestions
from gateway.upstream.http_upstream import HttpUpstream


@asynccontextmanager
async def target_at(url: str) -> AsyncIterator[Target]:
    """The engine at this URL, without a key."""
    upstream = HttpUpstream(UpstreamSettings)
    yield Target(url, EngineQuestions(upstream, url, None, lambda _: None))
    await upstream.close()
