import re

import httpx
import pytest
from fastapi import FastAPI

from gateway.admission.placing.rules import RULES
from gateway.ops.pictures.page_files import FOLDER, page_routes


@pytest.fixture
async def asked():
    app = FastAPI()
    app.include_router(page_routes())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here/prefix/") as client:
        yield client


async def test_the_page_is_open_and_strict(asked):
    page = await asked.get("http://here/kvgate/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert (await asked.get("http://here/kvgate")).headers["location"] == "kvgate/"


async def test_all_that_the_page_names_is_there_and_relative(asked):
    page = (await asked.get("http://here/kvgate/")).text
    named = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert {"page/page.js", "page/uplot.js", "page/page.css"} <= set(named)
    for name in named:
        assert not name.startswith(("/", "http")), "it may be behind a path prefix, and offline"
    for name in (name for name in named if name.startswith("page/")):
        assert (await asked.get(f"http://here/kvgate/{name}")).status_code == 200
    for file in FOLDER.glob("*.js"):
        for imported in re.findall(r'(?:^import .* from |await import\()"\./([^"]+)"', file.read_text(), re.MULTILINE):
            assert (FOLDER / imported).is_file()


async def test_nothing_else_is_served(asked):
    for name in ("nothing.js", "uplot.LICENSE", "..%2fpicture.py", "..%2F..%2Fadmin.py"):
        assert (await asked.get(f"http://here/kvgate/page/{name}")).status_code == 404


async def test_nothing_is_inline():
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", page)
    for file in FOLDER.glob("*.js"):
        if file.name != "uplot.js":
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", file.read_text()
            )


async def test_the_page_is_small():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 200_000


async def test_rules_are_told_in_the_order_in_which_they_are_asked(asked):
    words = (await asked.get("http://here/kvgate/page/words.json")).json()
    assert [rule["name"] for rule in words["rules"]] == [rule.name for rule in RULES]
    assert words["outcomes"]["completed"] == {"words": "answered", "kind": "done"}


async def test_the_page_is_told_whether_it_shows_a_record(asked):
    assert (await asked.get("http://here/kvgate/page/words.json")).json()["replay"] is False
