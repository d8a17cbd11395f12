"""What the shipped nginx file says of kvgate's limits is what kvgate's settings say."""

import re

from gateway.config.settings import Settings
from gateway.server.server import KEEP_ALIVE
from tests.deploy.stack import NGINX_CONF


def test_limits_agree_with_those_of_kvgate() -> None:
    text = NGINX_CONF.read_text()

    def seconds(directive: str) -> int:
        return int(one(rf"^ +{directive} (\d+)s;"))

    def one(pattern: str) -> str:
        found = re.findall(pattern, text, re.MULTILINE)
        assert found, pattern
        return str(found[0])

    settings = Settings()
    queue = settings.admission.queue
    longest = queue.ttl + queue.no_endpoint_ttl + settings.upstream.first_byte_timeout
    assert seconds("proxy_read_timeout") > max(longest, settings.upstream.idle_timeout)
    assert seconds("client_body_timeout") == settings.server.body_timeout
    assert seconds("keepalive_timeout") < KEEP_ALIVE
    assert int(one(r"client_max_body_size (\d+)m;")) * 2**20 == settings.server.max_body_bytes
    assert f"over {settings.server.max_body_bytes // 2**20} MiB" in text
    count, size = re.findall(r"large_client_header_buffers (\d+) (\d+)k;", text)[0]
    assert int(count) * int(size) * 2**10 == settings.server.max_header_bytes
