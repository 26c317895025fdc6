"""A headless Chromium that shows pages and says what it made of them, by its DevTools protocol."""

import base64
import itertools
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import websocket

from tests.again import BrowserError
from tests.requirements import need_program

__all__ = ["Browser", "browser"]

_PATIENCE = 180.0  # seconds until a browser that does not answer is an error
# What a browser wants to know of a key beside its name: its code, and the text that it types.
_KEYS = {
    ".": (190, "."),
    "Enter": (13, "\r"),
    " ": (32, " "),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
}


class Browser:
    """One tab. `send` speaks the protocol itself: https://chromedevtools.github.io/devtools-protocol/.

    `complaints` are what the page's console had of errors and warnings, uncaught errors, and dialogs, since `open`.
    """

    def __init__(self, address: str) -> None:
        # Chromium refuses a connection that names an origin.
        self._socket = websocket.create_connection(address, timeout=_PATIENCE, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        self._address = ""
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to `method`; an error of the browser is an AssertionError."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        answer = self._until(lambda one: one.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        found: dict[str, Any] = answer["result"]
        return found

    def open(
        self,
        path: Path | str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        paper: bool = False,
        bars: bool = True,
        place: str = "",
        script: bool = True,
    ) -> None:
        """Show a file (or an address) in a window of so many CSS pixels, and wait until it is laid out with its fonts.

        `place` is what stands behind the # of its address; without `script` the page's own is not run. `paper`: as it
        is printed; without `bars` it has no scroll bars.
        """
        address = path if isinstance(path, str) else path.resolve().as_uri()
        if address == self._address:  # what differs behind its # alone is not loaded anew
            self.send("Page.navigate", url="about:blank")
        self._address = address
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        self.complaints.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        self.send("Emulation.setScrollbarsHidden", hidden=paper or not bars)
        self.send("Page.navigate", url=address + (f"#{place}" if place else ""))
        self.await_load()
        self.evaluate("document.fonts.ready.then(() => true)")

    def await_load(self) -> None:
        """Wait until the page is loaded, or has loaded itself anew; what is evaluated meanwhile may be an error."""
        self._until(lambda one: one.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression; a promise is waited for. The page's own policy stays in force."""
        told = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after another: characters, or names as of KeyboardEvent.key."""
        for key in keys:
            code, text = _KEYS.get(key, (ord(key[0].upper()), key))
            known = {"key": key, "windowsVirtualKeyCode": code}
            self.send("Input.dispatchKeyEvent", type="keyDown", **known, **({"text": text} if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", **known)

    def point(self, x: float, y: float) -> None:
        """Move the pointer there, in CSS pixels of the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def printed(self, size: tuple[float, float], margin: float) -> bytes:
        """The page as PDF, with its backgrounds, on sheets of such a size with such a margin, in inches."""
        across, down = size
        sheet = {f"margin{side}": margin for side in ("Top", "Bottom", "Left", "Right")}
        sheet |= {"paperWidth": across, "paperHeight": down}
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True, **sheet)["data"])

    def close(self) -> None:
        self._socket.close()

    def _until(self, wanted: Any) -> dict[str, Any]:
        while True:
            one: dict[str, Any] = json.loads(self._socket.recv())
            self.complaints += _complaint(one)
            if wanted(one):
                return one


def _complaint(one: dict[str, Any]) -> Iterator[str]:
    """What of a message is an error, a warning or a dialog."""
    told = one.get("params", {})
    match one.get("method"):
        case "Runtime.exceptionThrown":
            yield str(told["exceptionDetails"])
        case "Runtime.consoleAPICalled" if told["type"] in {"error", "warning", "assert"}:
            yield str(told["args"])
        case "Log.entryAdded" if told["entry"]["level"] in {"error", "warning"}:
            yield str(told["entry"]["text"])
        case "Page.javascriptDialogOpening":
            yield f"dialog: {told['message']}"


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile is in `folder`; the calling test says so when there is no chromium."""
    program = need_program("chromium", "chromium")
    command = [program, "--headless", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run"]
    command += ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # root has no other way
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "messages").open("wb") as messages:
        process = subprocess.Popen([*command, "about:blank"], stdout=messages, stderr=messages)
    try:
        one = Browser(_tab(process, folder))
        try:
            yield one
        finally:
            one.close()
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def _tab(process: subprocess.Popen[bytes], folder: Path) -> str:
    """The address of the first tab, once the browser has written at which port it listens."""
    port, until = folder / "DevToolsActivePort", time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < until:
        if port.exists() and len(lines := port.read_text(encoding="utf-8").splitlines()) == 2:
            with (
                suppress(URLError),
                urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=_PATIENCE) as answer,
            ):
                tabs = [one["webSocketDebuggerUrl"] for one in json.load(answer) if one["type"] == "page"]
                if tabs:
                    first: str = tabs[0]
                    return first
        time.sleep(0.05)
    said = (folder / "messages").read_text(encoding="utf-8", errors="replace")
    raise BrowserError(f"{process.args!r} has not begun to listen: {said}")
