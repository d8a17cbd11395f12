import re

import pytest
from prometheus_client.core import Exemplar, Timestamp
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Load
from gateway.ops.metrics import MOST_MODELS, Metrics, content_type, exposed_tier
from gateway.ops.state import EndpointState, EngineTotals, GateState, GatewayState, KvState, QueueState, TierState

PUBLIC = {
    "kvgate_requests_total": {"model", "outcome"},
    "kvgate_retries_total": {"model", "sent"},
    "kvgate_queue_depth": {"model"},
    "kvgate_saturation": {"model"},
    "kvgate_backlog_seconds": {"model"},
    "kvgate_waiting_without_endpoint": {"model"},
    "kvgate_queue_wait_seconds_bucket": {"le"},
    "kvgate_in_flight": {"endpoint"},
    "kvgate_kv_usage": {"endpoint", "source"},
    "kvgate_gate_open": {"endpoint"},
    "kvgate_endpoint_healthy": {"endpoint"},
    "kvgate_scrape_age_seconds": {"endpoint"},
    "kvgate_ttft_seconds_bucket": {"le"},
    "kvgate_overhead_seconds_bucket": {"le"},
    "kvgate_tokens_total": {"model", "kind"},
    "kvgate_prompt_token_drift_total": {"model"},
    "kvgate_request_tokens_bucket": {"model", "kind", "le"},
    "kvgate_sequences_over_time_bucket": {"model", "le"},
    "kvgate_sequences_peak": {"endpoint"},
    "kvgate_queue_depth_over_time_bucket": {"model", "le"},
    "kvgate_kv_usage_over_time_bucket": {"endpoint", "le"},
    "kvgate_engine_preemptions_total": {"endpoint"},
    "kvgate_engine_tokens_total": {"endpoint", "kind"},
    "kvgate_engine_prefix_cache_tokens_total": {"endpoint", "kind"},
    "kvgate_would_total": {"model", "decision"},
    "kvgate_build_info": {"version"},
}

ENGINE = EngineTotals(
    preemptions=2, prompt_tokens=1000, generated_tokens=300, prefix_queried_tokens=900, prefix_hit_tokens=90
)


def endpoint(**changed):
    known = {
        "id": "127.0.0.1:8001",
        "url": "http://127.0.0.1:8001",
        "healthy": True,
        "state": "up",
        "reason": "",
        "since_seconds": 1.0,
        "gate": GateState(open=True),
        "kv": KvState(ledger=0.5, observed=0.25, effective=0.625, forecast=0.75, blocks=255, block_size=32),
        "in_flight": 3,
        "sequences": 5,
        "peak_sequences": 9,
        "model": "smol",
        "engine": ENGINE,
        "scrape_age_seconds": 0.5,
    }
    return EndpointState(**{**known, **changed})


def gateway(*endpoints, queues=()):
    return GatewayState(version="0.1.0", mode="enforce", draining=False, ready=True, endpoints=endpoints, queues=queues)


def samples(metrics, state=None):
    text = metrics.exposition(state or gateway()).decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(metrics, name, state=None, **labels):
    found = [sample.value for sample in samples(metrics, state) if sample.name == name and sample.labels == labels]
    return found[0] if found else None


def test_the_families_dashboards_rely_on_have_these_names_and_labels():
    metrics = Metrics("0.1.0", ["smol"])
    metrics.model("smol").would("queued")
    metrics.sample({"smol": Load(2, 7, (("127.0.0.1:8001", 0.625),))})
    state = gateway(endpoint(), queues=(QueueState(model="smol", depth=2, saturation=1.5, backlog_seconds=3.0),))
    shown = {sample.name: set(sample.labels) for sample in samples(metrics, state)}
    assert {name: shown.get(name) for name in PUBLIC} == PUBLIC


def test_requests_tokens_and_drift_are_counted_for_each_model():
    metrics = Metrics("0.1.0", ["smol"])
    smol = metrics.model("smol")
    smol.ended(Outcome.COMPLETED)
    smol.ended(Outcome.COMPLETED)
    smol.used(100, 20)
    smol.drifted(-3)
    smol.drifted(1)
    assert value(metrics, "kvgate_requests_total", model="smol", outcome="completed") == 2
    assert value(metrics, "kvgate_tokens_total", model="smol", kind="prompt") == 100
    assert value(metrics, "kvgate_tokens_total", model="smol", kind="completion") == 20
    assert value(metrics, "kvgate_prompt_token_drift_total", model="smol") == 4


