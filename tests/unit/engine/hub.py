"""A model hub on this machine, for tests."""

import contextlib
import http.server
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

ANSWERS: Mapping[str, tuple[int, str]] = {
    "gated": (401, "GatedRepo"),
    "missing": (401, "RepoNotFound"),
    "gone": (404, "RepoNotFound"),
}
"""What the hub says of org/NAME: status and `X-Error-Code`, as huggingface.co does."""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, code = ANSWERS[self.path.split("/")[2]]
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def hub(home: Path, **more: str) -> Iterator[dict[str, str]]:
    """The environment with which that hub is asked."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home), **more}
        finally:
            server.shutdown()
            thread.join()


def cached(home: Path, model: str, *, whole: bool) -> None:
    """Put a model into the hub cache below `home`, with or without its weights."""
    repository = home / "hub" / f"models--{model.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    if whole:
        header = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
        (snapshot / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
