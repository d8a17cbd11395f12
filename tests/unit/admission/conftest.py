import pytest

from gateway.admission.policy import Bounds, Policy
from tests.unit.admission.playbook import Playbook


@pytest.fixture
def play():
    """Start a script with the gate alone, first come first served; at its end every command must have been named."""
    scripts = []

    def start(**settings) -> Playbook:
        defaults = {"bounds": Bounds.HYSTERESIS, "ttft_target": None, "max_passes": 0}
        scripts.append(Playbook(Policy(**{**defaults, **settings})))
        return scripts[-1]

    yield start
    for script in scripts:
        script.finish()
