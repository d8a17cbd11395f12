"""The export of one process by OpenTelemetry, where its environment asks for that."""

import functools
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

import gateway
from gateway.admission.outcomes import Outcome
from gateway.ops.merged import Figures
from gateway.ops.otlp.environment import read
from gateway.ops.otlp.trace import Trace
from gateway.relay.exchange import Exchange
from gateway.relay.spans import SCHEMA_URL, spans
from gateway.runtime.background import Background
from gateway.server.asgi import Scope

if TYPE_CHECKING:
    from gateway.ops.otlp.telemetry import Telemetry


class Exports:
    """The exports of one process: made, started, stopped. Nothing, where the environment asks for none.

    Args:
        figures: what is counted and measured in this process.
        process: its name among the processes of one kvgate, where there are several.
        registry: counts there what is lost.
        environ: the environment.

    Raises:
        ConfigurationError: a variable of OpenTelemetry is wrong, or the extra is not installed.
    """

    def __init__(
        self,
        figures: Callable[[], Awaitable[Figures]],
        process: str | None = None,
        registry: CollectorRegistry | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._figures = figures
        self._background = Background()
        self._telemetry = _telemetry(process, registry, environ)
        traces = self._telemetry is not None and self._telemetry.traces
        self.record: Callable[[Scope, str], Trace | None] | None = (
            self._telemetry.begin if self._telemetry and traces else None
        )
        """Begins the trace of a request of a route, if it is to be recorded; None if no traces are exported."""

    def start(self) -> None:
        """Export figures from now on."""
        if self._telemetry is not None:
            measure = functools.partial(self._telemetry.measure, self._figures)
            self._background.spawn("metrics for OpenTelemetry", measure)

    def report(self, trace: Trace, exchange: Exchange, outcome: Outcome, now: float) -> None:
        """Export the spans of a request that has ended, in monotonic seconds, `now`."""
        if self._telemetry is not None:
            self._telemetry.export(spans(trace, exchange, outcome, now, time.time_ns() - int(exchange.clock() * 1e9)))

    async def stop(self) -> None:
        """Export what waits."""
        await self._background.stop()
        if self._telemetry is not None:
            await self._telemetry.stop(self._figures)


def _telemetry(
    process: str | None, registry: CollectorRegistry | None, environ: Mapping[str, str]
) -> "Telemetry | None":
    environment = read(environ)
    if environment is None:
        return None
    from gateway.ops.otlp.telemetry import Telemetry  # noqa: PLC0415 - without OpenTelemetry nothing of it is loaded

    return Telemetry(
        environment, version=gateway.__version__, process=process, registry=registry, schema_url=SCHEMA_URL
    )
