import pytest

from gateway.ops.on_machine import on_this_machine


def called(
    *headers: tuple[bytes, bytes],
    peer: str | None = "127.0.0.1",
    host: bytes | None = b"127.0.0.1:8080",
    version: str = "1.1",
) -> bool:
    named = [] if host is None else [(b"host", host)]
    client = None if peer is None else (peer, 50000)
    scope = {"client": client, "scheme": "http", "http_version": version, "headers": [*named, *headers]}
    return on_this_machine(scope)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", [b"127.0.0.1:8080", b"localhost", b"LOCALHOST:80", b"[::1]:8080", b"127.0.0.2"])
def test_a_caller_on_this_machine_is_one(peer: str, host: bytes) -> None:
    assert called(peer=peer, host=host)
    assert called((b"origin", b"http://" + host), peer=peer, host=host)


@pytest.mark.parametrize("peer", ["10.0.0.1", "172.17.0.1", "192.168.1.1", "::2", "::ffff:10.0.0.1", "", None])
def test_another_machine_is_none(peer: str | None) -> None:
    assert not called(peer=peer)


@pytest.mark.parametrize(
    "host",
    [None, b"", b"gateway", b"10.0.0.1:8080", b"localhost.example", b"127.0.0.1.example", b"[::1", b"\xff", b"0"],
)
def test_a_name_that_is_not_ours_alone_is_a_proxys_or_a_pages(host: bytes | None) -> None:
    assert not called(host=host)
    assert not called((b"host", b"localhost"))


@pytest.mark.parametrize(
    "name",
    [b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"],
)
def test_what_a_proxy_forwards_is_not_from_here(name: bytes) -> None:
    assert not called((name, b""))


def test_nginx_that_was_told_nothing_but_where_to_pass_requests_is_a_proxy() -> None:
    assert not called((b"connection", b"close"), version="1.0")


@pytest.mark.parametrize(
    "origin",
    [b"null", b"", b"http://page.example", b"https://127.0.0.1:8080", b"http://127.0.0.1", b"http://localhost:8080"],
)
def test_a_page_from_elsewhere_is_not_from_here(origin: bytes) -> None:
    assert not called((b"origin", origin))