def test_lengths_are_counted_where_they_belong():
    metrics = Metrics("0.1.0", ["smol"])
    metrics.model("smol").answered(96, 20)
    for kind, within, under in [("prompt", "96.0", "64.0"), ("output", "24.0", "16.0"), ("total", "128.0", "96.0")]:
        labels = {"model": "smol", "kind": kind}
        assert value(metrics, "kvgate_request_tokens_bucket", le=within, **labels) == 1
        assert value(metrics, "kvgate_request_tokens_bucket", le=under, **labels) == 0
    assert value(metrics, "kvgate_request_tokens_sum", model="smol", kind="total") == 116


def test_how_full_everything_is_is_counted_at_each_sample():
    metrics = Metrics("0.1.0")
    metrics.sample({"smol": Load(2, 7, (("a:1", 0.62), ("b:1", 0.05))), "other": Load(0, 3000, ())})
    metrics.sample({"smol": Load(0, 1, (("a:1", 1.02),))})
    assert value(metrics, "kvgate_sequences_over_time_sum", model="smol") == 8
    assert value(metrics, "kvgate_sequences_over_time_count", model="smol") == 2
    assert value(metrics, "kvgate_sequences_over_time_bucket", model="other", le="2048.0") == 0
    assert value(metrics, "kvgate_sequences_over_time_bucket", model="other", le="+Inf") == 1
    assert value(metrics, "kvgate_queue_depth_over_time_bucket", model="smol", le="0.0") == 1
    assert value(metrics, "kvgate_kv_usage_over_time_bucket", endpoint="a:1", le="1.0") == 1
    assert value(metrics, "kvgate_kv_usage_over_time_count", endpoint="a:1") == 2
    assert value(metrics, "kvgate_kv_usage_over_time_bucket", endpoint="b:1", le="0.05") == 1


def test_an_endpoint_that_is_no_longer_configured_is_not_shown():
    metrics = Metrics("0.1.0")
    metrics.sample({"smol": Load(2, 7, (("a:1", 0.62), ("b:1", 0.05)))})
    metrics.keep_endpoints(["b:1"])
    assert [value(metrics, "kvgate_kv_usage_over_time_count", endpoint=name) for name in ("a:1", "b:1")] == [None, 1]
    assert value(metrics, "kvgate_sequences_over_time_count", model="smol") == 1


def test_what_an_engine_did_is_told_as_far_as_it_counts():
    metrics = Metrics("0.1.0")
    state = gateway(endpoint(), endpoint(id="old:1", engine=EngineTotals(prompt_tokens=7)))
    here = {"endpoint": "127.0.0.1:8001"}
    assert value(metrics, "kvgate_engine_preemptions_total", state, **here) == 2
    assert value(metrics, "kvgate_engine_tokens_total", state, kind="prompt", **here) == 1000
    assert value(metrics, "kvgate_engine_tokens_total", state, kind="completion", **here) == 300
    assert value(metrics, "kvgate_engine_prefix_cache_tokens_total", state, kind="queried", **here) == 900
    assert value(metrics, "kvgate_engine_prefix_cache_tokens_total", state, kind="hit", **here) == 90
    assert value(metrics, "kvgate_sequences_peak", state, **here) == 9
    assert value(metrics, "kvgate_engine_preemptions_total", state, endpoint="old:1") is None
    assert value(metrics, "kvgate_engine_tokens_total", state, endpoint="old:1", kind="prompt") == 7


def test_every_outcome_can_be_counted():
    metrics = Metrics("0.1.0")
    for outcome in Outcome:
        metrics.model(None).ended(outcome)
        assert value(metrics, "kvgate_requests_total", model="unknown", outcome=outcome.value) == 1


def test_names_that_clients_make_up_do_not_become_labels():
    metrics = Metrics("0.1.0", ["smol"])
    for number in range(100):
        metrics.model(f"made-up-{number}").ended(Outcome.MODEL_NOT_FOUND)
    labels = {sample.labels["model"] for sample in samples(metrics) if "model" in sample.labels}
    assert labels == {"smol", "unknown"}
    assert value(metrics, "kvgate_requests_total", model="unknown", outcome="model_not_found") == 100


