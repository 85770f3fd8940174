"""The server of `workbench view`: this machine alone, a token in every address, and nothing but pages.

Whoever shares the machine may reach a port of 127.0.0.1, so an address begins with a random token, and without it the
answer is 403. A page of another site whose own name leads to 127.0.0.1 (DNS rebinding) is recognised by the name it
asked for, which is not ours.
"""

from __future__ import annotations

import hmac
import secrets
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from workbench.view.pages import Pages

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")


class ViewServer(ThreadingHTTPServer):
    """Serves pages on 127.0.0.1; ``serve_forever`` begins.

    Port 0 takes a free one; where another program listens on the port, it is an OSError.
    """

    daemon_threads = True
    block_on_close = False  # a page that still asks for news must not keep the command

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self.pages, self.token = pages, secrets.token_urlsafe(24)
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """Address to open in a browser, token included."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def knows(self, host: str) -> bool:
        """Return whether a request was made for a name of ours."""
        return host in {f"{name}:{self.server_port}" for name in _NAMES}

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that left in the middle of an answer; of all else as ``socketserver`` does."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # what it was given


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = 60.0  # a silent connection ends

    def do_GET(self) -> None:  # http.server's name
        """Answer with a page."""
        status, text = self._answer()
        kind = "text/html" if status is HTTPStatus.OK else "text/plain"
        body = b"" if status is HTTPStatus.NO_CONTENT else text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.PERMANENT_REDIRECT:
            self.send_header("Location", text)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> tuple[HTTPStatus, str]:
        if not self.server.knows(self.headers.get("Host", "")):
            return HTTPStatus.FORBIDDEN, "this server answers requests for 127.0.0.1 only"
        asked = urlsplit(self.path)
        token, slash, path = asked.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return HTTPStatus.FORBIDDEN, "the address lacks its token; open the one that `workbench view` has printed"
        if not slash or (path and not path.endswith("/")):  # the links of a page begin from its folder
            query = f"?{asked.query}" if asked.query else ""
            return HTTPStatus.PERMANENT_REDIRECT, f"/{asked.path.strip('/')}/{query}"
        return self.server.pages.answer(unquote(path), parse_qs(asked.query))

    def log_message(self, format: str, *args: object) -> None:  # http.server's name
        """Log nothing: a page polls every other second."""


_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the token stays here
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
