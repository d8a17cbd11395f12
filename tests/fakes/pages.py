"""A server that answers a few paths with what a test gives it."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextlib.contextmanager
def server(pages: Mapping[str, str], key: str | None = None) -> Iterator[str]:
    """Its base URL. With a key, whoever does not bring it is answered with 401."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if key is not None and self.headers["authorization"] != f"Bearer {key}":
                self.send_response(401)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            page = pages.get(self.path)
            self.send_response(200 if page is not None else 404)
            body = (page or "not here").encode()
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_port}"
        finally:
            httpd.shutdown()
            thread.join()