def test_a_model_that_is_found_later_gets_a_label_and_keeps_its_counts():
    metrics = Metrics("0.1.0")
    metrics.know("late")
    metrics.model("late").used(5, 0)
    metrics.know("late")
    assert value(metrics, "kvgate_tokens_total", model="late", kind="prompt") == 5


def test_gauges_are_those_of_the_state_at_each_scrape():
    metrics = Metrics("0.1.0")
    now = gateway(endpoint(in_flight=3))
    assert value(metrics, "kvgate_in_flight", now, endpoint="127.0.0.1:8001") == 3
    now = gateway(endpoint(in_flight=0, healthy=False, gate=GateState(open=False, reason="kv")))
    assert value(metrics, "kvgate_in_flight", now, endpoint="127.0.0.1:8001") == 0
    assert value(metrics, "kvgate_endpoint_healthy", now, endpoint="127.0.0.1:8001") == 0
    assert value(metrics, "kvgate_gate_open", now, endpoint="127.0.0.1:8001") == 0


def test_usage_has_three_sources():
    metrics = Metrics("0.1.0")
    usage = {
        source: value(metrics, "kvgate_kv_usage", gateway(endpoint()), endpoint="127.0.0.1:8001", source=source)
        for source in ("ledger", "observed", "effective", "forecast")
    }
    assert usage == {"ledger": 0.5, "observed": 0.25, "effective": 0.625, "forecast": 0.75}


def test_an_engine_that_renames_its_model_for_ever_leaves_the_labels_of_the_last_names():
    metrics = Metrics("0.1.0", ["served"])
    metrics.model("served").used(1, 1)
    for number in range(10 * MOST_MODELS):
        name = f"m{number}"
        metrics.know(name, {"served", name})
        known = metrics.model(name)
        known.ended(Outcome.COMPLETED)
        known.used(1, 1)
        known.drifted(1)
        known.would("queued")
        known.answered(1, 1)
        known.came(1, 0.0)
        metrics.sample({name: Load(1, 1, ())})
    labels = {sample.labels["model"] for sample in samples(metrics) if "model" in sample.labels}
    assert labels == {"served", "unknown", *(f"m{10 * MOST_MODELS - n}" for n in range(1, MOST_MODELS))}
    assert value(metrics, "kvgate_tokens_total", model="served", kind="prompt") == 1


def test_a_model_that_comes_back_goes_on_counting_and_is_new_again():
    metrics = Metrics("0.1.0", [f"m{number}" for number in range(MOST_MODELS)])
    metrics.model("m0").used(1, 1)
    metrics.know("m0")
    metrics.know("other")
    metrics.model("m0").used(1, 1)
    assert value(metrics, "kvgate_tokens_total", model="m0", kind="prompt") == 2
    assert value(metrics, "kvgate_tokens_total", model="m1", kind="prompt") is None


def test_what_is_not_known_has_no_sample():
    metrics = Metrics("0.1.0")
    state = gateway(endpoint(gate=None, kv=None, scrape_age_seconds=None))
    for name in ("kvgate_kv_usage", "kvgate_gate_open", "kvgate_scrape_age_seconds"):
        assert [sample for sample in samples(metrics, state) if sample.name == name] == []


@pytest.mark.parametrize(
    ("family", "seconds", "within"),
    [("queue_wait", 0.02, "0.05"), ("ttft", 0.15, "0.2"), ("overhead", 0.0015, "0.002")],
)
def test_times_are_seconds(family, seconds, within):
    metrics = Metrics("0.1.0")
    getattr(metrics, family).observe(seconds)
    name = f"kvgate_{family}_seconds"
    assert value(metrics, f"{name}_bucket", le=within) == 1
    assert value(metrics, f"{name}_sum") == seconds


def test_only_tenants_that_are_configured_have_labels():
    metrics = Metrics("0.1.0")
    metrics.know_tenants(["a", "b"])
    for name in ("a", "b"):
        metrics.tenant(name).ended(Outcome.COMPLETED)
        metrics.tenant(name).used(100, 20)
    metrics.know_tenants(["b", "c"])
    assert metrics.tenant("a") is metrics.tenant("10.0.0.1") is None
    assert {sample.labels["tenant"] for sample in samples(metrics) if "tenant" in sample.labels} == {"b"}
    assert value(metrics, "kvgate_tenant_requests_total", tenant="b", outcome="completed") == 1
    assert value(metrics, "kvgate_tenant_tokens_total", tenant="b", kind="completion") == 20


