import pytest

from engine.diagnosis.machine import Listener
from engine.diagnosis.way import Way, ports, proxy_between, remedy, seen

KVGATE = Listener(8080, 7, "kvgate", is_kvgate=True)
VLLM = Listener(8000, 8, "python")


@pytest.mark.parametrize(
    ("host", "environ", "proxy"),
    [
        ("localhost", {}, ""),
        ("localhost", {"HTTP_PROXY": "http://user:secret@proxy:3128"}, "proxy:3128"),
        ("localhost", {"http_proxy": "proxy:3128", "HTTP_PROXY": "http://other:1"}, "proxy:3128"),
        ("localhost", {"ALL_PROXY": "socks5://proxy:1080"}, "proxy:1080"),
        ("localhost", {"HTTPS_PROXY": "http://proxy:3128"}, ""),
        ("127.0.0.1", {"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "localhost,127.0.0.1"}, ""),
        ("gpu-1.lan", {"HTTP_PROXY": "http://proxy:3128", "no_proxy": ".lan"}, ""),
        ("gpu-1.lan", {"HTTP_PROXY": "http://proxy:3128", "no_proxy": "localhost"}, "proxy:3128"),
    ],
)
def test_the_proxy_that_clients_of_an_environment_take(host: str, environ: dict[str, str], proxy: str) -> None:
    assert proxy_between(host, environ) == proxy


def test_a_proxy_for_https_is_not_one_for_http() -> None:
    assert proxy_between("gpu", {"HTTPS_PROXY": "http://proxy:1"}, scheme="https") == "proxy:1"


def test_only_ports_of_this_machine_are_looked_at() -> None:
    assert ports("localhost", 8000) == (8000, 8080)
    assert ports("127.0.0.2", 9) == (9, 8080, 8000)
    assert ports("", None) == (8080, 8000)
    assert ports("gpu-1", 8000) == ()


@pytest.mark.parametrize(
    ("way", "looked_at", "do"),
    [
        (Way("localhost", 8000, (8000, 8080), (KVGATE,), ((8000, "process 9 (python)"),)),
         "port 8000 is not open yet: process 9 (python) is starting; port 8080 is open here: kvgate",
         "Wait: the engine on port 8000 is still loading"),
        (Way("localhost", 8001, (8001, 8080, 8000), (KVGATE,)),
         "nobody listens on port 8001 here; port 8080 is open here: kvgate; nobody listens on port 8000 here",
         "Take port 8080, where kvgate listens: nobody listens on 8001."),
        (Way("localhost", 8080, (8080, 8000), (VLLM,)), "port 8000 is open here: python",
         "Take port 8000, where a server listens"),
        (Way("localhost", 8000, (8000, 8080)), "nobody listens on port 8000 here", "Start the server"),
        (Way("", None, (8080, 8000), (), ((8000, "process 9 (python)"),)), "is starting",
         "Wait: the engine on port 8000"),
        (Way("gpu-1", 8000, proxy="proxy:3128"), "the environment's proxy proxy:3128 stands between",
         "Name gpu-1 in NO_PROXY and no_proxy"),
    ],
)  # fmt: skip
def test_what_was_seen_says_what_to_do(way: Way, looked_at: str, do: str) -> None:
    assert looked_at in seen(way)
    assert do in remedy(way)


@pytest.mark.parametrize(
    "way", [Way("localhost", 8000, (8000,), (VLLM,)), Way("gpu-1", 8000), Way("", None, (8080, 8000))]
)
def test_what_explains_nothing_gives_no_remedy(way: Way) -> None:
    assert remedy(way) == ""


def test_a_port_of_another_user_s_process() -> None:
    assert seen(Way("", None, (8000,), (Listener(8000),))) == "port 8000 is open here: a process of another user"
