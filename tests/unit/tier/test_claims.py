from gateway.app.named_files import read_named_files
from gateway.config.settings import Settings
from gateway.tier.claims import claim
from gateway.tier.frames import OLDEST, VERSION
from gateway.tier.seal import Role, SharedKey, agreed

KEY = SharedKey(b"0123456789abcdef" * 2)


def settings(*, url="http://a:1", key="one", template=None, advertise="h:1", **sections):
    model = {"name": "m", "chat_template": template, "endpoints": [{"url": url, "api_key": key}]}
    tier = {"redis": "redis://h", "advertise": advertise, "key_file": "/key"}
    return Settings.model_validate({"models": [model], "tier": tier, **sections})


def differs(one, other):
    """What a front with the one shows of an owner with the other."""
    return agreed(said(one, Role.FRONT), said(other)).differs


def said(settings, role=Role.OWNER, key=KEY):
    return claim(role, key, settings, read_named_files(settings).templates)


def test_a_gateway_says_who_it_is_and_which_messages_it_speaks():
    its = said(settings())
    assert (its.role, its.member, its.versions) == (Role.OWNER, "h:1", (OLDEST, VERSION))


def test_gateways_with_the_same_settings_do_not_differ():
    assert differs(settings(), settings()) == ()


def test_what_is_each_gateways_own_may_differ():
    assert differs(settings(), settings(advertise="i:1", key="two", server={"port": 9}, log={"level": "error"})) == ()


def test_a_front_that_has_a_part_of_the_queues_bytes_has_the_same_settings():
    assert differs(settings(admission={"queue": {"max_bytes": 2**20}}), settings()) == ()


def test_what_decides_may_not_differ():
    assert differs(settings(), settings(url="http://b:1")) == ("settings",)
    assert differs(settings(), settings(admission={"kv_high": 0.8, "kv_low": 0.7})) == ("settings",)
    assert differs(settings(), settings(health={"interval": 7.0})) == ("settings",)


def test_of_settings_and_templates_nothing_can_be_read():
    its, other = said(settings()), said(settings(), key=SharedKey(b"fedcba9876543210" * 2))
    assert its.settings != other.settings
    assert its.templates != other.templates


def test_a_chat_template_is_what_is_in_its_file(tmp_path):
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    one.write_text("{{ messages }}")
    same.write_text("{{ messages }}")
    before = settings(template=str(one))
    assert differs(before, settings(template=str(same))) == differs(before, settings(template="{{ messages }}")) == ()
    other.write_text("{{ messages[0] }}")
    assert differs(before, settings(template=str(other))) == differs(before, settings()) == ("chat templates",)
