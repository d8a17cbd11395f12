"""An engine that answers what a test tells it to: well enough to be taken in, and then not at all well."""

import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Script = Callable[[], Iterable[bytes]]
"""The bytes of an answer, head and all, piece by piece; the connection closes after them."""

MODELS = b'{"object":"list","data":[{"id":"hostile","root":"/nonexistent","max_model_len":2048}]}'
METRICS = (
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="4096"} 1\n'
)


def answer(body: bytes, *, status: str = "200 OK", kind: str = "application/json", length: int | None = None) -> bytes:
    """A whole answer, or with `length` the beginning of one."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n\r\n".encode() + body


def stream_head(kind: str = "text/event-stream") -> bytes:
    """The head of an answer that ends with its connection."""
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n".encode()


class Hostile:
    """The engine. `scripts` are what it answers by path; what has none is answered as a healthy engine would."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.scripts: dict[str, Script] = {}
        plain = {
            "/health": b"",
            "/version": b'{"version":"0.32.0"}',
            "/v1/models": MODELS,
            "/metrics": METRICS,
            "/tokenize": b'{"count":3}',
        }
        self._plain: dict[str, Script] = {path: _whole(body) for path, body in plain.items()}
        self._ended = threading.Semaphore(0)
        engine = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                path = self.rfile.readline().split(b" ")[1].decode()
                length = 0
                while (line := self.rfile.readline().strip()) != b"":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                while length:
                    length -= len(self.rfile.read(min(length, 1 << 20)))
                try:
                    for piece in engine.script(path)():
                        self.wfile.write(piece)
                except OSError:
                    pass  # kvgate had enough of it
                if path in engine.scripts:
                    engine._ended.release()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            self.url = f"https://localhost:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def use(self, path: str | None, script: Script | None) -> None:
        """Answer so on that path, and as ever on all others."""
        self.scripts = {} if path is None or script is None else {path: script}
        self._ended = threading.Semaphore(0)

    def script(self, path: str) -> Script:
        """What it answers there."""
        return self.scripts.get(path) or self._plain.get(path) or _whole(b"", status="404 Not Found")

    def wait_asked(self) -> None:
        """Until an answer of `scripts` has ended, or was cut short."""
        assert self._ended.acquire(timeout=60), "kvgate did not ask"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


def _whole(body: bytes, **given: Any) -> Script:
    def pieces() -> Iterator[bytes]:
        yield answer(body, **given)

    return pieces
