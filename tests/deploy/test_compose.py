"""The compose file is valid, and what it says of kvgate, nginx and vLLM is so."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.config.sources import load
from gateway.tier.key_file import read_key
from tests.deploy.dockerfile import parse
from tests.deploy.prometheus import program
from tests.deploy.stack import NGINX_CONF, ROOT

FILE = ROOT / "docker-compose.yml"
GATEWAYS = ("kvgate", "kvgate-a", "kvgate-b")
BEHIND_NGINX = GATEWAYS[1:]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", FILE.read_text())
    return dict(yaml.safe_load(text)["services"])


def settings_of(service: dict[str, Any]) -> Settings:
    """What kvgate comes to in that service."""
    option, url = service["command"]
    assert option == "--endpoint"
    return load({"models": [{"endpoints": [{"url": url}]}]}, environ=service["environment"])


def seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


def test_it_follows_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_profile_it_is_one_kvgate_beside_a_vllm_and_the_tier_brings_the_rest(
    services: dict[str, Any],
) -> None:
    assert {name for name, service in services.items() if "profiles" not in service} == {"vllm", "kvgate"}
    tier = {name for name, service in services.items() if service.get("profiles") == ["tier"]}
    assert tier == {*BEHIND_NGINX, "nginx", "valkey"}


@pytest.mark.parametrize("name", GATEWAYS)
def test_kvgate_takes_its_settings_and_finds_the_engine(name: str, services: dict[str, Any]) -> None:
    (endpoint,) = settings_of(services[name]).models[0].endpoints
    assert endpoint.url.host == "vllm"
    assert str(endpoint.url.port) in services["vllm"]["expose"]
    assert endpoint.url.port == urlsplit(services["vllm"]["healthcheck"]["test"][-1]).port


@pytest.mark.parametrize("name", GATEWAYS)
def test_kvgate_reads_the_tokenizer_where_the_engine_put_the_model(name: str, services: dict[str, Any]) -> None:
    environment = parse((ROOT / "Dockerfile").read_text())[-1].last("ENV").arguments
    home = dict(pair.split("=", 1) for pair in environment)["HF_HOME"]
    volume, place, mode = services[name]["volumes"][0].split(":")
    assert (place, mode) == (home, "ro")
    assert services["vllm"]["volumes"][0] == f"{volume}:/root/.cache/huggingface"
    # vLLM has the model before it is healthy, and kvgate asks for nothing before that.
    assert services[name]["depends_on"]["vllm"] == {"condition": "service_started"}


@pytest.mark.parametrize("name", GATEWAYS)
def test_running_streams_may_finish_before_a_container_is_killed(name: str, services: dict[str, Any]) -> None:
    longest = settings_of(services[name]).server.shutdown_timeout
    assert seconds(services[name]["stop_grace_period"]) > longest
    assert seconds(services["nginx"]["stop_grace_period"]) > longest


def test_people_reach_nothing_but_kvgate_nginx_and_grafana(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {
        "kvgate": ["127.0.0.1:8080:8080", "127.0.0.1:9090:9090"],
        "nginx": ["127.0.0.1:8081:8080"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    settings = settings_of(services["kvgate"])
    assert (settings.server.port, settings.server.admin_port) == (8080, 9090)


def test_no_two_services_of_any_profile_want_one_port(services: dict[str, Any]) -> None:
    wanted = [port.rsplit(":", 2)[-2] for service in services.values() for port in service.get("ports", [])]
    assert len(wanted) == len(set(wanted))


def test_nobody_on_another_machine_is_served_unless_somebody_says_so(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_folder_of_models_is_at_one_place_for_the_engine_and_those_who_count(services: dict[str, Any]) -> None:
    for name in ("vllm", *GATEWAYS):
        assert "models:/models:ro" in services[name]["volumes"]


def test_the_hub_token_is_a_secret_and_no_environment(services: dict[str, Any]) -> None:
    vllm = services["vllm"]
    assert vllm["secrets"] == ["hf_token"]
    assert vllm["environment"] == {"HF_TOKEN_PATH": "/run/secrets/hf_token"}
    assert "HF_TOKEN:" not in FILE.read_text()


def test_no_hub_token_is_an_empty_file() -> None:
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", FILE.read_text())
    file = yaml.safe_load(text)["secrets"]["hf_token"]["file"]
    read = "import huggingface_hub; print(huggingface_hub.get_token())"
    environ = {"PATH": os.environ["PATH"], "HF_TOKEN_PATH": file}
    done = subprocess.run([sys.executable, "-c", read], check=True, capture_output=True, text=True, env=environ)
    assert done.stdout.strip() == "None"


def test_no_log_grows_for_ever(services: dict[str, Any]) -> None:
    for service in services.values():
        assert service["logging"]["options"] == {"max-size": "20m", "max-file": "5"}


def test_what_is_learned_outlives_a_container(services: dict[str, Any]) -> None:
    stage = parse((ROOT / "Dockerfile").read_text())[-1]
    place = dict(pair.split("=", 1) for pair in stage.last("ENV").arguments)["STATE_DIRECTORY"]
    assert all(f"state:{place}" in services[name]["volumes"] for name in GATEWAYS)


def test_only_gateways_that_nginx_alone_reaches_trust_the_flow_it_names(services: dict[str, Any]) -> None:
    trusted = {name: settings_of(services[name]).server.trusted_flow_header for name in GATEWAYS}
    (header,) = re.findall(r"proxy_set_header (\S+) \$remote_addr;", NGINX_CONF.read_text())
    assert trusted == {"kvgate": None} | dict.fromkeys(BEHIND_NGINX, header.lower())


def test_the_gateways_behind_nginx_are_one_tier(services: dict[str, Any]) -> None:
    tiers = {name: settings_of(services[name]).tier for name in BEHIND_NGINX}
    assert settings_of(services["kvgate"]).tier.redis is None
    for name, tier in tiers.items():
        assert tier.advertise is not None
        assert tier.advertise.partition(":")[0] == name
        assert tier.members == len(BEHIND_NGINX)
        assert tier.redis is not None
        found = urlsplit(tier.redis.get_secret_value())
        assert found.hostname == "valkey"
        assert services["valkey"]["expose"] == [str(found.port)]
        assert services[name]["secrets"] == [str(tier.key_file).removeprefix("/run/secrets/")]
    assert len({tier.key_file for tier in tiers.values()}) == 1


def test_nobody_but_the_gateways_reaches_what_they_agree_by(services: dict[str, Any]) -> None:
    networks = yaml.safe_load(FILE.read_text())["networks"]
    assert networks["tier"] == {"internal": True}
    assert services["valkey"]["networks"] == ["tier"]
    assert "ports" not in services["valkey"]
    assert {name for name, service in services.items() if "tier" in service.get("networks", [])} == {
        "valkey",
        *BEHIND_NGINX,
    }


def test_without_a_key_the_tier_does_not_start() -> None:
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", FILE.read_text())
    with pytest.raises(ConfigurationError, match="expected a file with a key"):
        read_key(Path(yaml.safe_load(text)["secrets"]["tier"]["file"]))


def test_nginx_has_its_file_and_knows_the_gateways(services: dict[str, Any]) -> None:
    nginx = services["nginx"]
    source, target, mode = nginx["volumes"][0].split(":")
    assert (ROOT / source).resolve() == NGINX_CONF
    assert (target, mode) == ("/etc/nginx/nginx.conf", "ro")
    upstreams = re.findall(r"^ +server ([\w-]+):(\d+) ", NGINX_CONF.read_text(), re.MULTILINE)
    assert upstreams == [(name, str(settings_of(services[name]).server.port)) for name in BEHIND_NGINX]
    assert f"listen {nginx['ports'][0].rsplit(':')[-1]} " in NGINX_CONF.read_text()
    # Every place it writes to is under /tmp, which is all it may write to.
    assert nginx["read_only"]
    assert nginx["tmpfs"][0].startswith("/tmp")  # noqa: S108
    written = re.findall(r"^ *(?:pid|\w+_temp_path) (\S+);", NGINX_CONF.read_text(), re.MULTILINE)
    assert len(written) == 6
    assert all(place.startswith("/tmp/") for place in written)  # noqa: S108


def test_every_health_check_asks_for_what_exists(services: dict[str, Any]) -> None:
    probed = urlsplit(services["nginx"]["healthcheck"]["test"][-1])
    assert probed.path == "/readyz"
    assert f"location = {probed.path} " in NGINX_CONF.read_text()
    assert f"listen {probed.port} " in NGINX_CONF.read_text()
    assert urlsplit(services["vllm"]["healthcheck"]["test"][-1]).path == "/health"
    # Those of the gateways are the image's.
    for name in services["nginx"]["depends_on"]:
        assert "healthcheck" not in services[name]
    assert services["valkey"]["healthcheck"]["test"] == ["CMD", "valkey-cli", "ping"]
    assert parse((ROOT / "Dockerfile").read_text())[-1].last("HEALTHCHECK")


def test_who_watches_scrapes_the_admin_port_and_has_the_alerts_and_dashboards(services: dict[str, Any]) -> None:
    assert {name for name, service in services.items() if service.get("profiles") == ["watch"]} == {
        "prometheus",
        "grafana",
    }
    folder = ROOT / "deploy" / "prometheus"
    assert services["prometheus"]["volumes"][0] == "./deploy/prometheus:/etc/prometheus:ro"
    settings = yaml.safe_load((folder / "prometheus.yml").read_text())
    assert [(folder / name).exists() for name in settings["rule_files"]] == [True]
    assert settings["scrape_configs"][0]["static_configs"] == [
        {"targets": [f"kvgate:{settings_of(services['kvgate']).server.admin_port}"]}
    ]
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "kvgate.yaml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{services['prometheus']['expose'][0]}"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "kvgate.yaml").read_text())["providers"]
    assert f"./deploy/grafana:{provider['options']['path']}:ro" in services["grafana"]["volumes"]


@pytest.mark.network
def test_prometheus_takes_its_file() -> None:
    file = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    done = subprocess.run(
        [program("promtool"), "check", "config", str(file)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
