"""`/metrics` of vLLM 0.32: the series a gateway may look at, with the labels vLLM gives them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


@dataclass(frozen=True, slots=True)
class Gauges:
    """What vLLM sets once a step, and so leaves as it was while no step runs."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    completed: int = 0
    """Sequences generated to their end."""
    completed_prompt: int = 0
    completed_output: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    rejections: int = 0


def exposition(
    model: str, gauges: Gauges, counters: Counters, *, awake: bool, cache_config: Mapping[str, object]
) -> bytes:
    """The page as Prometheus reads it."""
    own = f'engine="0",model_name="{model}"'
    page = _Page()
    page.add("vllm:num_requests_running", "gauge", {own: gauges.running})
    page.add("vllm:num_requests_waiting", "gauge", {own: gauges.waiting})
    reasons = {f'{own},reason="capacity"': gauges.waiting, f'{own},reason="deferred"': 0}
    page.add("vllm:num_requests_waiting_by_reason", "gauge", reasons)
    now = "awake" if awake else "weights_offloaded"
    states = {f'{own},sleep_state="{state}"': int(state == now) for state in SLEEP_STATES}
    page.add("vllm:engine_sleep_state", "gauge", states)
    page.add("vllm:kv_cache_usage_perc", "gauge", {own: gauges.usage})
    for name, value in (
        ("prefix_cache_queries", counters.prompt_tokens),
        ("prefix_cache_hits", 0),
        ("num_preemptions", counters.preemptions),
        ("prompt_tokens", counters.prompt_tokens),
        ("prompt_tokens_cached", 0),
        ("generation_tokens", counters.generation_tokens),
    ):
        page.add(f"vllm:{name}_total", "counter", {own: value})
    finished = {
        f'engine="0",finished_reason="{reason}",model_name="{model}"': counters.finished.get(reason, 0)
        for reason in FINISHED_REASONS
    }
    page.add("vllm:request_success_total", "counter", finished)
    for name, tokens in (("prompt", counters.completed_prompt), ("generation", counters.completed_output)):
        page.histogram(f"vllm:request_{name}_tokens", own, counters.completed, tokens)
    rejected = {
        f'model_name="{model}",reason="max_num_queued_reqs"': counters.rejections,
        f'model_name="{model}",reason="max_num_queued_tokens"': 0,
    }
    page.add("vllm:admission_rejections_total", "counter", rejected)
    config = ",".join(f'{name}="{value}"' for name, value in sorted({**cache_config, "engine": 0}.items()))
    page.add("vllm:cache_config_info", "gauge", {config: 1})
    return page.text()


class _Page:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, samples: Mapping[str, float]) -> None:
        self._lines.append(f"# TYPE {name} {kind}")
        self._lines += [f"{name}{{{labels}}} {float(value)}" for labels, value in samples.items()]

    def histogram(self, name: str, own: str, count: int, total: int) -> None:
        """Without its bounds: how large each was is not kept."""
        self._lines += [
            f"# TYPE {name} histogram",
            f'{name}_bucket{{{own},le="+Inf"}} {float(count)}',
            f"{name}_count{{{own}}} {float(count)}",
            f"{name}_sum{{{own}}} {float(total)}",
        ]

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()
