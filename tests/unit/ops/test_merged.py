from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Load
from gateway.ops.merged import Family, Figures, merged, own_alone, packed, unpacked
from gateway.ops.metrics import Metrics, exposed
from gateway.ops.state import Decided, QueueState


def counter(*samples: tuple[tuple[str, ...], float]) -> Figures:
    return [Family("c", "What.", "counter", [("c_total", labels, value) for labels, value in samples])]


def gauge(value: float, name: str = "g") -> Figures:
    return [Family(name, "What.", "gauge", [(name, (), value)])]


def value(figures: Figures, name: str, *labels: str) -> float | None:
    found = [value for family in figures for of, given, value in family.samples if (of, given) == (name, labels)]
    assert len(found) <= 1
    return found[0] if found else None


def test_counters_of_all_are_summed_by_their_labels() -> None:
    one, other = counter((("model", "a"), 1), (("model", "b"), 2)), counter((("model", "b"), 3), (("model", "c"), 4))
    found = merged(counter((("model", "a"), 10)), [one], [other])
    assert [value(found, "c_total", "model", model) for model in "abc"] == [11, 5, 4]


def test_a_metric_that_only_one_front_has_is_there() -> None:
    found = merged(gauge(1), [counter(((), 5))])
    assert (value(found, "c_total"), value(found, "g")) == (5, 1)


def test_gauges_are_the_owners() -> None:
    assert value(merged(gauge(1), [gauge(5)], [gauge(7)]), "g") == 1
    assert merged((), [gauge(5)]) == []


def test_each_process_that_runs_has_resources_of_its_own() -> None:
    name = "process_open_fds"
    assert value(merged(gauge(1, name), [gauge(5, name), gauge(6, name)], [gauge(7, name)]), name) == 12


def test_of_one_process_alone_no_part_of_a_sum_is_told() -> None:
    figures = (*gauge(1), *counter(((), 5)), *gauge(3, "process_open_fds"), *Metrics("1", ["m"]).figures())
    assert [family.name for family in own_alone(figures)] == ["g", "process_start_time_seconds", "kvgate_build_info"]


def test_the_sum_was_created_with_its_first_part() -> None:
    parts = [[Family("c", "What.", "counter", [("c_total", (), 1), ("c_created", (), time)])] for time in (30, 10, 20)]
    found = merged(parts[0], parts[1:2], parts[2:])
    assert (value(found, "c_total"), value(found, "c_created")) == (3, 10)


def test_histograms_are_summed_edge_by_edge() -> None:
    one, other = Metrics("1", ["m"]), Metrics("1", ["n"])
    one.ttft.observe(0.02)
    other.ttft.observe(3)
    one.model("m").answered(100, 20)
    found = merged(one.figures(), [other.figures()])
    edges = ("0.01", "0.025", "2.0", "3.0", "+Inf")
    assert [value(found, "kvgate_ttft_seconds_bucket", "le", edge) for edge in edges] == [0, 1, 1, 2, 2]
    assert (value(found, "kvgate_ttft_seconds_count"), value(found, "kvgate_ttft_seconds_sum")) == (2, 3.02)
    assert value(found, "kvgate_request_tokens_count", "model", "m", "kind", "prompt") == 1
    assert value(found, "kvgate_request_tokens_count", "model", "n", "kind", "prompt") == 0


def test_of_several_traces_in_a_bucket_the_last_is_shown() -> None:
    fronts = [Metrics("1", ["m"]) for _ in range(3)]
    for front, at in zip(fronts, (10.0, 30.0, 20.0), strict=True):
        front.ttft.observe(0.02)
        front.ttft.exemplify(0.02, f"at-{at:g}", at)
    text = exposed(merged((), [unpacked(packed(front.figures())) for front in fronts]), openmetrics=True).decode()
    traces = [line.partition(" # ")[2] for line in text.splitlines() if " # " in line]
    assert traces == ['{trace_id="at-30"} 0.02 30.0']


def test_those_that_have_ended_may_be_summed_before() -> None:
    figures = [[*counter(((), number)), *gauge(number)] for number in (1, 2, 4)]
    assert merged((), gone=[merged((), gone=figures[:2]), figures[2]]) == merged((), gone=figures) == counter(((), 7))


def test_what_is_merged_reads_as_if_one_process_had_counted_it() -> None:
    decided = Decided(queues=(QueueState(model="m", depth=2),))
    all_alone, owner, fronts = Metrics("1", ["m"]), Metrics("1"), [Metrics("1", ["m"]), Metrics("1", ["m"])]
    for metrics in (all_alone, owner):
        metrics.sample({"m": Load(2, 7, (("127.0.0.1:8001", 0.625),))})
    for one in fronts:
        for metrics in (all_alone, one):
            metrics.model("m").ended(Outcome.COMPLETED)
            metrics.model("m").answered(100, 20)
            metrics.ttft.observe(0.25)
    sent = [unpacked(packed(one.figures())) for one in fronts]
    text = exposed(merged(owner.figures(decided), sent)).decode()
    lines, expected = (
        {line for line in text.splitlines() if "_created" not in line and "process_" not in line}
        for text in (text, all_alone.exposition(decided).decode())
    )
    assert lines == expected
