import pytest

from gateway.config.settings import TierSettings
from gateway.config.sources import ConfigurationError
from gateway.tier.keys import mark, prefix_key, tier_secret

SECRET = "0123456789abcdef" * 2


def test_the_secret_is_that_of_the_file(tmp_path):
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    tier = TierSettings(redis="redis://h", advertise="h:1", key_file=file)
    assert tier_secret(tier) == SECRET.encode()
    assert tier_secret(TierSettings()) is None


def test_a_secret_that_can_be_guessed_is_refused(tmp_path):
    file = tmp_path / "key"
    file.write_text(SECRET[1:])
    tier = TierSettings(redis="redis://h", advertise="h:1", key_file=file)
    with pytest.raises(ConfigurationError, match="at least 32 characters") as refused:
        tier_secret(tier)
    assert SECRET[1:] not in str(refused.value)


def test_keys_are_the_same_on_all_machines_and_tell_nothing_of_each_other():
    secret, other = SECRET.encode(), SECRET.encode() + b"x"
    assert prefix_key(secret).hex() == "ae7707ee9025865a4b1f16c5f01c1eab06f150a08c402a64b00ed0ca8b87853b", (
        "a constant: all releases of a tier must agree"
    )
    assert len({prefix_key(secret), prefix_key(other), secret}) == 3
    assert mark(secret) != mark(other)
    assert not prefix_key(secret).hex().startswith(mark(secret))
