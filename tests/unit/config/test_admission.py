from dataclasses import fields

import pytest
from pydantic import ValidationError

from gateway.admission.policy import Band, Bounds, Mode, Policy
from gateway.config.admission import AdmissionSettings, BandSettings, QueueSettings


def test_the_defaults_of_the_settings_are_those_of_the_core():
    assert AdmissionSettings().to_policy(weights={}, kv_shares={}, poll_interval=1.0) == Policy()


def test_every_setting_of_admission_reaches_the_core():
    """Under its name and as it is, but for three; and nothing of the core is without a setting."""
    of_keys = {"weights": {"a": 2.0}, "kv_shares": {"a": 0.5}, "poll_interval": 0.5}
    bands = {0: BandSettings(ttft_target=1.5), 2: BandSettings(reserved=0.25)}
    converted = {"mode": "observe", "policy": "forecast", "bands": bands}
    own = {name: object() for name in AdmissionSettings.model_fields.keys() - {*converted, "queue", "event_log"}}
    queue = {name: object() for name in QueueSettings.model_fields.keys() - {"heartbeat"}}
    settings = AdmissionSettings.model_construct(**own, **converted, queue=QueueSettings.model_construct(**queue))
    reaches = {
        **own,
        **queue,
        **of_keys,
        "mode": Mode.OBSERVE,
        "bounds": Bounds.FORECAST,
        "bands": {0: Band(1.5, 0.0), 2: Band(None, 0.25)},
    }
    assert settings.to_policy(**of_keys) == Policy(**reaches)
    assert reaches.keys() == {field.name for field in fields(Policy)}


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
