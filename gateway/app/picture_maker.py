"""The pictures of a gateway for `/kvgate/events`, made where decisions are made."""

import time
from collections.abc import Callable, Mapping

import gateway
from gateway.admission.events import EndpointId
from gateway.admission.snapshot import EndpointSnapshot
from gateway.app.decided import snapshots, told
from gateway.config.settings import Settings
from gateway.endpoints.monitor import EndpointMonitor
from gateway.ops.pictures import parts
from gateway.ops.pictures.digest import Digest, OfModel
from gateway.ops.pictures.history import History
from gateway.ops.pictures.picture import MOST_FLOWS, MOST_REQUESTS, Endpoint, Gauge, Model, Picture, Request
from gateway.ops.pictures.signs import Seen, headline, signs
from gateway.ops.state import EndpointState
from gateway.pools.cores import Cores


class Pictures:
    """Reads cores and monitors when asked, and at each point of the history.

    Args:
        cores: of all models.
        monitors: of their endpoints.
        settings: those in force.
        clock: monotonic seconds.
        digest: takes what ended at the front in this process; None where fronts are elsewhere and tell theirs.
    """

    def __init__(
        self,
        cores: Cores,
        monitors: Mapping[EndpointId, EndpointMonitor],
        *,
        settings: Callable[[], Settings],
        clock: Callable[[], float],
        digest: Callable[[], Digest] | None = None,
    ) -> None:
        self._cores = cores
        self._monitors = monitors
        self._settings = settings
        self._clock = clock
        self._digest = digest
        self._history = History()
        self._epoch = time.time() - clock()
        """Time of the clock's zero."""

    def take(self, digest: Digest) -> None:
        """Take what ended at a front."""
        self._history.take(digest, self._at(self._clock()))

    def sample(self) -> None:
        """Add a point to the history; call every `INTERVAL` seconds."""
        now = self._clock()
        at = self._at(now)
        self._take_own(at)
        seen, gauges = self._look(now, flows=False)
        waiting = {model.model: model.waiting for model in seen.models}
        self._history.add(at, waiting, ((name, gauge, totals) for name, (gauge, totals) in gauges.items()))
        self._history.dated(signs(seen), at, keep=True)

    def picture(self, after: float) -> Picture:
        """The picture of now, with the points after this time."""
        now = self._clock()
        at = self._at(now)
        self._take_own(at)
        seen, _ = self._look(now, flows=True)
        found = self._history.dated(signs(seen), round(at, 1), keep=False)
        top = headline(seen, found)
        return Picture(
            at=round(at, 2),
            version=gateway.__version__,
            mode=self._settings().admission.mode,
            kv_high=seen.kv_high,
            kv_low=seen.kv_low,
            headline=top,
            signs=found,
            endpoints=seen.endpoints,
            models=seen.models,
            requests=self._requests(now),
            points=self._history.after(after),
        )

    def _at(self, now: float) -> float:
        return self._epoch + now

    def _take_own(self, at: float) -> None:
        if self._digest is not None:
            self._history.take(self._digest(), at)

    def _look(
        self, now: float, *, flows: bool
    ) -> tuple[Seen, dict[str, tuple[Gauge, tuple[int | None, int | None, int | None]]]]:
        """What signs are read from, and each endpoint's gauge and totals. No sign needs the flows that wait."""
        pools = snapshots(self._cores, now)
        state = told(self._cores, self._monitors, pools, now)
        admitted = {endpoint.id: endpoint for pool in pools.values() for endpoint in pool.endpoints}
        last = self._history.last
        rates = {} if last is None else {name: gauge.generated for name, gauge in last.endpoints.items()}
        endpoints, gauges = [], {}
        for each in state.endpoints:
            endpoints.append(self._endpoint(each, admitted.get(EndpointId(each.id)), rates.get(each.id), now))
            usage, forecast = (None, None) if each.kv is None else (each.kv.effective, each.kv.forecast)
            gauge = Gauge(
                parts.share(usage),
                parts.share(forecast),
                each.sequences,
                each.gate is None or each.gate.open,
                None,
                None,
                0,
            )
            engine = each.engine
            gauges[each.id] = gauge, (engine.generated_tokens, engine.prompt_tokens, engine.preemptions)
        admission, recent = self._settings().admission, self._history.recent()
        models = tuple(
            parts.queue(
                queue.model,
                queue.depth,
                None if queue.oldest_seconds is None else now - queue.oldest_seconds,
                self._cores.drivers[queue.model].controller.flows(now, MOST_FLOWS) if flows else (),
                recent.pop(queue.model, OfModel()),
                ttft_target=admission.ttft_target,
                weights=self._settings().auth.weights,
                epoch=self._epoch,
            )
            for queue in state.queues
        )
        others = tuple(Model(model=name, outcomes=figures.outcomes) for name, figures in sorted(recent.items()))
        seen = Seen(
            at=self._at(now),
            endpoints=tuple(endpoints),
            models=models + others,
            preempted=self._history.preempted(),
            kv_high=admission.kv_high,
            kv_low=admission.kv_low,
        )
        return seen, gauges

    def _endpoint(
        self, state: EndpointState, snapshot: EndpointSnapshot | None, generated_rate: float | None, now: float
    ) -> Endpoint:
        at = self._at(now)
        kv, age = state.kv, state.scrape_age_seconds
        works = snapshot if state.healthy or state.in_flight else None
        return Endpoint(
            id=state.id,
            url=state.url,
            model=state.model,
            kind=state.kind,
            state=state.state,
            healthy=state.healthy,
            reason=state.reason,
            cause=state.cause,
            remedy=state.remedy,
            since=round(at - state.since_seconds, 1),
            gate_open=state.gate is None or state.gate.open,
            closed_by=() if snapshot is None else snapshot.closed_by,
            blocks=None if kv is None else kv.blocks,
            block_size=None if kv is None else kv.block_size,
            usage=None if kv is None else parts.share(kv.effective),
            forecast=None if kv is None else parts.share(kv.forecast),
            split=None if snapshot is None else parts.split(snapshot),
            in_flight=state.in_flight,
            sequences=state.sequences,
            sequence_limit=state.max_num_seqs,
            preemptions=state.engine.preemptions,
            decode_rate=None if works is None else parts.rate(works.decode_rate),
            prefill_rate=None if works is None else parts.rate(works.prefill_rate),
            generated_rate=None if works is None else generated_rate,
            scraped=None if age is None else round(at - age, 1),
        )

    def _requests(self, now: float) -> tuple[Request, ...]:
        """The latest that wait or run, of all models, then the latest that have ended."""
        live = [
            parts.live(model, snapshot, self._epoch)
            for model, driver in self._cores.drivers.items()
            for snapshot in driver.controller.requests(now, MOST_REQUESTS)
        ]
        live.sort(key=lambda request: -request.came)
        there = {request.key for request in live}
        gone = (request for request in self._history.ended() if request.key not in there)
        return (*live, *gone)[:MOST_REQUESTS]
