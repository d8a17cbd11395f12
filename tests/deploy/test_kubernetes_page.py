"""What the page for Kubernetes shows works with the real chart, helm and kubectl."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import gateway
from gateway.cli import command_line
from gateway.config.settings import ServerSettings
from gateway.wire.errors import REFUSALS, reasons
from tests.deploy.helm import CHART, MANIFEST, mounted, of_kind, program, template, validate
from tests.deploy.stack import ROOT

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
SHOWN = [dict(yaml.safe_load(block)) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
VALUES = [one for one in SHOWN if one.keys() <= DEFAULTS.keys()]
RESOURCES = [one for one in SHOWN if "apiVersion" in one]
RULES = [rule for one in SHOWN for rule in one.get("externalRules", ())]


def kubectl(line: str) -> dict[str, Any]:
    """What a command of the page prints, without a cluster."""
    words = line.replace("$(openssl rand -hex 32)", "5" * 64).split()
    assert words[0] == "kubectl"
    done = subprocess.run([program("kubectl"), *words[1:]], check=True, capture_output=True, text=True, cwd=ROOT)
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}


def line_of(beginning: str) -> str:
    (line,) = (line.strip() for line in PAGE.splitlines() if line.strip().startswith(beginning))
    return line


def test_each_example_is_values_or_a_resource_or_a_rule_of_the_adapter() -> None:
    assert len(VALUES) + len(RESOURCES) + len(RULES) == len(SHOWN)
    assert len(VALUES) > 8


@pytest.mark.network
@pytest.mark.parametrize("values", VALUES, ids="-".join)
def test_values_come_to_what_kubernetes_and_kvgate_take(values: dict[str, Any], tmp_path: Path) -> None:
    resources = template(values)
    for resource in resources:
        validate(resource)
    _, environment = mounted(resources, tmp_path)
    checked = CliRunner().invoke(command_line(), ["check-config"], env=environment)
    assert checked.exit_code == 0, checked.output


def test_a_route_leads_to_the_service_and_lets_no_client_name_its_flow() -> None:
    (route,) = RESOURCES
    validate(route)
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "kvgate", "port": DEFAULTS["service"]["port"]}]
    (change,) = (one["requestHeaderModifier"] for one in rule["filters"])
    assert [one["name"] for one in change["set"]] == ["x-llm-d-inference-fairness-id"]
    assert change["remove"] == ["x-llm-d-inference-objective", "x-gateway-inference-objective"]


@pytest.mark.network
def test_the_rule_of_the_adapter_is_for_a_metric_that_the_chart_asks_for() -> None:
    autoscaling = {"kind": "hpa", "target": {"name": "vllm"}, "model": "m"}
    (scaler,) = of_kind(template({"autoscaling": autoscaling}), "HorizontalPodAutoscaler")
    names = [metric["external"]["metric"]["name"] for metric in scaler["spec"]["metrics"]]
    (rule,) = RULES
    assert re.findall(r'__name__="(\w+)"', rule["seriesQuery"]) == names[:1]
    rows = re.findall(r"^\| `(kvgate_\w+)` \| `(\w+)`.*\| (\S+) \|$", PAGE, re.MULTILINE)
    assert [name for name, _, _ in rows] == names
    assert [float(default) for _, _, default in rows] == [DEFAULTS["autoscaling"][value] for _, value, _ in rows]


@pytest.mark.network
def test_the_secret_that_is_made_has_the_keys_that_the_examples_name() -> None:
    secret = kubectl(line_of("kubectl create secret") + " --dry-run=client -o yaml")["Secret"]
    validate(secret)
    named = re.findall(r"/run/secrets/kvgate/(\w+)|\{secret: kvgate, key: (\w+)\}", PAGE)
    assert {key or other for key, other in named} == secret["data"].keys()


@pytest.mark.network
def test_the_plain_manifest_takes_another_image() -> None:
    resources = kubectl(line_of("kubectl apply -k").replace("apply -k", "kustomize"))
    for resource in resources.values():
        validate(resource)
    plain = {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text()) if one}
    (container,) = plain["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"kvgate:{gateway.__version__}"
    container["image"] = f"registry.example.com/kvgate:{gateway.__version__}"
    assert resources == plain


def test_defaults_and_words_are_those_of_the_code() -> None:
    (seconds,) = re.findall(r"`config.server.shutdown_timeout` \((\d+) s\)", PAGE)
    assert float(seconds) == ServerSettings().shutdown_timeout
    words = {value.decode() for outcome in REFUSALS for name, value in reasons(outcome) if b"llm-d" in name}
    assert words == set(re.findall(r"`(rejected-[a-z-]+)`", PAGE))
