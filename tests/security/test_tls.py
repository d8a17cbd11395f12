"""What a large request costs on its way to an engine with TLS."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.hostile import Hostile, answer
from tests.security.target import MOST_STRETCH, Target, launch
from tests.security.test_attacks import CHAT, MB, filled

pytestmark = pytest.mark.slow

CERTIFICATES = Path(__file__).parents[1] / "unit" / "config" / "certificates"
EMBEDDINGS = "/v1/embeddings"


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Target]:
    """A kvgate in front of an engine with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key")
    engine = Hostile(context)
    endpoint = {"url": engine.url, "tls": {"ca_file": str(CERTIFICATES / "ca.pem")}}
    settings = {
        "server": {"host": "127.0.0.1", "port": 0, "state_dir": "none"},
        "models": [{"tokenizer": "/nonexistent", "endpoints": [endpoint]}],
    }
    process = launch(settings, tmp_path / "log")
    target = Target(process, engine)
    try:
        target.wait_ready({"engine"})
        large = filled(b'{"model":"hostile","input":"', b"a", b'"}', 2 * MB)
        target.post(EMBEDDINGS, large)  # starts the process for such bodies
        target.wait_settled()
        yield target
    finally:
        process.terminate()
        process.communicate()
        engine.close()


@pytest.mark.parametrize(("path", "asks"), [(CHAT, b'"messages":[],"x":"'), (EMBEDDINGS, b'"input":"')])
def test_a_large_request_to_an_engine_with_tls_is_encrypted_piece_by_piece(
    secure: Target, path: str, asks: bytes
) -> None:
    body = filled(b'{"model":"hostile","max_tokens":1,' + asks, b"a", b'"}')
    secure.hostile.use(path, lambda: [answer(json.dumps({"choices": []}).encode())])
    got, stretch, grown = secure.cost(lambda secure: secure.post(path, body))
    assert got.status == 200
    assert stretch < MOST_STRETCH
    assert grown < 192 * MB
