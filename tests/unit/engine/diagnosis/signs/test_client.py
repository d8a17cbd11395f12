import pytest

from engine.diagnosis.log_cause import diagnose, read_log
from engine.diagnosis.sign import Kind
from engine.diagnosis.signs.client import address

REFUSED = "httpx.ConnectError: [Errno 111] Connection refused"
LAST = "openai.APIConnectionError: Connection error."
PROXIED = [
    "Traceback (most recent call last):",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "During handling of the above exception, another exception occurred:",
    "Traceback (most recent call last):",
    "requests.exceptions.ProxyError: HTTPConnectionPool(host='proxy', port=3128): Max retries exceeded",
]


def signs(lines: list[str]) -> list[str]:
    return [found.sign for found in read_log(lines)]


def test_an_older_error_of_the_client_does_not_hide_that_it_has_no_connection() -> None:
    assert signs(["ValueError: of yesterday", REFUSED, LAST]) == ["client refused a connection"]


def test_of_what_one_attempt_shows_the_most_telling_is_told() -> None:
    assert signs(PROXIED) == ["proxy between client and server"]
    assert signs([LAST, REFUSED]) == ["client refused a connection"]


@pytest.mark.parametrize("before", ["INFO 11-20 18:11:00 [x.py:1] hello", "(EngineCore pid=2) Traceback (most recent"])
def test_what_an_engine_says_of_connections_is_not_a_client_s(before: str) -> None:
    assert "client refused a connection" not in signs([before, REFUSED])
    assert diagnose([before, REFUSED], 1).kind is not Kind.CLIENT


@pytest.mark.parametrize("reason", ["All connection attempts failed", "[Errno -2] Name or service not known"])
@pytest.mark.parametrize(
    "line",
    [
        "08:35:35  warning: endpoint 127.0.0.1:1 is still starting: cannot connect: {}",
        '{{"reason":"cannot connect: {}","event":"still not healthy","level":"warning","timestamp":"2026Z"}}',
    ],
)
def test_kvgate_that_waits_for_its_engines_has_no_failure(line: str, reason: str) -> None:
    assert signs([line.format(reason)]) == []


def test_a_way_to_the_hub_is_not_the_way_to_a_server() -> None:
    lines = ['  File "huggingface_hub/file_download.py", line 9, in get', "httpx.ConnectTimeout: timed out"]
    assert signs(["Traceback (most recent call last):", *lines]) == ["no way to the hub"]


def test_a_client_beside_an_engine_in_one_file_is_told_by_its_name() -> None:
    (found,) = read_log(["engine | INFO 11-20 18:11:00 [x.py:1] fine", f"app | {REFUSED}", f"app | {LAST}"])
    assert found.cause.startswith("app: A client was refused")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("HTTPConnectionPool(host='gpu-1', port=8000): Max retries exceeded", "gpu-1", "8000"),
        ("[cause]: Error: connect ECONNREFUSED 127.0.0.1:8000", "127.0.0.1", "8000"),
        ("[cause]: Error: connect ECONNREFUSED ::1:8000", "::1", "8000"),
        ("Cannot connect to host localhost:8000 ssl:default [Connect", "localhost", "8000"),
        ("curl: (7) Failed to connect to localhost port 8000 after 0 ms", "localhost", "8000"),
        ('Post "http://gpu-1:8000/v1/models": dial tcp 10.0.0.1:8000: connect: connection refused', "10.0.0.1", "8000"),
        ("error sending request for url (http://localhost:8000/v1/models)", "localhost", "8000"),
        ("client = OpenAI(base_url='http://[::1]:8000/v1')", "::1", "8000"),
    ],
)
def test_the_server_s_address_is_read_as_every_client_says_it(text: str, host: str, port: str) -> None:
    assert address(["nothing", text, "http://other:1/"]) == {"host": host, "port": port}


def test_a_log_without_an_address() -> None:
    assert address([REFUSED, "at 12:30:00"]) == {}
    assert read_log([REFUSED])[0].facts == {}
    assert read_log([REFUSED, "GET http://localhost:9/v1"])[0].facts == {"host": "localhost", "port": "9"}
