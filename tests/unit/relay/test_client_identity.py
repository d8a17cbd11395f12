import hashlib

import pytest

from gateway.relay.client_identity import Client, Clients, UnknownKeyError


def scope(*headers, peer=("10.0.0.1", 5)):
    return {"headers": list(headers), "client": peer}


def test_without_keys_the_address_is_the_flow_whatever_key_is_shown():
    clients = Clients({}, None)
    assert not clients.authenticates
    assert clients.identify(scope((b"authorization", b"Bearer stolen"))).flow == "10.0.0.1"
    assert clients.identify(scope(peer=None)).flow == "local"


def test_a_trusted_proxy_names_the_flow():
    clients = Clients({}, "X-Tenant")
    assert clients.identify(scope((b"x-tenant", b"alice"))).flow == "alice"
    assert clients.identify(scope((b"x-tenant", b""))).flow == "10.0.0.1"
    assert len(clients.identify(scope((b"x-tenant", b"a" * 1000))).flow) == 128


@pytest.mark.parametrize(
    ("address", "flow"),
    [
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::99", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::99", "2001:db8:1:3::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fd00::17", "fd00::17"),
        ("64:ff9b::c000:201", "64:ff9b::c000:201"),
    ],
)
def test_a_client_is_one_flow_however_many_ipv6_addresses_it_has(address, flow):
    assert Clients({}, None).identify(scope(peer=(address, 5, 0, 0))).flow == flow
    assert Clients({}, "x-flow").identify(scope((b"x-flow", address.encode()))).flow == flow
    assert Clients({}, None).named(address).flow == flow


def test_a_name_with_a_colon_is_no_address():
    assert Clients({}, "x-flow").identify(scope((b"x-flow", b"team:a"))).flow == "team:a"


FAIRNESS = "x-llm-d-inference-fairness-id"


def test_llm_ds_header_of_the_flow_is_read_under_its_former_name_too():
    clients = Clients({}, FAIRNESS)
    former = (b"x-gateway-inference-fairness-id", b"bob")
    assert clients.identify(scope(former)).flow == "bob"
    assert clients.identify(scope(former, (FAIRNESS.encode(), b"alice"))).flow == "alice"
    assert Clients({}, None).identify(scope(former)).flow == "10.0.0.1", "nobody is trusted"
    assert Clients({}, "x-tenant").identify(scope(former)).flow == "10.0.0.1", "this header is not"


def test_an_objective_that_a_trusted_proxy_names_has_a_band():
    clients = Clients({}, FAIRNESS, objectives={"batch": 2, "chat": 0})
    for header in (b"x-llm-d-inference-objective", b"x-gateway-inference-objective"):
        assert clients.identify(scope((header, b"batch"))) == Client("10.0.0.1", 2)
        assert clients.identify(scope((header, b"chat"))).band == 0
        assert clients.identify(scope((header, b"unknown"))).band == 0
        assert Clients({}, FAIRNESS).identify(scope((header, b"batch"))).band == 0, "nobody is trusted"
    assert clients.identify(scope()).band == 0


def test_who_has_a_key_has_its_band_whatever_a_proxy_says():
    clients = Clients({"secret": Client("alice", 1)}, FAIRNESS, objectives={"batch": 2})
    headers = ((b"authorization", b"Bearer secret"), (b"x-llm-d-inference-objective", b"batch"))
    assert clients.identify(scope(*headers)) == Client("alice", 1)


def test_with_keys_only_a_known_one_is_somebody():
    clients = Clients({"secret": Client("alice", 2), "geheim-ü": Client("bob")}, "x-tenant")
    assert clients.authenticates
    assert clients.identify(scope((b"authorization", b"Bearer secret"))) == Client("alice", 2)
    for headers in ((), ((b"authorization", b"Bearer Secret"),), ((b"x-api-key", b""),), ((b"x-tenant", b"alice"),)):
        with pytest.raises(UnknownKeyError):
            clients.identify(scope(*headers))


def test_a_client_is_found_by_its_name_with_the_most_urgent_of_its_keys():
    clients = Clients({"1": Client("alice", 2), "2": Client("alice", 1), "3": Client("alice", 3)}, None)
    assert clients.named("alice") == Client("alice", 1)
    assert clients.named("nobody") == Client("nobody", 0)


def test_a_key_may_be_known_by_its_digest_alone():
    hashed = {hashlib.sha256(b"secret").digest(): Client("alice", 2)}
    clients = Clients({}, None, hashed)
    assert clients.authenticates
    assert clients.identify(scope((b"authorization", b"Bearer secret"))) == Client("alice", 2)
    with pytest.raises(UnknownKeyError):
        clients.identify(scope((b"authorization", b"Bearer " + hashlib.sha256(b"secret").hexdigest().encode())))
    assert clients.named("alice") == Client("alice", 2)


def test_a_client_may_use_all_models_or_those_named():
    assert Client("alice").may_use("any")
    alice = Client("alice", models=frozenset({"a"}))
    assert (alice.may_use("a"), alice.may_use("b")) == (True, False)
