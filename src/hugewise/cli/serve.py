"""`hugewise report --serve`: the page of a run that goes on, to a browser of this host.

The page is made anew when it is asked for and the log has grown, after a pause of ten times what the last one took, as
the machine may be measuring. Figures whose data are unchanged are not drawn again.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hugewise.errors import HugewiseError, RunError, UserError
from hugewise.model.results import Results
from hugewise.report import images
from hugewise.report.document import Document, Figure, Line, Note, figures, narrow_figures
from hugewise.report.html import html
from hugewise.report.write import report
from hugewise.store.log import going_on
from hugewise.store.records import Stamp
from hugewise.visible import say

_LEAST_S = 3.0
_RATIO = 10
_FOLLOWS = (
    "This page follows the run, and loads itself anew when something was added, or when the run has ended; what it says"
    " holds for what there is."
)


@dataclass(frozen=True)
class Made:
    """A page, and which one it is: another version is another page."""

    version: str
    html: str


class LivePage:
    """The page of the run in `folder`, whose results `read` finds. Threads may share it.

    Making the first one raises what `read` raises; where that comes later, the last page stays and says so.
    `clock`: seconds.
    """

    def __init__(
        self, folder: Path, read: Callable[[Path], Results], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._read, self._clock = folder, read, clock
        self._lock = threading.Lock()
        self._drawings: dict[str, tuple[Figure, str]] = {}
        self._stamp, self._document, self._drawn = self._looked()
        self._trouble: str | None = None
        self._made = self._page()
        self._next = clock() + _LEAST_S

    def current(self) -> Made:
        """Return the page as it is now, or was a moment ago."""
        with self._lock:
            began = self._clock()
            if began >= self._next and (self._trouble is not None or self._size() != self._stamp):
                self._anew()
                ended = self._clock()
                self._next = ended + max(_LEAST_S, _RATIO * (ended - began))
            return self._made

    def _anew(self) -> None:
        try:
            self._stamp, self._document, self._drawn = self._looked()
            self._trouble = None
        except HugewiseError as error:
            self._trouble = error.message
        self._made = self._page()

    def _looked(self) -> tuple[str, Document, dict[str, str]]:
        stamp = self._size()  # before reading: what is added meanwhile is seen the next time
        document = report(self._read(self._folder))
        self._drawings = {
            each.key: (each, self._drawing(each)) for each in (*figures(document), *narrow_figures(document))
        }
        drawn = {key: svg for key, (_, svg) in self._drawings.items()}
        return stamp, replace(document, lead=(*document.lead, Line(_FOLLOWS, quiet=True))), drawn

    def _drawing(self, figure: Figure) -> str:
        """Return the kept drawing where it shows the same figure, else draw it."""
        kept, svg = self._drawings.get(figure.key, (None, ""))
        if kept is not None and (kept.spec, kept.text) == (figure.spec, figure.text):
            return svg
        return images.inline(images.render(dict(figure.spec)), name=f"figure-{figure.key}", title=figure.text)

    def _page(self) -> Made:
        document, version = self._document, self._stamp
        if self._trouble is not None:
            told = Note(f"The page shows an earlier state: the run cannot be read now. {self._trouble}")
            document, version = replace(document, lead=(*document.lead, told)), f"{version}-unread"
        return Made(version, html(document, self._drawn, live=version))

    def _size(self) -> str:
        """Return a value that changes when the log changes, or when no process writes the log any more."""
        try:
            stamp = Stamp.of((self._folder / "run.jsonl").stat())
        except (FileNotFoundError, NotADirectoryError):
            return "gone"
        except OSError as error:
            raise RunError(f"{self._folder}: {error.strerror}", hint="see: ls results/*") from None
        goes_on = "-on" if going_on(self._folder) else ""
        return "-".join(f"{each:x}" for each in stamp) + goes_on


_LOOPBACK = "127.0.0.1"


_MOST_UNKNOWN = 32
_PATIENCE_S = 10.0  # limit on an incomplete request


_ALWAYS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page's own policy cannot contain this
}


class _Server(ThreadingHTTPServer):
    """Serves `page` below /`word`/."""

    daemon_threads = True
    request_queue_size = 128  # who comes while others are turned away

    def __init__(self, port: int, page: LivePage) -> None:
        super().__init__((_LOOPBACK, port), _Handler)
        self.page = page
        self._unknown: dict[socket.socket, None] = {}  # connections that have not given the key, the oldest first
        self._guard = threading.Lock()
        self.word = secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self.server_port}/{self.word}/"

    def server_bind(self) -> None:
        """Bind as the base class does, without its look-up of the host's name on the network."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = _LOOPBACK, self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Process the request; beyond a limit the oldest connection without the key is closed for it."""
        with self._guard:
            self._unknown[request] = None
            oldest = next(iter(self._unknown)) if len(self._unknown) > _MOST_UNKNOWN else None
        if oldest is not None:
            self.known(oldest)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.known(request)
        super().shutdown_request(request)

    def known(self, request: socket.socket) -> None:
        """Remove a connection that has given the key, or is gone, from the unknown ones."""
        with self._guard:
            self._unknown.pop(request, None)

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
        if place.startswith(b"/") and hmac.compare_digest(place[1:].partition(b"/")[0], word.encode()):
            self.server.known(self.connection)
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
