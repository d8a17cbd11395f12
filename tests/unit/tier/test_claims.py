from gateway.config.settings import Settings
from gateway.tier.claims import claim
from gateway.tier.frames import VERSION
from gateway.tier.seal import Role, SharedKey, agreed

KEY = SharedKey(b"0123456789abcdef" * 2)


def settings(*, url="http://a:1", key="one", template=None, advertise="h:1", **sections):
    model = {"name": "m", "chat_template": template, "endpoints": [{"url": url, "api_key": key}]}
    tier = {"redis": "redis://h", "advertise": advertise, "key_file": "/key"}
    return Settings.model_validate({"models": [model], "tier": tier, **sections})


def differs(one, other):
    """What a front with the one shows of an owner with the other."""
    return agreed(claim(Role.FRONT, KEY, one), claim(Role.OWNER, KEY, other)).differs


def test_a_gateway_says_who_it_is_and_which_messages_it_speaks():
    said = claim(Role.OWNER, KEY, settings())
    assert (said.role, said.member, said.versions) == (Role.OWNER, "h:1", (VERSION, VERSION))


def test_gateways_with_the_same_settings_do_not_differ():
    assert differs(settings(), settings()) == ()


def test_what_is_each_gateways_own_may_differ():
    assert differs(settings(), settings(advertise="i:1", key="two", server={"port": 9}, log={"level": "error"})) == ()


def test_what_decides_may_not_differ():
    assert differs(settings(), settings(url="http://b:1")) == ("settings",)
    assert differs(settings(), settings(admission={"kv_high": 0.8, "kv_low": 0.7})) == ("settings",)
    assert differs(settings(), settings(health={"interval": 7.0})) == ("settings",)


def test_of_settings_and_templates_nothing_can_be_read():
    said = claim(Role.OWNER, KEY, settings())
    other = claim(Role.OWNER, SharedKey(b"fedcba9876543210" * 2), settings())
    assert said.settings != other.settings
    assert said.templates != other.templates
