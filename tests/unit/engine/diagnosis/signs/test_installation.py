"""What an installation lacks, and the way to it."""

import pytest

from tests.unit.engine.diagnosis.texts import diagnosed


@pytest.mark.parametrize(
    ("sign", "way_out"),
    [
        ("no compiler", "apt-get install g++"),
        ("no vLLM", "let kvgate set up its own"),
        ("no device", "`--gpus all`"),
        ("driver too old", "Update the driver"),
        ("GPU not in the build", "compute capability"),
    ],
)
def test_the_remedy_names_the_part_to_install(sign: str, way_out: str) -> None:
    assert way_out in diagnosed(sign).remedy
