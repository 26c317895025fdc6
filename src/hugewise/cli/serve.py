"""`hugewise report RUN --serve`: the page of a run that goes on, for a browser of this host.

It listens on 127.0.0.1 alone. Its address has a random word in it, so that no other account's and no other page's
request finds it; a request whose Host is another name is refused, which is how a page of elsewhere would come here
(DNS rebinding). There are two things to get, the page and its version, and nothing of a request is a path.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hugewise.errors import UserError
from hugewise.model.results import Results
from hugewise.report.live import LivePage
from hugewise.visible import say

_LOOPBACK = "127.0.0.1"


_PATIENCE_S = 10.0  # for a request that does not come to its end


_ALWAYS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",  # beside the page's own, which cannot say this
}


class _Server(ThreadingHTTPServer):
    """Serves `page` below /`word`/."""

    daemon_threads = True

    def __init__(self, port: int, page: LivePage) -> None:
        super().__init__((_LOOPBACK, port), _Handler)
        self.page = page
        self.word = secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self.server_port}/{self.word}/"

    def server_bind(self) -> None:
        """As of the base class, which asks the network for the name of the host."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = _LOOPBACK, self.socket.getsockname()[1]

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # a browser that goes away is no error
            say(f"hugewise: the page could not be shown: {error!r}", err=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE_S
    server_version, sys_version = "hugewise", ""
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain; charset=utf-8"

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command != "GET":
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered\n", {"Allow": "GET"})
            return False
        port = self.server.server_port
        if self.headers.get_all("Host") not in ([f"{_LOOPBACK}:{port}"], [f"localhost:{port}"]):
            self._answer(HTTPStatus.FORBIDDEN, "this is not the name of this place\n")
            return False
        return True

    def do_GET(self) -> None:
        place, word = self.path.encode("utf-8", "replace"), self.server.word
        if hmac.compare_digest(place, f"/{word}/".encode()):
            self._answer(HTTPStatus.OK, self.server.page.current().html, {"Content-Type": "text/html; charset=utf-8"})
        elif hmac.compare_digest(place, f"/{word}/version".encode()):
            self._answer(HTTPStatus.OK, self.server.page.current().version)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "there is nothing here\n")

    def _answer(self, status: HTTPStatus, text: str, more: dict[str, str] | None = None) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), **_ALWAYS}
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address is a secret."""


def serve(run: Path, port: int | None, read: Callable[[Path], Results]) -> None:
    """Show the page of `run` until Ctrl-C. Raises what `read` raises at first, and UserError for a port in use."""
    page = LivePage(run, read)
    try:
        server = _Server(port or 0, page)
    except OSError as error:
        reason = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
        hint = "name another one, or leave it out: a free one is taken"
        raise UserError(f"--port {port}: {reason}", hint=hint) from None
    with server:
        say(f"The report follows the run at {server.address} until Ctrl-C (open all of it: its last part is a key).")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("The report is not shown any more.")
