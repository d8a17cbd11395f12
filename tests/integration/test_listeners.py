"""The ways in and out that are no plain TCP: TLS for clients, unix sockets for clients and engines."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.deploy.stack import find_nginx, nginx
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.kvgate import Kvgate, serving
from tests.integration.relaying import APIS, CHAT, body, fake_processes, gateway, raw
from tests.ports import free_port
from tests.unit.engine.processes import eventually
from tests.until import until

CERTIFICATES = Path(__file__).parents[1] / "unit" / "config" / "certificates"
TRUSTING = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
TRUSTING_OTHER = ssl.create_default_context(cafile=CERTIFICATES / "other.pem")
WORKERS = pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    """A fake engine on a unix socket."""
    with fake_processes(1, f"--uds={tmp_path}/vllm.sock", "--step-seconds=0.05", "--output-tokens=1900") as ((url, _),):
        yield url


def reload(where: str) -> subprocess.CompletedProcess[str]:
    option = "--host" if where.startswith("unix:") else "--port"
    argv = [sys.executable, "-m", "gateway", "reload", option, where]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def at_socket(path: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=30)


def ready(path: Path) -> Callable[[], bool]:
    """Whether a kvgate there has an engine."""

    def asked() -> bool:
        with socket.socket(socket.AF_UNIX) as connection:  # httpx leaves one open that cannot connect
            connection.settimeout(5)
            try:
                connection.connect(str(path))
                connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
                return connection.recv(100).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

    return asked


# Engines behind a unix socket.


async def test_an_engine_behind_a_unix_socket_is_counted_streamed_watched_and_drained(tmp_path: Path) -> None:
    """With its path as its name, in every API."""
    path = tmp_path / "vllm.sock"
    async with FakeVllm(FakeSettings(step_seconds=0.002), uds=str(path)) as fake, gateway(fake) as kvgate:
        for api in APIS:
            for stream in (False, True):
                answer = await kvgate.post(api, stream=stream)
                assert answer.status_code == 200
                assert answer.headers["x-kvgate-endpoint"] == f"unix:{path}"
                assert answer.headers["x-kvgate-counted"] == "engine"
        assert (await kvgate.client.post("/tokenize", json={"model": "fake", "prompt": "a b"})).status_code == 200
        assert f'endpoint="unix:{path}"' in (await kvgate.client.get("/metrics")).text
        await kvgate.until_idle()

        async def state() -> str:
            (endpoint,) = (await kvgate.state())["endpoints"]
            return str(endpoint["state"])

        async def is_up() -> bool:
            return await state() == "up"

        drained = await kvgate.client.post(f"/kvgate/endpoints/unix:{path}/drain")
        assert drained.json()["state"] == "draining"
        await kvgate.client.post(f"/kvgate/endpoints/unix%3A{str(path).replace('/', '%2F')}/undrain")
        await until(is_up)

        await fake.die()
        path.unlink()  # as a vLLM that ended

        async def is_down() -> bool:
            return await state() == "down"

        await until(is_down)
        (endpoint,) = (await kvgate.state())["endpoints"]
        assert "No such file" in endpoint["reason"]
        await fake.listen()
        await until(is_up)
        assert (await kvgate.post()).status_code == 200


async def test_a_client_that_leaves_frees_its_place_behind_a_unix_socket(tmp_path: Path) -> None:
    fake = FakeVllm(FakeSettings(step_seconds=0.01), uds=str(tmp_path / "vllm.sock"))
    async with fake, gateway(fake) as kvgate:
        asking = asyncio.create_task(kvgate.post(tokens=1000, stream=True))
        await until(lambda: fake.scheduler.running)
        asking.cancel()
        await until(lambda: not fake.scheduler.running)
        await kvgate.until_idle()


# TLS for clients.


@contextlib.contextmanager
def over_tls(tmp_path: Path, engine: str, *args: str) -> Iterator[Kvgate]:
    """kvgate with TLS on a free port, ready, its certificate and key in `tmp_path`."""
    put("localhost", tmp_path)
    files = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    port = free_port()
    with serving(tmp_path / "log", port, "--endpoint", engine, "--tokenizer", "/nonexistent", *files, *args) as kvgate:
        kvgate.url = f"https://localhost:{port}"
        kvgate.wait_healthy(1, 60)
        yield kvgate


def put(name: str, folder: Path) -> None:
    shutil.copy(CERTIFICATES / f"{name}.pem", folder / "cert.pem")
    shutil.copy(CERTIFICATES / f"{name}.key", folder / "key.pem")


@WORKERS
def test_a_certificate_changes_while_the_openai_sdk_streams(tmp_path: Path, engine: str, workers: str) -> None:
    import openai

    with over_tls(tmp_path, engine, "--workers", workers) as kvgate, contextlib.ExitStack() as stack:
        port = kvgate.url.rpartition(":")[2]

        def sdk(trusting: ssl.SSLContext) -> openai.OpenAI:
            limits = httpx.Limits(keepalive_expiry=60)
            client = stack.enter_context(httpx.Client(verify=trusting, trust_env=False, limits=limits))
            return openai.OpenAI(base_url=f"{kvgate.url}/v1", api_key="none", http_client=client, max_retries=0)

        held, streams, came, enough = sdk(TRUSTING), sdk(TRUSTING), [], threading.Event()
        assert held.models.list().data[0].id == "fake"
        # While one of them starts, a reload replaces all gateway processes instead, and their connections end.
        processes = {"1": 0, "2": 3}[workers]
        assert eventually(lambda: kvgate.log.read_text().count(": ready after") == processes)

        def stream() -> None:
            answer = streams.chat.completions.create(
                model="fake", max_tokens=2000, messages=[{"role": "user", "content": "one two"}], stream=True
            )
            for chunk in answer:
                came.append(chunk)
                if enough.is_set():
                    answer.close()
                    return

        def more() -> bool:
            before = len(came)
            return eventually(lambda: len(came) > before)

        streaming = threading.Thread(target=stream)
        streaming.start()
        assert more()
        shutil.copy(CERTIFICATES / "expired.pem", tmp_path / "cert.pem")
        told = reload(port)
        assert told.returncode == 2
        assert "expired at 2021-01-01 00:00 UTC" in told.stdout + told.stderr
        assert "Nothing was changed" in told.stdout + told.stderr
        assert sdk(TRUSTING).models.list().data[0].id == "fake", "the old certificate goes on"
        put("other", tmp_path)
        assert reload(port).returncode == 0
        assert sdk(TRUSTING_OTHER).models.list().data[0].id == "fake"
        with pytest.raises(openai.APIConnectionError):
            sdk(TRUSTING).models.list()
        assert held.models.list().data[0].id == "fake", "on the connection that it has"
        assert more(), "the stream goes on"
        enough.set()
        streaming.join(30)


@pytest.mark.slow
def test_other_gateway_processes_take_over_the_socket_with_its_tls(tmp_path: Path, engine: str) -> None:
    """A setting that needs another process is changed while clients hold connections and come."""
    config = tmp_path / "kvgate.yaml"
    config.write_text("log: {level: info}\n")
    with over_tls(tmp_path, engine, "--workers", "2", "--config", str(config)) as kvgate:
        port = int(kvgate.url.rpartition(":")[2])
        plain = socket.create_connection(("localhost", port), 60)
        idle = TRUSTING.wrap_socket(plain, server_hostname="localhost")
        with idle, ThreadPoolExecutor() as beside:
            idle.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200")
            config.write_text("log: {level: debug}\n")
            reloading = beside.submit(reload, str(port))
            # Whoever looks at an idle connection ends it with the gateway; TLS waits for who does not.
            last_word = beside.submit(read_and_close, idle)
            with httpx.Client(verify=TRUSTING, base_url=kvgate.url, trust_env=False, timeout=30) as held:
                asking = True
                while asking:
                    asking = not reloading.done()
                    assert held.post(CHAT, json=body()).status_code == 200
            told = reloading.result()
            assert (told.returncode, "takes over" in told.stderr + told.stdout) == (0, True)
            assert b"HTTP/1.1 503 " in last_word.result()
        with httpx.Client(verify=TRUSTING, base_url=kvgate.url, trust_env=False, timeout=30) as new:
            assert new.post(CHAT, json=body()).status_code == 200


def read_and_close(connection: ssl.SSLSocket) -> bytes:
    """All that comes until the other side has said its last word."""
    with connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


async def test_the_admin_port_has_the_certificate_too(tmp_path: Path) -> None:
    put("localhost", tmp_path)
    admin = free_port()
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    async with FakeVllm() as fake:
        server = {"host": "127.0.0.1", "port": 0, "admin_port": admin, **files}
        async with gateway(fake, ready=False, server=server) as kvgate:
            async with httpx.AsyncClient(verify=TRUSTING, trust_env=False) as client:
                assert (await client.get(f"https://localhost:{admin}/metrics")).status_code == 200
                assert (await client.post(f"https://localhost:{admin}/kvgate/endpoints/x/drain")).status_code == 404
                assert (await client.get(f"https://localhost:{kvgate.port}/livez")).status_code == 200
            reader, writer = await raw(admin, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP/1.1" not in await reader.read()
            writer.close()


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("expired.pem", "localhost.key", "expired at 2021-01-01 00:00 UTC: renew it"),
        ("localhost.pem", "other.key", "other.key is not the key of the certificate in"),
        ("none.pem", "localhost.key", "none.pem cannot be read: No such file or directory"),
    ],
)
def test_a_certificate_that_cannot_serve_is_said_at_the_start(cert: str, key: str, said: str, tmp_path: Path) -> None:
    files = ["--tls-cert", str(CERTIFICATES / cert), "--tls-key", str(CERTIFICATES / key)]
    argv = [sys.executable, "-m", "gateway", "serve", "--endpoint", "http://127.0.0.1:1", *files]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr
    config = tmp_path / "kvgate.yaml"
    server = f"server: {{tls_cert: {CERTIFICATES / cert}, tls_key: {CERTIFICATES / key}}}"
    config.write_text(f"{server}\nmodels: [{{endpoints: [{{url: 'http://h:1'}}]}}]\n")
    argv = [sys.executable, "-m", "gateway", "check-config", str(config)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, said in ended.stderr) == (2, True)


# A unix socket for clients.


@WORKERS
async def test_clients_come_over_a_unix_socket_themselves_and_through_nginx(
    tmp_path: Path, engine: str, workers: str
) -> None:
    path, admin = tmp_path / "kvgate.sock", free_port()
    config = tmp_path / "kvgate.yaml"
    config.write_text('server: {socket_mode: "666", trusted_flow_header: x-kvgate-flow}\n')
    args = ["--endpoint", engine, "--tokenizer", "/nonexistent", "--config", str(config), "--workers", workers]
    args += ["--host", f"unix:{path}", "--admin-port", str(admin)]
    with serving(tmp_path / "log", 1, *args) as kvgate, at_socket(path) as client:
        kvgate.url = f"http://127.0.0.1:{admin}"
        await asyncio.to_thread(kvgate.wait_healthy, 1, 60)
        assert await asyncio.to_thread(eventually, ready(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o666

        argv = ["curl", "-sS", "--max-time", "20", "--unix-socket", str(path), f"http://localhost{CHAT}"]
        argv += ["-H", "content-type: application/json", "-d", '{"model":"fake","max_tokens":3,"stream":true,']
        argv[-1] += '"messages":[{"role":"user","content":"one"}]}'
        asked = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
        assert (await asked.communicate())[0].endswith(b"data: [DONE]\n\n")

        def towards(conf: str) -> str:
            first, second = "server 127.0.0.1:1 max_fails=0;", "server 127.0.0.1:2 max_fails=0;"
            assert first in conf
            return conf.replace(first, f"server unix:{path} max_fails=0;").replace(second, "")

        async with nginx(find_nginx(), tmp_path, [1, 2], towards) as url, httpx.AsyncClient(timeout=30) as through:
            for _ in range(3):
                answer = await through.post(f"{url}{CHAT}", json=body(stream=True))
                assert answer.status_code == 200
                assert answer.text.rstrip().endswith("[DONE]")
        log = kvgate.log.read_text()
        assert '"flow":"local"' in log, "curl: one flow"
        assert '"flow":"127.0.0.1"' in log, "nginx names its client"

        told = await asyncio.to_thread(reload, f"unix:{path}")
        assert told.returncode == 0
        assert client.post(CHAT, json=body()).status_code == 200
    assert kvgate.process.returncode == 0
    assert not path.exists()


@WORKERS
def test_a_socket_that_a_killed_kvgate_left_is_taken_again(tmp_path: Path, engine: str, workers: str) -> None:
    path = tmp_path / "kvgate.sock"
    args = ["--endpoint", engine, "--tokenizer", "/nonexistent", "--host", f"unix:{path}", "--workers", workers]
    with at_socket(path) as client:
        with serving(tmp_path / "first", 1, *args) as kvgate:
            assert eventually(ready(path))
            with serving(tmp_path / "second", 1, *args) as other:
                assert other.process.wait(60) == 2
            assert "Address already in use" in other.log.read_text()
            assert client.post(CHAT, json=body()).status_code == 200
            os.kill(kvgate.process.pid, signal.SIGKILL)
        assert path.exists()
        with serving(tmp_path / "third", 1, *args):
            assert eventually(ready(path))
            assert client.post(CHAT, json=body()).status_code == 200


async def test_nobody_changes_anything_over_a_unix_socket_without_the_admin_key(tmp_path: Path) -> None:
    """Who speaks there is most likely a proxy, which names localhost for whomever it asks."""
    path = tmp_path / "kvgate.sock"
    drain = "/kvgate/endpoints/127.0.0.1:1/drain"
    async with FakeVllm() as fake:
        server = {"host": f"unix:{path}"}
        for auth, headers, status in (({}, {}, 403), ({"admin_key": "a"}, {"authorization": "Bearer a"}, 404)):
            async with gateway(fake, ready=False, server=server, auth=auth):
                transport = httpx.AsyncHTTPTransport(uds=str(path))
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                    assert (await client.post(drain, headers=headers)).status_code == status
