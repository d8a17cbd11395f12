"""The chart comes to resources that Kubernetes takes and to settings that kvgate takes, whatever its values."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

import gateway
from gateway.cli import command_line
from gateway.config.errors import ConfigurationError
from gateway.config.sources import load
from gateway.ops.metrics import Metrics
from gateway.ops.state import GatewayState
from tests.deploy.dockerfile import parse
from tests.deploy.helm import (
    CHART,
    MANIFEST,
    OLDEST,
    RefusedError,
    config_of,
    helm,
    kvgate_of,
    manifest,
    mounted,
    of_kind,
    pod_of,
    template,
    validate,
)
from tests.deploy.stack import ROOT

pytestmark = pytest.mark.network

KEY = {"name": "app", "key_file": "/run/secrets/kvgate/app"}
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
PODS = {"name": "chat", "pods": {"labels": {"app": "vllm"}, "port": 8000}}
SIDECAR = {
    "models": [{"endpoints": [{"url": "http://127.0.0.1:8000"}]}],
    "sidecar": {
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--model", "Qwen/Qwen3-8B", "--host", "127.0.0.1"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "volumeMounts": [{"name": "huggingface", "mountPath": "/root/.cache/huggingface"}],
    },
}
KEYS = {"secrets": ["kvgate"], "adminKey": {"secret": "kvgate"}, "config": {"auth": {"keys": [KEY]}}}
TIER = {"replicas": 3, "secrets": ["kvgate"], "tier": {"redis": "redis://redis:6379/0", "key": {"secret": "kvgate"}}}
SCALED = {"target": {"name": "vllm"}, "model": "chat"}
MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "dns": {"models": [{"discover": [{"dns": "http://vllm.default.svc.cluster.local:8000"}]}]},
    "engines with a key": {
        "secrets": ["kvgate"],
        "models": [{"endpoints": [{"url": "https://vllm:8000", "api_key_file": "/run/secrets/kvgate/engine"}]}],
    },
    "labels": {"models": [PODS, {"pods": {"labels": {"app": "b"}, "port": 9000}, "discover": [{"srv": "_b._tcp.b"}]}]},
    "keys": {**KEYS, "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "tls": {
        "secrets": ["certificate"],
        "podMonitor": {"enabled": True},
        "config": {
            "server": {
                "tls_cert": "/run/secrets/certificate/tls.crt",
                "tls_key": "/run/secrets/certificate/tls.key",
                "shutdown_timeout": 300.5,
            }
        },
    },
    "tier": {**TIER, "networkPolicy": {"enabled": True}},
    "tier with a password": {**TIER, "tier": {"redisSecret": {"name": "redis"}, "key": {"secret": "kvgate"}}},
    "sidecar": SIDECAR,
    "sidecars, scaled": {**SIDECAR, "autoscaling": {"kind": "hpa", "model": "chat"}},
    "hpa": {"models": [PODS], "autoscaling": {"kind": "hpa", **SCALED}},
    "keda": {"autoscaling": {"kind": "keda", "prometheus": "http://prometheus:9090", "saturation": 1, **SCALED}},
    "networks": {
        "models": [PODS],
        "networkPolicy": {"enabled": True, "clients": [{"podSelector": {}}], "monitoring": MONITORING},
    },
    "dashboards": {"dashboards": {"enabled": True}},
    "all of the rest": {
        "image": {"repository": "registry/kvgate", "tag": "main", "pullPolicy": "Always"},
        "config": {
            "log": {"access": False},
            "server": {"max_body_bytes": 2**26},
            "admission": {"bands": {2: {"ttft_target": 60}}},
        },
        "restartOnConfigChange": False,
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"a/b": "c"}},
        "preStopSeconds": 30,
        "resources": {},
        "state": {"persistentVolumeClaim": {"claimName": "state"}},
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
        "podSpec": {"nodeSelector": {"a": "b"}, "priorityClassName": "high", "imagePullSecrets": [{"name": "pull"}]},
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
    },
}


@pytest.fixture(scope="module", params=MATRIX)
def values(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MATRIX[request.param]


@pytest.fixture(scope="module")
def resources(values: dict[str, Any]) -> list[dict[str, Any]]:
    return template(values)


@pytest.mark.parametrize("case", ["defaults", "all of the rest"])
def test_helm_finds_nothing_to_complain_about(case: str) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, values=MATRIX[case])


def test_kubernetes_takes_each_resource(resources: list[dict[str, Any]]) -> None:
    for resource in resources:
        validate(resource)
    names = [(resource["kind"], resource["metadata"]["name"]) for resource in resources]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", ["sidecars, scaled", "networks"])
def test_the_oldest_kubernetes_takes_them_too(case: str) -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={OLDEST}.0-0"
    for resource in template(MATRIX[case]):
        validate(resource, OLDEST)


def test_kubernetes_would_say_what_it_does_not_take() -> None:
    (deployment,) = of_kind(template({}), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        validate(deployment)
    (monitor,) = of_kind(template(MATRIX["keys"]), "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["ports"] = "admin"
    with pytest.raises(jsonschema.ValidationError, match="'ports' was unexpected"):
        validate(monitor)


def test_kvgate_takes_its_settings(resources: list[dict[str, Any]], tmp_path: Path) -> None:
    _, environment = mounted(resources, tmp_path)
    checked = CliRunner().invoke(command_line(), ["check-config"], env=environment)
    assert checked.exit_code == 0, checked.output


def test_a_secret_that_the_settings_name_is_mounted_for_kvgate_to_read(resources: list[dict[str, Any]]) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in kvgate_of(resources)["volumeMounts"]}
    pod = pod_of(resources)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for line in config_of(resources).splitlines():
        _, found, path = line.partition("/run/secrets/")
        if found:
            secret = volumes[mounts[f"/run/secrets/{path.split('/')[0]}"]]["secret"]
            assert secret == {"secretName": path.split("/")[0], "defaultMode": 0o440}
    assert pod["securityContext"]["fsGroup"] == kvgate_of(resources)["securityContext"]["runAsGroup"]


def test_selectors_and_ports_are_those_of_kvgates_pods(resources: list[dict[str, Any]]) -> None:
    (deployment,) = of_kind(resources, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in kvgate_of(resources)["ports"]}
    selectors = [deployment["spec"]["selector"]["matchLabels"]]
    for kind in ("PodDisruptionBudget", "PodMonitor"):
        selectors += [one["spec"]["selector"]["matchLabels"] for one in of_kind(resources, kind)]
    of_kvgate = [one for one in of_kind(resources, "NetworkPolicy") if "-engines-" not in one["metadata"]["name"]]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in of_kvgate]
    (service,) = (one for one in of_kind(resources, "Service") if one["spec"].get("clusterIP") != "None")
    selectors.append(service["spec"]["selector"])
    assert all(selector.items() <= labels.items() for selector in selectors)
    used = {port["targetPort"] for port in service["spec"]["ports"]}
    used |= {port["port"] for one in of_kvgate for rule in one["spec"]["ingress"] for port in rule["ports"]}
    used |= {end["port"] for one in of_kind(resources, "PodMonitor") for end in one["spec"]["podMetricsEndpoints"]}
    assert used <= ports


def test_kubernetes_waits_until_the_last_stream_has_ended(resources: list[dict[str, Any]], tmp_path: Path) -> None:
    config, environment = mounted(resources, tmp_path)
    settings = load({}, config, environment)
    before = kvgate_of(resources)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_of(resources)["terminationGracePeriodSeconds"] >= before + settings.server.shutdown_timeout + 10


def test_kvgate_runs_as_nobody_and_writes_where_it_may(resources: list[dict[str, Any]]) -> None:
    container = kvgate_of(resources)
    last = parse((ROOT / "Dockerfile").read_text())[-1]
    security = container["securityContext"]
    assert last.last("USER").arguments == [f"{security['runAsUser']}:{security['runAsGroup']}"]
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
    assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]})
    assert pod_of(resources)["automountServiceAccountToken"] is False
    environment = dict(pair.split("=", 1) for pair in last.last("ENV").arguments)
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert {environment["STATE_DIRECTORY"], environment["HF_HOME"]} <= writable
    assert str(Path(environment["KVGATE_CACHE"]).parent) in writable


def test_kubernetes_sets_no_variables_that_kvgate_would_take_for_settings() -> None:
    """A Service called kvgate would give each pod of its namespace `KVGATE_PORT`."""
    assert pod_of(template({}))["enableServiceLinks"] is False
    with pytest.raises(ConfigurationError, match="KVGATE_PORT"):
        load({}, environ={"KVGATE_PORT": "tcp://10.0.0.1:8080"})


def test_engines_by_label_are_found_by_the_name_of_their_service() -> None:
    resources = template(MATRIX["labels"], name="mine")
    models = yaml.safe_load(config_of(resources))["models"]
    services = of_kind(resources, "Service")
    for number, (model, (labels, port)) in enumerate(zip(models, (("vllm", 8000), ("b", 9000)), strict=True)):
        name = f"mine-kvgate-engines-{number}"
        assert model["discover"][-1] == {"dns": f"http://{name}.models.svc.cluster.local:{port}"}
        (service,) = (one for one in services if one["metadata"]["name"] == name)
        assert service["spec"]["clusterIP"] == "None", "of any other the name has one address for all"
        assert service["spec"]["selector"] == {"app": labels}
    assert models[0]["name"] == "chat"
    assert models[1]["discover"][0] == {"srv": "_b._tcp.b"}


def test_engines_by_label_are_reached_by_nobody_but_kvgate_and_monitoring() -> None:
    ours, theirs = of_kind(template(MATRIX["networks"]), "NetworkPolicy")
    assert theirs["spec"]["podSelector"]["matchLabels"] == {"app": "vllm"}
    (rule,) = theirs["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": ours["spec"]["podSelector"]}, *MONITORING]
    requests, metrics = ours["spec"]["ingress"]
    assert (requests["from"], metrics["from"]) == ([{"podSelector": {}}], MONITORING)


def test_an_engine_in_the_pod_starts_before_kvgate_and_ends_after_it() -> None:
    resources = template(SIDECAR)
    (engine,) = pod_of(resources)["initContainers"]
    assert engine == {"name": "engine", "restartPolicy": "Always", **dict(SIDECAR["sidecar"])}
    (deployment,) = of_kind(resources, "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0, "there may be no second GPU"
    scaled = template(MATRIX["sidecars, scaled"])
    (deployment,) = of_kind(scaled, "Deployment")
    assert "replicas" not in deployment["spec"], "an upgrade would undo what was scaled"
    (scaler,) = of_kind(scaled, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_a_changed_config_restarts_the_pods_and_nothing_else_does() -> None:
    def annotations(values: Mapping[str, Any]) -> Any:
        (deployment,) = of_kind(template(values), "Deployment")
        return deployment["spec"]["template"]["metadata"].get("annotations")

    assert annotations({}) == annotations({"service": {"port": 80}, "dashboards": {"enabled": True}})
    assert annotations({}) != annotations({"config": {"admission": {"ttft_target": 3}}})
    assert annotations({"restartOnConfigChange": False}) is None


def test_autoscalers_go_by_the_same_signals() -> None:
    (hpa,) = of_kind(template(MATRIX["hpa"]), "HorizontalPodAutoscaler")
    (keda,) = of_kind(template(MATRIX["keda"]), "ScaledObject")
    names = ["kvgate_saturation", "kvgate_backlog_seconds", "kvgate_waiting_without_endpoint"]
    state = GatewayState(version="1", mode="enforce", draining=False, ready=True)
    told = Metrics("1", ["chat"]).exposition(state).decode()
    assert all(f"# TYPE {name} gauge" in told for name in names)
    metrics = [metric["external"]["metric"] for metric in hpa["spec"]["metrics"]]
    assert metrics == [{"name": name, "selector": {"matchLabels": {"model": "chat"}}} for name in names]
    triggers = [trigger["metadata"] for trigger in keda["spec"]["triggers"]]
    assert [trigger["query"] for trigger in triggers] == [
        f'max({name}{{namespace="models", model="chat"}})' for name in names
    ]
    targets = [metric["external"]["target"] for metric in hpa["spec"]["metrics"]]
    assert [target.get("value", target.get("averageValue")) for target in targets] == ["0.8", "2", "10"]
    assert [trigger["threshold"] for trigger in triggers] == ["1", "2", "10"]
    assert hpa["spec"]["scaleTargetRef"] == keda["spec"]["scaleTargetRef"]


def test_the_dashboards_are_those_of_grafanas_folder(tmp_path: Path) -> None:
    def shown(chart: Path) -> dict[str, Any]:
        maps = of_kind(template(MATRIX["dashboards"], chart=chart), "ConfigMap")
        labelled = [one["data"] for one in maps if one["metadata"]["labels"].get("grafana_dashboard") == "1"]
        return {name: json.loads(text) for data in labelled for name, text in data.items()}

    folder = ROOT / "deploy" / "grafana"
    assert (CHART / "dashboards").resolve() == folder
    files = {f"kvgate-{path.name}": json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert shown(CHART) == files
    # With one that has all that a template could trip over, and from a package, as a registry would have it.
    chart = tmp_path / "kvgate"
    shutil.copytree(CHART, chart)
    odd = {"title": "a {{ .b }}\n  c", "legend": "{{endpoint}}"}
    (chart / "dashboards" / "odd.json").write_text(json.dumps(odd, indent=2) + "\n")
    helm("package", chart, "--destination", tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    assert shown(package) == shown(chart) == {**files, "kvgate-odd.json": odd}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt value": ({"replica": 2}, "'replica' not allowed"),
    "several that decide apart": ({"replicas": 2}, "must decide as one"),
    "a tier of sidecars": ({**TIER, **SIDECAR}, "leave tier out"),
    "a tier without a key": ({**TIER, "tier": {"redis": "redis://redis:6379"}}, "tier.key.secret"),
    "a password that all could read": ({"tier": {"redis": "redis://user:secret@redis"}}, "/tier/redis"),
    "an admin key that is nowhere": ({"adminKey": {"secret": "kvgate"}}, "adminKey.secret"),
    "models in the wrong place": ({"config": {"models": []}}, "config.models"),
    "a port in the wrong place": ({"config": {"server": {"port": 80}}}, "config.server.port"),
    "an engine to launch": (
        {"models": [{"pods": PODS["pods"], "engine": {"model": "m"}}]},
        "Kubernetes starts engines",
    ),
    "nothing to scale": ({"autoscaling": {"kind": "hpa", "model": "m"}}, "autoscaling.target.name"),
    "no model to scale by": ({"autoscaling": {"kind": "hpa", "target": {"name": "v"}}}, "/autoscaling/model"),
    "nobody to ask": ({"autoscaling": {"kind": "keda", **SCALED}}, "autoscaling.prometheus"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_cannot_work_are_refused(case: str) -> None:
    values, message = REFUSED[case]
    with pytest.raises(RefusedError, match=message):
        template(values)


def test_notes_say_who_is_served() -> None:
    def notes(values: Mapping[str, Any]) -> str:
        return helm("install", "kvgate", CHART, "--dry-run=client", values=values).partition("NOTES:")[2]

    assert "Everybody who reaches the Service is served" in notes({})
    assert "http://kvgate.default.svc:8080/v1." in notes({})
    assert "Everybody" not in notes(KEYS)
    assert "nobody has the admin key" in notes({**KEYS, "adminKey": {"secret": ""}})


def test_the_chart_is_of_this_release() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == gateway.__version__
    assert kvgate_of(template({}))["image"] == f"kvgate:{gateway.__version__}"


def test_the_plain_manifest_is_the_chart_with_its_defaults() -> None:
    assert MANIFEST.read_text() == manifest(), "`make manifest` writes it"
