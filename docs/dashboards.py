"""The dashboards of `deploy/grafana`, as a table: `python -m docs.generate` writes them in the format Grafana imports.

What one process tells for all (gauges of a pool or an endpoint) is taken as the largest over the gateways that are
scraped, what each counts as the sum.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "deploy" / "grafana"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_RATE = "$__rate_interval"


class Query(NamedTuple):
    """One query of a panel."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel.

    `unit` is Grafana's: "short", "percentunit", "s", "bytes", "reqps". `kind` is its type of panel.
    """

    title: str
    meaning: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 8


class Dashboard(NamedTuple):
    """One dashboard; `variables` are labels to choose by, each with the metric that has its values."""

    name: str
    title: str
    variables: Sequence[tuple[str, str]]
    panels: Sequence[Panel]


def _quantiles(histogram: str) -> list[Query]:
    buckets = f"sum by (le) (rate({histogram}_bucket[{_RATE}]))"
    return [Query(f"histogram_quantile({share}, {buckets})", f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)]


def _looked_up(kind: str) -> str:
    return f'rate(kvgate_engine_prefix_cache_tokens_total{{{_ENDPOINT},kind="{kind}"}}[{_RATE}])'


def _stat(title: str, meaning: str, unit: str, expression: str) -> Panel:
    return Panel(title, meaning, unit, [Query(expression)], "stat", 4)


_MODEL = 'model=~"$model"'
_REFUSED = 'outcome=~"queue_full|wait_too_long|queue_timeout|rate_limit_exceeded|no_endpoint|gateway_full"'
_ENDPOINT = 'endpoint=~"$endpoint"'
_TENANT = 'tenant=~"$tenant"'

DASHBOARDS = (
    Dashboard(
        "overview",
        "kvgate",
        [("model", "kvgate_queue_depth")],
        [
            _stat(
                "Waiting", "Requests in the queue.", "short", f"sum(max by (model) (kvgate_queue_depth{{{_MODEL}}}))"
            ),
            _stat("Saturation", "1: as full as kvgate fills it.", "percentunit", f"max(kvgate_saturation{{{_MODEL}}})"),
            _stat("Backlog", "Time to serve all that waits.", "s", f"max(kvgate_backlog_seconds{{{_MODEL}}})"),
            _stat(
                "Refused",
                "Share of requests that got no place.",
                "percentunit",
                f"sum(rate(kvgate_requests_total{{{_MODEL},{_REFUSED}}}[{_RATE}]) or vector(0))"
                f" / sum(rate(kvgate_requests_total{{{_MODEL}}}[{_RATE}]))",
            ),
            _stat(
                "Endpoints up", "Those that take traffic.", "short", "sum(max by (endpoint) (kvgate_endpoint_healthy))"
            ),
            _stat(
                "Waiting for a first endpoint",
                "Requests that wait while none takes traffic.",
                "short",
                f"sum(max by (model) (kvgate_waiting_without_endpoint{{{_MODEL}}}))",
            ),
            Panel(
                "Requests",
                "By how they ended.",
                "reqps",
                [Query(f"sum by (outcome) (rate(kvgate_requests_total{{{_MODEL}}}[{_RATE}])) > 0", "{{outcome}}")],
            ),
            Panel(
                "Time to first token",
                "Of streams, the queue included: what users feel.",
                "s",
                _quantiles("kvgate_ttft_seconds"),
            ),
            Panel("Queue wait", "From arrival to dispatch.", "s", _quantiles("kvgate_queue_wait_seconds")),
            Panel(
                "Queue",
                "Requests that wait.",
                "short",
                [Query(f"max by (model) (kvgate_queue_depth{{{_MODEL}}})", "{{model}}")],
            ),
            Panel(
                "Saturation",
                "What runs and waits, as a share of what the endpoints may be filled to.",
                "percentunit",
                [Query(f"max by (model) (kvgate_saturation{{{_MODEL}}})", "{{model}}")],
            ),
            Panel(
                "KV cache",
                "What the gate goes by, and the peak that all in flight will come to.",
                "percentunit",
                [
                    Query('max by (endpoint) (kvgate_kv_usage{source="effective"})', "{{endpoint}} now"),
                    Query('max by (endpoint) (kvgate_kv_usage{source="forecast"})', "{{endpoint}} to come"),
                ],
            ),
            Panel(
                "Tokens",
                "Processed a second.",
                "short",
                [Query(f"sum by (kind) (rate(kvgate_tokens_total{{{_MODEL}}}[{_RATE}]))", "{{kind}}")],
            ),
            Panel(
                "Refusals",
                "Requests that got no place, by why.",
                "reqps",
                [
                    Query(
                        f"sum by (outcome) (rate(kvgate_requests_total{{{_MODEL},{_REFUSED}}}[{_RATE}]))", "{{outcome}}"
                    )
                ],
            ),
            Panel(
                "Second tries",
                "Refused requests that came back, and failed ones that were sent again, or not.",
                "reqps",
                [
                    Query(f"sum(rate(kvgate_returns_total{{{_MODEL}}}[{_RATE}]))", "came back"),
                    Query(f"sum by (sent) (rate(kvgate_retries_total{{{_MODEL}}}[{_RATE}]))", "sent again: {{sent}}"),
                ],
            ),
            Panel("kvgate's own time", "Before an engine has a request.", "s", _quantiles("kvgate_overhead_seconds")),
            Panel(
                "kvgate's CPU",
                "Cores.",
                "short",
                [Query(f"rate(process_cpu_seconds_total[{_RATE}]) and on(instance) kvgate_build_info", "{{instance}}")],
            ),
            Panel(
                "kvgate's memory",
                "Resident.",
                "bytes",
                [Query("process_resident_memory_bytes and on(instance) kvgate_build_info", "{{instance}}")],
            ),
        ],
    ),
    Dashboard(
        "endpoint",
        "kvgate: an endpoint",
        [("endpoint", "kvgate_endpoint_healthy")],
        [
            _stat(
                "Up",
                "Endpoints that take traffic.",
                "short",
                f"sum(max by (endpoint) (kvgate_endpoint_healthy{{{_ENDPOINT}}}))",
            ),
            _stat(
                "Gate",
                "Those given requests as far as their cache goes.",
                "short",
                f"sum(max by (endpoint) (kvgate_gate_open{{{_ENDPOINT}}}))",
            ),
            _stat("In flight", "Requests.", "short", f"sum(max by (endpoint) (kvgate_in_flight{{{_ENDPOINT}}}))"),
            _stat("Most sequences", "At once, so far.", "short", f"max(kvgate_sequences_peak{{{_ENDPOINT}}})"),
            _stat(
                "Preemptions",
                "By the engines, in an hour.",
                "short",
                f"sum(max by (endpoint) (increase(kvgate_engine_preemptions_total{{{_ENDPOINT}}}[1h])))",
            ),
            _stat("Scrape", "Age of the engine's metrics.", "s", f"max(kvgate_scrape_age_seconds{{{_ENDPOINT}}})"),
            Panel(
                "KV cache",
                "By kvgate's account, by the engine's gauge, by both, and the peak to come.",
                "percentunit",
                [Query(f"max by (endpoint, source) (kvgate_kv_usage{{{_ENDPOINT}}})", "{{endpoint}} {{source}}")],
                width=16,
            ),
            Panel(
                "KV cache over time",
                "Share of time at each usage.",
                "percentunit",
                [Query(f"sum by (le) (increase(kvgate_kv_usage_over_time_bucket{{{_ENDPOINT}}}[{_RATE}]))", "{{le}}")],
                "heatmap",
            ),
            Panel(
                "Requests in flight",
                "kvgate's.",
                "short",
                [Query(f"max by (endpoint) (kvgate_in_flight{{{_ENDPOINT}}})", "{{endpoint}}")],
            ),
            Panel(
                "Tokens of the engine",
                "A second, for anybody.",
                "short",
                [
                    Query(
                        f"max by (endpoint, kind) (rate(kvgate_engine_tokens_total{{{_ENDPOINT}}}[{_RATE}]))",
                        "{{endpoint}} {{kind}}",
                    )
                ],
            ),
            Panel(
                "Prefix cache",
                "Share of the prompt tokens that it found.",
                "percentunit",
                [
                    Query(
                        f"max by (endpoint) ({_looked_up('hit')}) / max by (endpoint) ({_looked_up('queried')})",
                        "{{endpoint}}",
                    )
                ],
            ),
            Panel(
                "Up, and gate open",
                "0 under load is normal for a gate, not for an endpoint.",
                "short",
                [
                    Query(f"max by (endpoint) (kvgate_endpoint_healthy{{{_ENDPOINT}}})", "{{endpoint}} up"),
                    Query(f"max by (endpoint) (kvgate_gate_open{{{_ENDPOINT}}})", "{{endpoint}} gate"),
                ],
            ),
            Panel(
                "Preemptions",
                "Requests a second that the engine preempted.",
                "reqps",
                [
                    Query(
                        f"max by (endpoint) (rate(kvgate_engine_preemptions_total{{{_ENDPOINT}}}[{_RATE}]))",
                        "{{endpoint}}",
                    )
                ],
            ),
            Panel(
                "GPU memory",
                "In use on kvgate's machine, by anybody.",
                "percentunit",
                [Query("kvgate_gpu_memory_used_bytes / kvgate_gpu_memory_bytes", "{{instance}} {{gpu}}")],
            ),
        ],
    ),
    Dashboard(
        "tenants",
        "kvgate: tenants",
        [("tenant", "kvgate_tenant_requests_total")],
        [
            Panel(
                "Requests",
                "Of each key.",
                "reqps",
                [Query(f"sum by (tenant) (rate(kvgate_tenant_requests_total{{{_TENANT}}}[{_RATE}]))", "{{tenant}}")],
                width=12,
            ),
            Panel(
                "Refused",
                "Requests of each key that got no place, by why.",
                "reqps",
                [
                    Query(
                        "sum by (tenant, outcome)"
                        f" (rate(kvgate_tenant_requests_total{{{_TENANT},{_REFUSED}}}[{_RATE}]))",
                        "{{tenant}} {{outcome}}",
                    )
                ],
                width=12,
            ),
            Panel(
                "Tokens",
                "Processed a second.",
                "short",
                [
                    Query(
                        f"sum by (tenant, kind) (rate(kvgate_tenant_tokens_total{{{_TENANT}}}[{_RATE}]))",
                        "{{tenant}} {{kind}}",
                    )
                ],
                width=12,
            ),
            Panel(
                "Share of the tokens",
                "Of all that were processed.",
                "percentunit",
                [
                    Query(
                        f"sum by (tenant) (rate(kvgate_tenant_tokens_total{{{_TENANT}}}[{_RATE}]))"
                        f" / scalar(sum(rate(kvgate_tenant_tokens_total[{_RATE}])))",
                        "{{tenant}}",
                    )
                ],
                width=12,
            ),
        ],
    ),
)


def dashboards() -> Iterator[tuple[Path, str]]:
    """The files, and what is to stand in them."""
    for dashboard in DASHBOARDS:
        yield FOLDER / f"{dashboard.name}.json", json.dumps(_written(dashboard), indent=1) + "\n"


def _written(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": f"kvgate-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["kvgate"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "graphTooltip": 1,
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "tags": ["kvgate"], "title": "kvgate", "asDropdown": False, "keepTime": True}],
        "templating": {"list": [_DATASOURCE, *(_variable(*variable) for variable in dashboard.variables)]},
        "panels": list(_placed(dashboard.panels)),
    }


_DATASOURCE = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    """The panels from left to right, in rows."""
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y, height = 0, y + height, 0
        tall = 4 if panel.kind == "stat" else 8
        yield {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "description": panel.meaning,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": tall},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "options": {},
            "targets": [
                {
                    "refId": chr(ord("A") + place),
                    "datasource": _SOURCE,
                    "expr": query.expression,
                    "legendFormat": query.legend or "__auto",
                    "exemplar": "_bucket" in query.expression and panel.kind == "timeseries",
                    "format": "heatmap" if panel.kind == "heatmap" else "time_series",
                }
                for place, query in enumerate(panel.queries)
            ],
        }
        x, height = x + panel.width, max(height, tall)
