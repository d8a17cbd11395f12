"""What engines print, by the sign that it shows: see `log_texts.yaml`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from engine.diagnosis.log_cause import diagnose
from engine.diagnosis.sign import Diagnosis

TEXTS: Sequence[Mapping[str, str]] = yaml.safe_load(Path(__file__).with_name("log_texts.yaml").read_text())


def diagnosed(sign: str, part: str = "") -> Diagnosis:
    """What the first text of a sign with this part says of an engine that ended."""
    return diagnose(next(one["text"] for one in TEXTS if one["sign"] == sign and part in one["text"]).splitlines(), 1)
