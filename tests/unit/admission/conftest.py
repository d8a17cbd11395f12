import pytest

from gateway.admission.policy import Policy
from tests.unit.admission.playbook import Playbook


@pytest.fixture
def play():
    """Start a script; at the end of the test every command must have been named."""
    scripts = []

    def start(**settings) -> Playbook:
        scripts.append(Playbook(Policy(**settings)))
        return scripts[-1]

    yield start
    for script in scripts:
        script.finish()