def test_a_tenant_costs_a_scrape_only_what_it_has_done():
    metrics = Metrics("0.1.0")
    metrics.know_tenants([f"key {number}" for number in range(1000)])
    metrics.tenant("key 7").ended(Outcome.CLIENT_CLOSED)
    found = [sample for sample in samples(metrics) if "tenant" in sample.labels]
    assert found
    assert all(sample.labels == {"tenant": "key 7", "outcome": "client_closed"} for sample in found)


def test_what_an_autoscaler_goes_by_is_absent_where_it_is_unknown():
    metrics, known = Metrics("0.1.0"), QueueState(model="a", depth=2, saturation=1.5, backlog_seconds=3.0)
    state = gateway(queues=(known, QueueState(model="b", depth=4, waiting_without_endpoint=4)))
    names = ("kvgate_saturation", "kvgate_backlog_seconds", "kvgate_waiting_without_endpoint")
    assert [value(metrics, name, state, model="a") for name in names] == [1.5, 3.0, 0]
    assert [value(metrics, name, state, model="b") for name in names] == [None, None, 4]


def test_only_openmetrics_shows_traces():
    metrics = Metrics("0.1.0")
    metrics.ttft.observe(0.15)
    metrics.ttft.exemplify(0.15, "4bf92f3577b34da6a3ce929d0e0e4736", 1000.5)
    old, new = (metrics.exposition(gateway(endpoint()), openmetrics=how).decode() for how in (False, True))
    assert [content_type(text.encode()).partition(";")[0] for text in (old, new)] == [
        "text/plain",
        "application/openmetrics-text",
    ]
    assert "4bf9" not in old
    families = {family.name: family for family in openmetrics_families(new)}
    shown = [sample.exemplar for sample in families["kvgate_ttft_seconds"].samples if sample.exemplar is not None]
    assert shown == [Exemplar({"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}, 0.15, Timestamp(1000, 500_000_000))]


def test_both_formats_tell_the_same():
    metrics, tier = Metrics("0.1.0", ["smol"]), exposed_tier(TierState(role="owner", epoch=7)).decode()
    metrics.model("smol").ended(Outcome.COMPLETED)
    state = gateway(endpoint(), queues=(QueueState(model="smol", depth=2, saturation=0.5),))
    texts = [tier + metrics.exposition(state, openmetrics=how).decode() for how in (False, True)]
    told = [
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families(text)
            for sample in family.samples
            if not sample.name.startswith("process_")
        }
        for families, text in zip((text_string_to_metric_families, openmetrics_families), texts, strict=True)
    ]
    assert told[0] == told[1]
    assert ("kvgate_saturation", ("model", "smol")) in told[0]


def test_two_gateways_in_one_process_do_not_share_counts():
    one, other = Metrics("0.1.0", ["smol"]), Metrics("0.1.0", ["smol"])
    one.model("smol").used(1, 1)
    assert value(other, "kvgate_tokens_total", model="smol", kind="prompt") == 0


def test_no_name_is_of_another_namespace():
    metrics = Metrics("0.1.0")
    shown = samples(metrics, gateway(endpoint()))
    assert all(re.match(r"(kvgate|process)_[a-z_]+$", sample.name) for sample in shown)


def test_a_gateway_of_a_tier_says_what_it_is_there():
    def shown(tier):
        families = text_string_to_metric_families(exposed_tier(tier).decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }

    tier = TierState(
        role="owner",
        id="a",
        owner="a",
        epoch=7,
        gateways=3,
        standing="owning",
        share=0.5,
        lease_seconds=1.5,
        redis=True,
    )
    assert shown(tier) == {
        ("kvgate_tier_role", "alone"): 0,
        ("kvgate_tier_role", "owner"): 1,
        ("kvgate_tier_role", "front"): 0,
        ("kvgate_tier_epoch",): 7,
        ("kvgate_tier_members",): 3,
        ("kvgate_tier_share",): 0.5,
        ("kvgate_tier_lease_seconds",): 1.5,
        ("kvgate_tier_redis_up",): 1,
    }
    assert ("kvgate_tier_lease_seconds",) not in shown(tier.model_copy(update={"role": "front", "lease_seconds": None}))
