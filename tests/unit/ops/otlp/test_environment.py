import pytest

from gateway.config.errors import ConfigurationError
from gateway.ops.otlp import environment
from gateway.ops.otlp.environment import Batching, Signal, read
from gateway.ops.otlp.trace import Sampler

URL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    "off",
    [
        {},
        {"OTEL_SERVICE_NAME": "kvgate", "OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {**URL, "OTEL_SDK_DISABLED": "true"},
        {**URL, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"},
    ],
)
def test_without_a_place_to_go_nothing_is_exported(off):
    assert read(off) is None


@pytest.mark.parametrize(
    ("given", "signals"),
    [
        (URL, set(Signal)),
        ({**URL, "OTEL_LOGS_EXPORTER": "none"}, {Signal.TRACES, Signal.METRICS}),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, {Signal.TRACES}),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, {Signal.METRICS}),
    ],
)
def test_what_has_a_place_to_go_is_exported(given, signals):
    assert read(given).signals == signals


def test_the_defaults_are_those_of_the_specification():
    said = read(URL)
    assert said.sampler == Sampler(1.0, follows=True)
    assert said.spans == Batching(5.0, 2048, 512)
    assert said.logs == Batching(1.0, 2048, 512)
    assert said.metric_interval == 60.0


def test_what_is_given_counts():
    said = read(
        {
            **URL,
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.01",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
            "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE": "10",
            "OTEL_METRIC_EXPORT_INTERVAL": "5000",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer x,a=b",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_PROPAGATORS": "tracecontext,baggage",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
        }
    )
    assert said.sampler == Sampler(0.01, follows=False)
    assert said.spans == Batching(0.2, 100, 100)
    assert said.logs == Batching(1.0, 2048, 10)
    assert said.metric_interval == 5.0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:port"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nonexistent"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
        ("OTEL_TRACES_EXPORTER", "jaeger"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "5"),
        ("OTEL_PROPAGATORS", "b3"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5s"),
        ("OTEL_BLRP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "nan"),
        ("OTEL_RESOURCE_ATTRIBUTES", "production"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(name, wrong):
    with pytest.raises(ConfigurationError) as raised:
        read({**URL, name: wrong})
    assert str(raised.value).startswith(f"{name} = {wrong!r}: ")


def test_headers_are_secrets():
    with pytest.raises(ConfigurationError) as raised:
        read({**URL, "OTEL_EXPORTER_OTLP_HEADERS": "hush"})
    assert "hush" not in str(raised.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigurationError) as raised:
        read({**URL, "OTEL_TRACES_SAMPLER": "x", "OTEL_PROPAGATORS": "y"})
    assert len(str(raised.value).splitlines()) == 2


def test_without_the_extra_it_says_how_to_get_it(monkeypatch):
    def find(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(environment.importlib.util, "find_spec", find)
    with pytest.raises(ConfigurationError, match=r"pip install 'kvgate\[otel\]'"):
        read(URL)
    assert read({}) is None
