"""A metadata service of a cloud on this machine, which answers what a test tells it to."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_S = 150.0


class Cloud(ThreadingHTTPServer):
    """A metadata service: `answers` gives status and body by method and path."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self._thread.join(PATIENCE_S)
        self.server_close()

    def heads(self, what: str) -> list[dict[str, str]]:
        return [headers for asked, headers in list(self.seen) if asked == what]


class Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        cloud: Any = self.server
        what = f"{self.command} {self.path}"
        cloud.seen.append((what, {k.lower(): v for k, v in self.headers.items()}))
        status, body = cloud.answers.get(what, (404, ""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_PUT = _answer  # as http.server calls them

    def log_message(self, *_: Any) -> None:
        """Nothing: the test looks at `seen`."""
