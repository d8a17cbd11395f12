from dataclasses import replace

from engine.plan.budget import defaults, measure
from engine.plan.remedy import Situation
from tests.unit.engine.plan.models import request


def test_a_situation_with_other_settings_is_measured_anew():
    asked = request("Llama-3.1-8B")
    settings = defaults(asked)
    now = Situation(asked, settings, measure(asked, settings))
    after = now.then(replace(settings, max_num_seqs=8))
    assert after.request is asked
    assert after.budget == measure(asked, after.settings)
    assert after.budget.kv.low > now.budget.kv.low
