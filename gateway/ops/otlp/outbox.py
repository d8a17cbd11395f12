"""The bounded queue of what is to be exported, sent by a thread of its own. Putting something in never waits."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog
from prometheus_client import Counter

from gateway.ops.otlp.environment import Batching

_Record = TypeVar("_Record")
_log = structlog.get_logger("kvgate.otlp")


class Outbox(Generic[_Record]):
    """The records of one signal on their way to a collector.

    Those that find no room, or that the collector does not take, are dropped and counted. It says once that this
    begins, and once that it is over.

    Args:
        signal: what it exports.
        batching: its bounds.
        send: exports records; returns why that failed, or None. Called in the thread, and may take long.
        dropped: counts what is lost.
    """

    def __init__(
        self, signal: str, batching: Batching, send: Callable[[Sequence[_Record]], str | None], dropped: Counter
    ) -> None:
        self._signal = signal
        self._batching = batching
        self._send = send
        self._dropped = dropped
        self._waiting: deque[_Record] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._losing = False
        self._thread = threading.Thread(target=self._run, name=f"otlp {signal}", daemon=True)
        self._thread.start()

    def put(self, *records: _Record) -> None:
        """Export records soon; drop them if there is no room."""
        waiting = self._waiting
        if len(waiting) + len(records) > self._batching.queue:
            self._lost(len(records), "they come faster than the collector takes them")
            return
        waiting.extend(records)
        if len(waiting) >= self._batching.batch:
            self._wake.set()

    def close(self, timeout: float) -> None:
        """Export what waits, for at most `timeout` seconds."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._batching.delay)
            self._wake.clear()
            self._empty()
        self._empty()

    def _empty(self) -> None:
        waiting = self._waiting
        while waiting:
            batch = [waiting.popleft() for _ in range(min(len(waiting), self._batching.batch))]
            try:
                wrong = self._send(batch)
            except Exception as error:  # noqa: BLE001  # a record that cannot be encoded must not end the thread
                wrong = f"defect: {type(error).__name__}"
            if wrong is not None:
                self._lost(len(batch), wrong)
            elif self._losing and len(waiting) < self._batching.queue // 2:
                self._losing = False
                _log.info("telemetry is exported again", signal=self._signal)

    def _lost(self, records: int, reason: str) -> None:
        self._dropped.inc(records)
        if not self._losing:
            self._losing = True
            _log.warning("telemetry is lost", signal=self._signal, reason=reason)
