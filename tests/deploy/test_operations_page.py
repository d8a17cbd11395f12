"""The page for operators names every metric, every refusal and no log line that does not exist."""

import re

from gateway.ops.metrics import Metrics
from gateway.wire.errors import REFUSALS
from tests.deploy.stack import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()


def test_every_metric_is_explained() -> None:
    metrics = Metrics("1", ["m"])
    exposed = re.findall(r"^# TYPE (kvgate_\w+) ", metrics.exposition().decode(), re.MULTILINE)
    # What endpoints and queues are at comes from a snapshot; their names stand in the source.
    source = (ROOT / "gateway" / "ops" / "metrics.py").read_text()
    gauges = re.findall(r'_(?:gauge|counter)\(\s*"(kvgate_\w+)"', source)
    of_gpus = re.findall(r'GaugeMetricFamily\("(kvgate_\w+)"', (ROOT / "gateway" / "gpus.py").read_text())
    names = {name for name in [*exposed, *gauges, *of_gpus] if not name.endswith("_created")}
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
