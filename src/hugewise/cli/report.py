"""`hugewise report RUN`: its reports written again, files to deploy, or a page that follows it.

`hugewise report RUN --serve`: the page of a run that goes on, for a browser of this host.

It listens on 127.0.0.1 alone. Its address has a random word in it, so that no other account's and no other page's
request finds it; a request whose Host is another name is refused, which is how a page of elsewhere would come here
(DNS rebinding). There are two things to get, the page and its version, and nothing of a request is a path.

`hugewise export RUN --to FILE`: every attempt and metric for other programs.
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

import click

from hugewise.cli import options
from hugewise.errors import HugewiseError, UserError
from hugewise.model.results import Results
from hugewise.report.live import LivePage
from hugewise.visible import printable, say

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


@click.command(short_help="Write the reports of RUN again, or files to deploy.")
@options.RUN
@click.option("--salvage", is_flag=True, help="Leave out what is damaged, and say so in the report.")
@click.option("--expect", metavar="HASH", help="The last hash of its records, as it was noted: refuse another.")
@click.option(
    "--output",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the files to deploy of each cell's best policy into this new folder; nothing is applied.",
)
@click.option("--unit", metavar="NAME", help="With --output: the service of systemd that the files are for.")
@click.option("--serve", "served", is_flag=True, help="Show the report to a browser here while the run goes on.")
@click.option("--port", type=click.IntRange(1, 65535), help="With --serve: listen there (default: a free port).")
def report(
    run_: Path,
    *,
    salvage: bool,
    expect: str | None,
    output: Path | None,
    unit: str | None,
    served: bool,
    port: int | None,
) -> None:
    """Write the reports of the run in the folder RUN again, and show its verdicts.

    With --output the files to deploy are written instead, and with --serve the report follows a run at an address of
    this host until Ctrl-C; the run's folder stays as it is.
    """
    import hugewise  # noqa: PLC0415
    from hugewise.report.summary import summary  # noqa: PLC0415
    from hugewise.report.terminal import show  # noqa: PLC0415

    if unit is not None and output is None:
        raise UserError(f"--unit {unit}: there are no files for it", hint="name a folder for them: --output FOLDER")
    if port is not None and not served:
        raise UserError(f"--port {port}: nothing is served", hint="with --serve there is: --serve --port 8000")
    if served:
        from hugewise.analysis.analysis import Followed  # noqa: PLC0415

        if expect is not None or output is not None:
            raise UserError("--serve goes with --salvage and --port alone", hint="leave the others out")
        followed = Followed(run_, salvage=salvage)
        serve(run_, port, lambda _: followed.results())
        return
    results = hugewise.open_results(run_, salvage=salvage, expect=expect)
    if output is not None:
        from hugewise.cli.unit import of_host  # noqa: PLC0415
        from hugewise.report.deployed import write_files  # noqa: PLC0415

        written = write_files(results, output, unit, start=None if unit is None else of_host(unit))
        show(summary(results))
        say(f"\nFiles to deploy (nothing was applied; see {output / 'README.md'}):")
        for line in written:
            say(f"  {printable(line)}")
        return
    try:
        paths = hugewise.write_reports(results)
    except HugewiseError:
        show(summary(results))  # a run that belongs to somebody else can be read all the same
        raise
    show(summary(results), paths["html"])


@click.command(short_help="Attempts and verdicts as Parquet, CSV or OpenMetrics.")
@options.RUN
@click.option(
    "--to",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The file; its ending says how: .parquet, .csv, .prom (OpenMetrics).",
)
@click.option("--force", is_flag=True, help="Replace FILE where it is there already.")
def export(run_: Path, to: Path, *, force: bool) -> None:
    """Write a row for each attempt and metric of the run in the folder RUN.

    With cell, arm, block, unit and verdict; what has no value is null. Beside a FILE.parquet or FILE.csv is
    FILE.verdicts.parquet or .csv, a row for each comparison and end point. Files are written whole or not at all, and
    the run stays as it is: also one that is being measured.
    """
    from hugewise.report.export import export as write  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.visible import printable, say  # noqa: PLC0415

    done = write(run_, to, force=force)
    say(f"{done.rows} rows in {printable(to)}")
    if done.verdicts is not None:
        say(f"{done.comparisons} verdicts in {printable(done.verdicts)}")
