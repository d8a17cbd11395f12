import pytest

from gateway.config.redis_url import RedisAddress, redis_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h", RedisAddress((("h", 6379),))),
        ("valkey://h:1/2", RedisAddress((("h", 1),), database=2)),
        ("redis://u:p/a@s:s@h", RedisAddress((("h", 6379),), username="u", password="p/a@s:s")),
        (" redis://h/ ", RedisAddress((("h", 6379),))),
        ("redis://h?db=3", RedisAddress((("h", 6379),), database=3)),
        ("redis://:p%40ss@[::1]:7", RedisAddress((("::1", 7),), password="p@ss")),
        ("rediss://u:p@h", RedisAddress((("h", 6379),), username="u", password="p", tls=True)),
        ("rediss://h?ssl_ca_certs=/ca", RedisAddress((("h", 6379),), tls=True, options={"ssl_ca_certs": "/ca"})),
        ("unix:///run/r.sock?db=1", RedisAddress((), "/run/r.sock", database=1)),
        ("redis+sentinel://a,b:7/s", RedisAddress((("a", 26379), ("b", 7)), service="s")),
        (
            "valkeys+sentinel://u:p@a/s/4?sentinel_password=q",
            RedisAddress(
                (("a", 26379),), "", "s", 4, "u", "p", tls=True, options={"sentinel_password": "q"}
            ),
        ),
    ],
)  # fmt: skip
def test_a_url_says_where_redis_is_and_how_to_get_in(url, address):
    assert redis_address(url) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hidden@h:6379", "with its scheme"),
        ("http://u:hidden@h", "with its scheme"),
        ("redis://u:hid?hidden@h", "in a password, `.` is %3F"),
        ("redis://u:hidden@", "HOST or HOST:PORT"),
        ("redis://u:hidden@h:99999", "HOST or HOST:PORT"),
        ("redis://u:hidden@h/one", "number of a database"),
        ("redis://u:hidden@h/1/2", "nothing after the number"),
        ("redis://u:hidden@h,i", "several are for Sentinel"),
        ("redis+sentinel://u:hidden@h", "the name of the service"),
        ("redis://h?password=hidden", "no options but db, sentinel_password"),
        ("unix://hidden", "the path of a socket"),
    ],
)
def test_what_is_wrong_is_said_without_what_may_be_secret(url, says):
    with pytest.raises(ValueError, match=says) as refused:
        redis_address(url)
    assert "hidden" not in str(refused.value)


def test_what_is_shown_is_where_it_is():
    for url, shown in (
        ("redis://u:hidden@h:1", "h:1"),
        ("unix:///run/r.sock", "/run/r.sock"),
        ("redis+sentinel://u:hidden@a,[::1]:7/s?sentinel_password=hidden", "s by Sentinel at a:26379,[::1]:7"),
    ):
        address = redis_address(url)
        assert str(address) == shown
        assert "hidden" not in repr(address)
