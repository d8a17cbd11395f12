"""Every link inside the project's pages leads somewhere."""

import re
from pathlib import Path

import pytest

from tests.deploy.stack import ROOT

PAGES = sorted(page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "loadtests" / "README.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of the headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text()):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_readmes_first_screen_leads_to_why_429() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:15])
    assert "docs/operations.md#why-did-i-get-a-429" in LINK.findall(first_screen)
