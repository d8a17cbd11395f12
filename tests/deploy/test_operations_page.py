"""The page for operators names every metric, every refusal and no log line that does not exist."""

import ast
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.admission.outcomes import Outcome
from gateway.config.auth import ClientKey
from gateway.config.settings import LogSettings, Settings
from gateway.ops.logs import AccessLine, AccessLog
from gateway.ops.metrics import Metrics, exposed, exposed_tier
from gateway.ops.state import GatewayState, TierState
from gateway.relay.refusal_sentences import _SENTENCES
from gateway.wire.errors import REFUSALS
from tests.deploy.stack import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
OF_HISTOGRAMS = ("_bucket", "_count", "_sum")
TOO_MANY = {outcome: refusal.code for outcome, refusal in REFUSALS.items() if refusal.status == 429}


def section(title: str) -> str:
    """What stands under a heading, with what stands under the headings below it."""
    start = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert start is not None, title
    rest = PAGE[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def test_every_metric_is_explained() -> None:
    metrics = Metrics("1", ["m"])
    state = GatewayState(version="1", mode="enforce", draining=False, ready=True)
    shown = re.findall(r"^# TYPE (kvgate_\w+) ", exposed(metrics.figures(state, fronts=2)).decode(), re.MULTILINE)
    of_gpus = re.findall(r'GaugeMetricFamily\("(kvgate_\w+)"', (ROOT / "gateway" / "app" / "gpus.py").read_text())
    telemetry = (ROOT / "gateway" / "ops" / "otlp" / "telemetry.py").read_text()
    of_export = [f"{name}_total" for name in re.findall(r'Counter\(\s*"(kvgate_\w+)"', telemetry)]
    tier = TierState(role="owner", epoch=1, share=1.0, lease_seconds=1.0, redis=True, gateways=2)
    of_tiers = re.findall(r"^# TYPE (kvgate_\w+) ", exposed_tier(tier).decode(), re.MULTILINE)
    names = {name for name in [*shown, *of_gpus, *of_export, *of_tiers] if not name.endswith("_created")}
    explained = set(re.findall(r"^\| `(kvgate_\w+)", PAGE, re.MULTILINE))
    assert explained == names


def test_every_refusal_is_explained_with_its_status() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted((refusal.code, str(refusal.status)) for refusal in REFUSALS.values())


def test_the_lines_to_know_are_logged() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    lines = re.findall(r"^\| `([^`]+)` \| [^|]+ \|$", PAGE.partition("Lines to know")[2], re.MULTILINE)
    assert lines
    assert [line for line in lines if f'"{line}"' not in sources] == []


def test_a_query_asks_for_metrics_and_labels_that_exist() -> None:
    labels = {
        name: set(filter(None, (given or "").strip("{}").split(",")))
        for name, given in re.findall(r"^\| `(kvgate_\w+)(\{[^}]*\})?` \|", PAGE, re.MULTILINE)
    }
    queries = "\n".join(re.findall(r"^    .*kvgate_.*$|`[^`\n]*kvgate_[^`\n]*`", PAGE, re.MULTILINE))
    asked = re.findall(r"(kvgate_[a-z_]+[a-z]\b)(?!_?\*)(\{[^}]*[=~][^}]*\})?", queries)
    assert any(given for _, given in asked)
    for name, given in asked:
        family = name if name in labels else next(name.removesuffix(s) for s in OF_HISTOGRAMS if name.endswith(s))
        wanted = set(re.findall(r"(\w+)=", given))
        assert wanted <= labels[family] | {"le"}, (name, given)
    kept = {label.strip() for group in re.findall(r"by \(([^)]*)\)", queries) for label in group.split(",")}
    assert kept <= set().union(*labels.values(), {"le"})


def test_the_fields_of_an_access_line_are_called_what_they_are() -> None:
    fields = {field.name for field in msgspec.structs.fields(AccessLine)}
    named = set(re.findall(r"`(\w+_ms)\b", PAGE))
    assert named == {name for name in fields if name.endswith("_ms")}
    assert {"flow", "outcome", "counted"} <= fields


def _messages_of_429() -> Iterator[tuple[str, str]]:
    """Every sentence that the gateway may say with a 429, and its code."""
    for outcome in TOO_MANY.keys() & _SENTENCES.keys():
        yield _SENTENCES[outcome], TOO_MANY[outcome]
    for path in (ROOT / "gateway" / "relay").glob("*.py"):
        last = ""
        for node in sorted(ast.walk(ast.parse(path.read_text())), key=lambda node: getattr(node, "lineno", 0)):
            match node:
                case ast.Assign(value=ast.Constant(value=str(text))):
                    last = text
                case ast.Call(
                    func=ast.Name(id="RefusedError"),
                    args=[ast.Attribute(value=ast.Name(id="Outcome"), attr=name), said, *_],
                ) if (outcome := Outcome[name]) in TOO_MANY:
                    text = str(said.value) if isinstance(said, ast.Constant) else last
                    yield text.removesuffix(" Please retry."), TOO_MANY[outcome]


def test_every_429_is_led_from_its_message_to_what_to_do() -> None:
    why = section("Why did I get a 429?")
    rows = re.findall(r"^\| ([A-Z][^|]+\.) \| \[(\w+)\]\(#(\w+)\)", why, re.MULTILINE)
    assert {(message, code) for message, code, _ in rows} == set(_messages_of_429())
    assert all(code == anchor for _, code, anchor in rows)
    # What a team may is written where teams are.
    of_teams = Outcome.RATE_LIMIT_EXCEEDED
    assert f"`{of_teams.value}`: a [limit of the team](#limits-for-each-team)" in why
    assert set(re.findall(r"^### (\w+)$", why, re.MULTILINE)) == set(TOO_MANY.values()) - {of_teams.value}


def test_the_commands_for_429_read_access_lines(tmp_path: Path) -> None:
    written = io.StringIO()
    access = AccessLog(LogSettings(format="json"), written)
    for status, outcome, flow in ((429, "wait_too_long", "a"), (429, "queue_full", "a"), (200, "completed", "b")):
        access(
            request_id="4294", path="/v1/chat/completions", model="m", flow=flow, status=status, outcome=outcome,
            endpoint=None, fallback=None, stream=True, prompt_tokens=429, counted="local",
            completion_tokens=None, queue_ms=0.0, ttft_ms=None, overhead_ms=1.0, duration_ms=429.0,
        )  # fmt: skip
    (tmp_path / "kvgate.log").write_text(written.getvalue())
    commands = re.findall(r"^ +(grep .*)$", section("Why did I get a 429?"), re.MULTILINE)
    outcomes, flows = (
        subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
        for command in commands
    )
    assert outcomes == ["1", '"outcome":"queue_full"', "1", '"outcome":"wait_too_long"']
    assert flows == ["2", '"flow":"a"']


def test_what_a_key_can_be_given_is_all_that_limits_a_team() -> None:
    there_is = section("Limits for each team").partition("There is not:")[0]
    for name in set(ClientKey.model_fields) - {"key", "key_file"}:
        assert f"`{name}`" in there_is or f"**{name}**" in there_is, name


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("admission.queue.ttl", "60 s"),
        ("admission.queue.max_requests", "2,048"),
        ("admission.queue.max_bytes", "2,048 MiB of bodies"),
        ("upstream.relay_concurrency", "64"),
        ("health.interval", "1 s"),
    ],
)
def test_a_default_that_is_told_is_the_default(setting: str, shown: str) -> None:
    assert f"`{setting}` ({shown})" in PAGE
    value = Settings()
    for name in setting.split("."):
        value = getattr(value, name)
    number = int(shown.split(maxsplit=1)[0].replace(",", "")) * (2**20 if "MiB" in shown else 1)
    assert value == number
