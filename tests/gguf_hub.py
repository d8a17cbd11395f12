"""A hub of GGUF files on this machine."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def gguf_hub(files: Mapping[str, bytes], home: Path, asked: list[str]) -> Iterator[dict[str, str]]:
    """The environment with which every repository has these files. `asked` gets each request that comes."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            name = self.path.rpartition("/")[2]
            if "/tree/" in self.path:
                entries = [{"type": "file", "path": path, "size": len(raw)} for path, raw in files.items()]
                raw = json.dumps(entries).encode()
            else:
                raw = files[name]
            self.send_response(200)
            self.send_header("X-Repo-Commit", "c" * 40)
            self.send_header("ETag", f'"{hashlib.sha256(raw).hexdigest()}"')
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            if body:
                with suppress(ConnectionError):  # who has no room for it hangs up
                    self.wfile.write(raw)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home)}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
