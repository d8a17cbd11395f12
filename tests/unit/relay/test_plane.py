from itertools import count

import pytest

from gateway.config.settings import Settings
from gateway.relay.client_identity import Client, Clients
from gateway.relay.plane import Plane


def plane(mode="enforce", keys=None):
    rest = dict.fromkeys(
        ("directory", "flights", "upstream", "metrics", "clock", "lobby", "counting", "bodies", "hash_key", "awaited")
    )
    policy = Settings.model_validate({"admission": {"mode": mode}})
    return Plane(policy, Clients(keys or {}, None), ids=count(1), **rest)


def test_the_mode_in_force_is_the_one_of_the_settings_in_force():
    made = plane()
    assert not made.observes
    made.settings = plane("observe").settings
    assert made.observes


def test_no_two_requests_have_one_id():
    made = plane()
    assert len({made.new_request() for _ in range(100)}) == 100


@pytest.mark.parametrize(("keys", "keeps"), [({}, True), ({"secret": Client("alice")}, False)])
def test_a_clients_key_is_the_endpoints_only_where_kvgate_has_none(keys, keeps):
    assert plane(keys=keys).keeps_credentials is keeps
