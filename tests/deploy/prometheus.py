"""Debian's Prometheus, which brings promtool."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.deploy.stack import install
from tests.ports import free_port


def program(name: str) -> str:
    """`prometheus` or `promtool`, installed first where there is none and we may."""
    if shutil.which(name) is None:
        install("prometheus")
    found = shutil.which(name)
    assert found is not None
    return found


class Prometheus:
    """A running Prometheus."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def query(self, expression: str) -> list[Any]:
        """The samples that an expression comes to now; none also while Prometheus starts."""
        try:
            answer = self._client.get("/query", params={"query": expression})
        except httpx.TransportError:
            return []
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return []
        found = answer.json()
        assert found["status"] == "success", f"{expression}: {found}"
        return list(found["data"]["result"])

    def exemplars(self, expression: str) -> list[Any]:
        """The exemplars of the last minutes."""
        answer = self._client.get("/query_exemplars", params={"query": expression, "start": "0", "end": "9999999999"})
        return list(answer.json()["data"])


@contextlib.contextmanager
def scraping(folder: Path, target: str, key: str) -> Iterator[Prometheus]:
    """A Prometheus that scrapes this host and port each half second with this key, and keeps its data in the folder."""
    file, port = folder / "prometheus.yml", free_port()
    targets = [{"targets": [target]}]
    scrape = {"job_name": "kvgate", "static_configs": targets, "authorization": {"credentials": key}}
    settings = {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": [scrape]}
    file.write_text(yaml.safe_dump(settings))
    command = [program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30, trust_env=False) as client:
            yield Prometheus(client)
    finally:
        process.terminate()
        process.wait(30)
