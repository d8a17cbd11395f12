import re

import pytest
from pydantic import ValidationError

from gateway.config.tier import TierSettings

WHOLE = {"redis": "redis://h", "advertise": "10.0.0.7:8500", "key_file": "/k"}


def test_a_tier_is_all_there_or_there_is_none():
    assert TierSettings().redis is None
    assert TierSettings(**WHOLE).redis.get_secret_value() == "redis://h"
    for name in WHOLE:
        given = {other: value for other, value in WHOLE.items() if other != name}
        with pytest.raises(ValidationError, match=f"a tier needs `{name}`, too"):
            TierSettings(**given)


@pytest.mark.parametrize("address", ["h", ":1", "h:", "h:x", "h:0", "h:65536"])
def test_an_address_to_advertise_has_a_host_and_a_port(address):
    with pytest.raises(ValidationError, match=re.escape("expected HOST:PORT, as 10.0.0.7:8500")):
        TierSettings(**WHOLE | {"advertise": address})


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "*"])
def test_every_address_is_none_that_others_reach(host):
    with pytest.raises(ValidationError, match="not every address"):
        TierSettings(**WHOLE | {"advertise": f"{host}:1"})


@pytest.mark.parametrize("address", ["h:1", " h:65535 ", "[fd00::1]:8500"])
def test_an_address_is_advertised_without_the_space_around_it(address):
    assert TierSettings(**WHOLE | {"advertise": address}).advertise == address.strip()


def test_a_redis_that_cannot_be_one_is_refused():
    with pytest.raises(ValidationError, match=re.escape("expected HOST or HOST:PORT")):
        TierSettings(**WHOLE | {"redis": "redis://h:port"})
