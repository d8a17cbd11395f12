"""The pages as a site: it builds strictly, has every page, and loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import jsonschema
import pytest
import yaml
from typer.main import get_group

from gateway.cli import command_line
from gateway.config.settings import Settings
from gateway.ops.state import CountingState, EndpointState, GatewayState, KvState
from gateway.wire.errors import REFUSALS
from tests.deploy.helm import CHART
from tests.deploy.stack import ROOT
from tests.deploy.test_links import anchors

DOCS = ROOT / "docs"
SITE = ROOT / "build" / "site"
PEERS = sorted(DOCS.glob("from-*.md"))
LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "video": "src", "audio": "src"}
"""What a browser fetches by itself, beside `<link>`."""


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.policy = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in {"prev", "next", "canonical"}:
            self.loaded.append(given["href"])
        if LOADED.get(tag) in given:
            self.loaded.append(given[LOADED[tag]])
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    shutil.rmtree(SITE, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "docs.site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path: Page(path) for path in SITE.rglob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: dict[Path, Page]) -> None:
    for path, page in site.items():
        assert page.loaded, path
        assert [url for url in page.loaded if urlsplit(url).scheme or urlsplit(url).netloc] == [], path
        # The theme's script would fetch some libraries: no page lets it.
        assert "default-src 'self'" in page.policy, path
        assert "//" not in page.policy, path
    for sheet in [*SITE.rglob("*.css"), *SITE.rglob("*.svg")]:
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\"')]*", sheet.read_text()) == [], sheet


def test_every_link_leads_to_a_page_and_an_anchor_of_the_site(site: dict[Path, Page]) -> None:
    broken = []
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            known = site.get(target)
            if not target.is_file() or (parts.fragment and known and unquote(parts.fragment) not in known.ids):
                broken.append((path.relative_to(SITE), link))
    assert broken == []


def test_a_file_of_the_repository_is_a_page_with_its_text(site: dict[Path, Page]) -> None:
    shown = SITE / "repository" / "deploy" / "nginx" / "nginx.conf.html"
    assert shown in site
    assert "proxy_read_timeout" in shown.read_text()


def test_a_diagram_is_an_image(site: dict[Path, Page]) -> None:
    assert "```mermaid" in (DOCS / "architecture.md").read_text()
    images = [url for url in site[SITE / "architecture.html"].loaded if url.endswith(".svg")]
    assert len(images) > 3
    assert all((SITE / image).is_file() for image in images)


def named(entry: Any) -> Iterator[str]:
    """The pages that a navigation names."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from named(inner)


def test_the_navigation_has_every_page() -> None:
    """A new page of docs/ needs a row in zensical.toml."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert {page for page in named(nav) if "/" not in page} == {page.name for page in DOCS.glob("*.md")}


def test_the_readme_leads_to_the_start_page() -> None:
    assert "](docs/index.md)" in (ROOT / "README.md").read_text()


def test_every_status_that_a_refusal_may_have_is_a_symptom() -> None:
    headings = " ".join(re.findall(r"^### (.+)$", (DOCS / "symptoms.md").read_text(), re.MULTILINE))
    statuses = {str(refusal.status) for refusal in REFUSALS.values()}
    assert statuses - set(re.findall(r"\d{3}", headings)) == {"413", "500"}  # which say all by themselves
    assert anchors(DOCS / "symptoms.md") >= {"clients-get-429", "ttft-is-bad", "the-engine-restarts", "out-of-memory"}


def test_a_symptoms_commands_exist_and_read_what_the_state_has() -> None:
    page = (DOCS / "symptoms.md").read_text()
    commands = get_group(command_line()).commands
    for line in re.findall(r"(?:^    |`)kvgate ([^`#\n]+)", page, re.MULTILINE):
        name, *words = line.split()
        options = {option for parameter in commands[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line
    fields = {
        name for model in (GatewayState, EndpointState, KvState, CountingState) for name in model.model_fields
    } | {"jq", "decision", "overhead_ms", "queue_ms", "ttft_ms", "prompt_tokens", "counted"}
    asked = re.findall(r"jq (?:-c )?('[^']+'|\S+)$", page, re.MULTILINE)
    assert len(asked) > 4
    for expression in asked:
        assert set(re.findall(r"[a-z_]+", expression)) <= fields, expression


def blocks(page: Path) -> list[dict[str, Any]]:
    return [
        yaml.safe_load(block)
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize("page", PEERS, ids=lambda page: page.stem)
def test_kvgates_side_of_a_comparison_is_valid(page: Path) -> None:
    values = jsonschema.Draft202012Validator(yaml.safe_load((CHART / "values.schema.json").read_text()))
    ours = [block for block in blocks(page) if "models" in block]
    assert ours
    for block in ours:
        if any("pods" in model for model in block["models"]):
            values.validate(block)
        else:
            Settings.model_validate(block)


@pytest.mark.parametrize("page", PEERS, ids=lambda page: page.stem)
def test_a_comparison_says_what_kvgate_does_not_do(page: Path) -> None:
    assert "what-kvgate-does-not-do" in anchors(page)
