"""`hugewise report --serve`: the page follows the run."""

import contextlib
import http.client
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from hugewise import open_results
from hugewise.cli.serve import LivePage
from hugewise.errors import RunError
from hugewise.model.results import Results
from hugewise.report import images
from hugewise.store.folder import RunFolder
from hugewise.store.records import Noted
from tests.browser import browser
from tests.build.few_blocks import demo
from tests.build.growing import growing
from tests.cli.conftest import Call
from tests.wait import until

PATIENCE_S = 120.0
# Its patience with an incomplete request never ends: a test sees who is turned away before that.
HUGEWISE = "from hugewise.cli import main, serve; serve._Handler.timeout = 3600.0; main.main()"


class Served(NamedTuple):
    """A run's folder that is served: where, by which process, and how it grows."""

    run: Path
    process: subprocess.Popen[str]
    port: int
    path: str
    grow: Callable[[], None]

    def ask(self, path: str | None = None, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        """Status, text and headers (in small letters) of what it answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, self.path if path is None else path, headers=headers)
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read().decode(), told
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    run = tmp_path_factory.mktemp("served") / "run"
    grow = growing(run)
    command = [sys.executable, "-c", HUGEWISE, "report", str(run), "--serve"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], PATIENCE_S)[0]
        said = process.stdout.readline()
        found = re.search(r"at (http://127\.0\.0\.1:\S+/) until Ctrl-C", said)
        assert found is not None, said
        address = urlsplit(found[1])
        assert address.port is not None
        yield Served(run, process, address.port, address.path, grow)
    finally:
        process.kill()
        process.communicate()


def test_the_page_is_served_with_one_script_and_asks_this_place_alone(served: Served) -> None:
    status, page, headers = served.ask()
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert page.count("<script") == 1
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert re.search(r"default-src &#39;none&#39;; script-src &#39;sha256-[^ ;]+&#39;; ", policy[1])
    assert "; connect-src &#39;self&#39;; " in policy[1]
    assert len(served.path) > 32  # the random word


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/version", "/" + "A" * 32 + "/", "/é/"),
        *("{}run.jsonl", "{}../run/run.jsonl", "{}%2e%2e/", "{}?", "{}version/"),
    ],
)
def test_nothing_else_is_there(served: Served, path: str) -> None:
    path = path.format(served.path)
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as link:
        link.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: link.recv(65536), b""))
    assert answer.split()[1] == b"404"
    assert b"hugewise/" not in answer
    assert len(answer) < 1000


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1", "127.0.0.1:1", "[::1]:{}", ""])
def test_another_name_is_refused_even_with_the_word(served: Served, host: str) -> None:
    status, text, _ = served.ask(Host=host.format(served.port))
    assert (status, text) == (403, "this is not the name of this place\n")


def test_two_names_or_none_are_refused(served: Served) -> None:
    for headers in ("", f"Host: 127.0.0.1:{served.port}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as link:
            link.sendall(f"GET {served.path} HTTP/1.0\r\n{headers}\r\n".encode())
            assert b"".join(iter(lambda: link.recv(65536), b"")).split()[1] == b"403"


def test_this_host_may_be_called_localhost(served: Served) -> None:
    assert served.ask(Host=f"localhost:{served.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PROPFIND"])
def test_it_is_only_read(served: Served, method: str) -> None:
    status, _, headers = served.ask(method=method)
    assert (status, headers["allow"]) == (405, "GET")


def test_it_listens_on_loopback_alone(served: Served) -> None:
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    listening = [row.split()[1] for row in rows if row.split()[3] == "0A"]
    here = f":{served.port:04X}"
    assert [each for each in listening if each.endswith(here)] == [f"0100007F{here}"]
    six = Path("/proc/net/tcp6")
    assert not six.exists() or f":{served.port:04X} " not in six.read_text(encoding="ascii")


def test_connections_without_the_key_do_not_stop_the_page(served: Served) -> None:
    """Any account of this host can open them, and say nothing."""
    with contextlib.ExitStack() as held:
        for _ in range(200):
            held.enter_context(socket.create_connection(("127.0.0.1", served.port), PATIENCE_S))
        assert served.ask()[0] == 200

        def few() -> bool:
            status = Path(f"/proc/{served.process.pid}/status").read_text()
            return int(status.partition("Threads:")[2].split()[0]) < 60

        until(few, "their threads end")
        assert served.ask(f"{served.path}version")[0] == 200


def test_the_page_in_a_browser_follows_the_run(served: Served, tmp_path: Path) -> None:
    with browser(tmp_path / "browser") as shown:
        shown.open(f"http://127.0.0.1:{served.port}{served.path}")
        assert "2 blocks complete" in shown.evaluate("document.body.innerText")
        served.grow()
        shown.await_load()
        assert "3 blocks complete" in shown.evaluate("document.body.innerText")
        assert shown.complaints == []


def test_the_run_is_left_as_it_was_and_ctrl_c_ends_it(served: Served) -> None:
    assert served.ask()[0] == 200
    before = {str(path.relative_to(served.run)) for path in served.run.rglob("*")}
    served.process.send_signal(signal.SIGINT)
    out, err = served.process.communicate(timeout=PATIENCE_S)
    assert (served.process.returncode, out, err) == (0, "The report is not shown any more.\n", "")
    assert {str(path.relative_to(served.run)) for path in served.run.rglob("*")} == before
    assert "report.html" not in before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--port", "8000"), "--port 8000: nothing is served"),
        (("--serve", "--output", "x"), "--serve goes with --port alone"),
        (("--serve", "--expect", "0" * 64), "--serve goes with --port alone"),
        (("--serve",), "is not a run's folder"),
    ],
)
def test_what_cannot_be_served_is_told(call: Call, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    status, out, err = call("report", tmp_path, *options)
    assert (status, out) == (2, "")
    assert told in " ".join(err.split())


def test_a_port_in_use_is_told_with_its_cure(call: Call, tmp_path: Path) -> None:
    growing(tmp_path / "run")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, out, err = call("report", tmp_path / "run", "--serve", "--port", str(port))
    assert (status, out) == (2, "")
    assert f"--port {port}: another program listens there" in err
    assert "cure: name another one" in err


class Read:
    """Reads results and counts how often; `clock` stands still but for what a reading `takes`."""

    def __init__(self) -> None:
        self.count, self.now, self.takes = 0, 0.0, 0.0

    def __call__(self, folder: Path) -> Results:
        self.count += 1
        self.now += self.takes
        return open_results(folder)

    def clock(self) -> float:
        return self.now


def test_a_page_is_made_again_when_the_log_grew_and_its_pause_is_over(tmp_path: Path) -> None:
    grow, read = growing(tmp_path / "run"), Read()
    page = LivePage(tmp_path / "run", read, read.clock)
    first = page.current()
    assert "2 blocks complete" in first.html
    read.now = 100.0
    assert page.current() == first
    assert read.count == 1  # nothing was added
    grow()
    read.takes = 2.0
    second = page.current()
    assert "3 blocks complete" in second.html
    assert second.version != first.version
    assert f'data-live="{second.version}"' in second.html
    (tmp_path / "run" / "run.jsonl").touch()
    read.now = 121.9  # ten times as long as it took
    assert page.current() == second
    assert read.count == 2
    read.now = 122.1
    page.current()
    assert read.count == 3


def test_figures_whose_data_are_as_they_were_are_not_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = demo()
    cell = whole.cells[0].cell
    results = replace(whole, attempts=tuple(one for one in whole.attempts if one.cell != cell or one.block < 20))
    drawn, inline = [], images.inline

    def drawing(svg: str, *, name: str, title: str) -> str:
        drawn.append(name)
        return inline(svg, name=name, title=title)

    monkeypatch.setattr(images, "inline", drawing)
    grow, clock = growing(tmp_path / "run"), Read()
    page = LivePage(tmp_path / "run", lambda _: results, clock.clock)
    assert any(name.startswith("figure-2-") for name in drawn)
    drawn.clear()
    grow()
    results, clock.now = whole, 100.0
    shown = page.current()
    assert drawn
    assert all(name.startswith("figure-1-") for name in drawn), drawn
    assert "figure-1-distribution" in drawn
    assert shown == LivePage(tmp_path / "run", lambda _: whole).current()


def test_a_run_is_called_running_as_long_as_its_process_has_it(tmp_path: Path) -> None:
    growing(tmp_path / "run")
    read, folder = Read(), RunFolder(tmp_path / "run")
    folder.append(Noted(t=1.0, text="here"))
    page = LivePage(tmp_path / "run", read, read.clock)
    first = page.current()
    assert "Running: 2 blocks complete" in first.html
    folder.close()  # nothing was added
    read.now = 10.0
    ended = page.current()
    assert ended.version != first.version
    assert "Interrupted: 2 blocks complete" in ended.html


def test_a_page_that_cannot_be_made_again_stays_and_says_so_until_it_can(tmp_path: Path) -> None:
    growing(tmp_path / "run")
    read = Read()
    page = LivePage(tmp_path / "run", read, read.clock)
    first = page.current()
    log, hidden = tmp_path / "run" / "run.jsonl", tmp_path / "hidden"
    log.rename(hidden)
    read.now = 10.0
    told = page.current()
    assert "the run cannot be read now" in told.html
    assert "2 blocks complete" in told.html
    assert told.version != first.version
    hidden.rename(log)
    read.now = 20.0
    assert page.current() == first


def test_a_folder_that_is_no_run_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run's folder"):
        LivePage(tmp_path, open_results)
