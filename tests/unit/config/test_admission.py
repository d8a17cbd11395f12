import re
from dataclasses import fields
from functools import reduce

import pytest
from pydantic import ValidationError

from gateway.admission.policy import Band, Bounds, Mode, Policy
from gateway.config.admission import AdmissionSettings
from gateway.config.live import every


def test_the_defaults_of_the_settings_are_those_of_the_core():
    assert AdmissionSettings().to_policy(weights={}, kv_shares={}, poll_interval=1.0) == Policy()


def nested(given):
    """Settings by their names, as sections."""
    sections = {}
    for name, value in given.items():
        *path, last = name.split(".")
        reduce(lambda section, key: section.setdefault(key, {}), path, sections)[last] = value
    return sections


def test_every_setting_of_admission_reaches_the_core():
    given = {
        "mode": "observe",
        "policy": "forecast",
        "kv_high": 0.85,
        "kv_low": 0.6,
        "ttft_target": 9,
        "max_passes": 5,
        "queue.ttl": 1,
        "queue.no_endpoint_ttl": 2,
        "queue.max_requests": 3,
        "queue.max_bytes": 4,
        "bands.0.ttft_target": 1.5,
        "bands.2.reserved": 0.25,
    }
    not_of_the_core = {"queue.heartbeat", "event_log"}
    named = {re.sub(r"\.\d+\.", ".N.", name) for name in given}
    assert named | not_of_the_core == {name for name, _ in every(AdmissionSettings)}, "a new one belongs into `given`"
    settings = AdmissionSettings.model_validate(nested(given))
    policy = settings.to_policy(weights={"a": 2.0}, kv_shares={"a": 0.5}, poll_interval=0.5)
    for name in given:
        without = AdmissionSettings.model_validate(nested({key: given[key] for key in given if key != name}))
        assert without.to_policy(weights={"a": 2.0}, kv_shares={"a": 0.5}, poll_interval=0.5) != policy, (
            f"{name} does not reach it"
        )
    for field in fields(Policy):
        assert getattr(policy, field.name) != getattr(Policy(), field.name), f"no setting reaches {field.name}"
    assert settings.to_policy(weights={"a": 2.0}, kv_shares={"a": 0.5}, poll_interval=0.5) == Policy(
        mode=Mode.OBSERVE,
        bounds=Bounds.FORECAST,
        kv_high=0.85,
        kv_low=0.6,
        ttl=1,
        no_endpoint_ttl=2,
        max_requests=3,
        max_bytes=4,
        ttft_target=9,
        bands={0: Band(1.5, 0.0), 2: Band(None, 0.25)},
        weights={"a": 2.0},
        kv_shares={"a": 0.5},
        max_passes=5,
        poll_interval=0.5,
    )


@pytest.mark.parametrize("off", [None, "none"])
def test_a_ttft_target_can_be_turned_off(off):
    assert AdmissionSettings.model_validate({"ttft_target": off}).ttft_target is None


def test_the_gate_opens_below_where_it_closes():
    with pytest.raises(ValidationError, match=r"kv_low \(0\.9\) must be below kv_high \(0\.9\)"):
        AdmissionSettings(kv_low=0.9, kv_high=0.9)


def test_bands_leave_a_share_to_those_that_reserve_none():
    with pytest.raises(ValidationError, match=r"come to 1\.1, and must stay under 1: 0\.6 in band 0, 0\.5 in band 2"):
        AdmissionSettings.model_validate({"bands": {0: {"reserved": 0.6}, 1: {"ttft_target": 3}, 2: {"reserved": 0.5}}})
    assert AdmissionSettings.model_validate({"bands": {0: {"reserved": 0.6}, 2: {"reserved": 0.3}}}).bands[2]
