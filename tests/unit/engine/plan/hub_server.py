"""A model hub in a thread, with what makes hubs hard: ranges, gates, tokens, redirects to a CDN, missing files."""

import contextlib
import json
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


def safetensors(**sizes: int) -> bytes:
    """A file of zeros, with tensors of so many bytes."""
    header: dict[str, Any] = {}
    end = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(end)


@dataclass
class FakeHub:
    """What it has, by path after the revision, and what it saw."""

    files: dict[str, bytes]
    token: str = ""
    gated: bool = False
    allowed: bool = True
    ranges: bool = True
    model: str = "owner/name"
    revision: str = "main"
    status: int = 200
    url: str = ""
    served: int = 0
    seen: list[tuple[str, str | None, str | None]] = field(default_factory=list)

    def answer(  # noqa: PLR0911 - a hub has that many answers
        self, path: str, token: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body, as huggingface.co answers."""
        if self.status != 200:
            return self.status, {}, b""
        if path.startswith("/cdn/"):
            return 200, {}, self.files[path.removeprefix("/cdn/")]
        if self.token and token not in {None, f"Bearer {self.token}"}:
            return 401, {"X-Error-Message": "Invalid credentials in Authorization header"}, b""
        if path == f"/api/models/{self.model}/tree/{self.revision}":
            listed = [{"type": "file", "path": name, "size": len(data)} for name, data in self.files.items()]
            return 200, {}, json.dumps(listed).encode()
        if not path.startswith(f"/{self.model}/"):
            return 401 if token is None else 404, {"X-Error-Code": "RepoNotFound"}, b""
        revision, _, name = path.removeprefix(f"/{self.model}/resolve/").partition("/")
        if revision != self.revision:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if self.gated and (token is None or not self.allowed):
            return 401 if token is None else 403, {"X-Error-Code": "GatedRepo"}, b""
        if name not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        if name.endswith(".safetensors"):
            # Another host than the hub's: a client that sent its token there would leak it.
            return 302, {"Location": self.url.replace("127.0.0.1", "localhost") + f"/cdn/{name}"}, b""
        return 200, {}, self.files[name]


@contextlib.contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve it on a port of its own; its address is in `hub.url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            token, asked = self.headers.get("Authorization"), self.headers.get("Range")
            hub.seen.append((self.path, token, asked))
            status, headers, body = hub.answer(self.path, token)
            if status == 200 and asked and hub.ranges:
                first, last = asked.removeprefix("bytes=").split("-")
                body, status = body[int(first) : int(last) + 1], 206
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)
                hub.served += len(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
