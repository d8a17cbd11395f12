"""Whatever an engine says of itself, the admission core goes on: for its other endpoints, and soon."""

import gc
import time

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.commands import Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Back,
    Demand,
    EndpointDown,
    EndpointUp,
    Finished,
    Observed,
    Progress,
    RequestId,
    Returned,
    Tick,
    Verdict,
)
from gateway.admission.policy import Policy
from gateway.endpoints.capacity import capacity
from gateway.endpoints.exposition import parse
from gateway.wire.request import Api
from gateway.wire.usage import UsageFields

LONGEST = 0.25
"""Seconds of CPU time for one event: a hundred times what any takes here, and far less than a loop that never ends."""
NUMBERS = ("0", "1", "2", "5", "100", "0.5", "1e15", "9007199254740992")
WRONG = ("None", "nan", "+Inf", "-Inf", "-1", "1e-320", "1e18", "-1e308", "1.7e308", "999999999999999999999")
FIGURES = st.sampled_from(NUMBERS + WRONG)
LABELS = ("block_size", "effective_attention_block_size", "num_gpu_blocks", "kv_cache_size_tokens")
GAUGES = (
    "kv_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
    "generation_tokens_total",
    "num_preemptions_total",
)


def page(labels: tuple[str, ...], gauges: tuple[str, ...]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in zip(LABELS, labels, strict=True))
    samples = [f"vllm:{name} {value}\n" for name, value in zip(GAUGES, gauges, strict=True)]
    return "".join((f"vllm:cache_config_info{{{pairs}}} 1\n", *samples))


PAGES = st.builds(page, st.tuples(*[FIGURES] * len(LABELS)), st.tuples(*[FIGURES] * len(GAUGES)))
LENGTHS = st.sampled_from((1, 2, 100, 4096, 2**31 - 1))
USAGES = st.sampled_from((None, 0, 1, 5, -1, 10**9, 2**31 - 1, 2**63))
STEPS = st.tuples(
    st.sampled_from((0.0, 0.001, 0.05, 1.0, 3600.0)),
    st.one_of(
        st.tuples(st.just("page"), PAGES, LENGTHS),
        st.tuples(st.just("scrape"), PAGES, LENGTHS),
        st.tuples(st.just("arrive"), st.sampled_from(((1,), (100,), (3000,), (1, 17, 300))), LENGTHS),
        st.tuples(st.just("tokens"), st.sampled_from((1, 50, 2**31)), LENGTHS),
        st.tuples(st.just("end"), USAGES, st.booleans()),
        st.tuples(st.just("back"), st.sampled_from(Back), LENGTHS),
        st.tuples(st.just("down"), LENGTHS, LENGTHS),
        st.tuples(st.just("tick"), LENGTHS, LENGTHS),
    ),
)


class Core:
    """A controller whose second endpoint says what it likes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.arrived = 0
        self.on_it: dict[RequestId, int] = {}
        self._core = AdmissionController(Policy())
        self.handle(EndpointUp("good", capacity({"num_gpu_blocks": "2000"}, 4096)))

    def handle(self, event) -> None:
        gc.disable()  # what it would collect is mostly what other tests have left: a third of a second was seen
        try:
            began = time.thread_time()
            for command in self._core.handle(event, self.now):
                if isinstance(command, Dispatch):
                    self.on_it[command.request] = 0
            self._core.load(self.now)
            self._core.snapshot(self.now)
            assert time.thread_time() - began < LONGEST, event
        finally:
            gc.enable()

    def step(self, what: str, one, other) -> None:
        request = next(iter(self.on_it), None)
        match what:
            case "page" | "scrape":
                metrics = parse(one.encode())
                if what == "page":
                    self.handle(EndpointUp("bad", capacity(metrics.cache_config, other, ranks=metrics.ranks)))
                self.handle(
                    Observed(
                        endpoint="bad",
                        sampled_at=self.now,
                        kv_usage=metrics.kv_usage,
                        running=metrics.running,
                        waiting=metrics.waiting,
                        generation_tokens=metrics.generation_tokens,
                        preemptions=metrics.preemptions,
                    )
                )
            case "arrive":
                self.arrived += 1
                demand = Demand(one, other)
                self.handle(Arrived(RequestId(self.arrived), demand, flow="ab"[self.arrived % 2], streamed=other > 2))
            case "down":
                self.handle(EndpointDown("bad", "it does not answer"))
            case "tick":
                self.handle(Tick())
            case "tokens" if request is not None:
                self.on_it[request] += one
                self.handle(Progress(((request, self.on_it[request]),)))
            case "end" if request is not None:
                del self.on_it[request]
                usage = UsageFields(prompt_tokens=1, completion_tokens=one).read(Api.CHAT)
                verdict = Verdict.DONE if other else Verdict.ABORTED
                self.handle(Finished(request, verdict, None if usage is None else usage.completion_tokens))
            case "back" if request is not None:
                del self.on_it[request]
                self.handle(Returned(request, one))


@given(st.lists(STEPS, min_size=5, max_size=60))
def test_no_figure_of_an_engine_breaks_the_core_or_holds_it(steps):
    core = Core()
    for seconds, (what, one, other) in steps:
        core.now += seconds
        core.step(what, one, other)
