"""A headless Chromium, driven over its DevTools protocol: opens pages, reads them, collects the console's errors."""

import base64
import json
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One tab.

    Attributes:
        errors: what the console or the network reported as an error, as text.
    """

    def __init__(self, folder, width=1280, height=1600):
        words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        words += ["--disable-background-networking", "--no-first-run", "--remote-debugging-port=0"]
        words += [f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        place = Path(folder) / "DevToolsActivePort"
        self.wait(lambda: place.is_file() and len(place.read_text().splitlines()) > 1, "the browser")
        port = place.read_text().splitlines()[0]
        tabs = json.loads(urlopen(f"http://127.0.0.1:{port}/json").read())
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        self.stack, self.number, self.errors = ExitStack(), 0, []
        self.socket = self.stack.enter_context(connect(address, max_size=None))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method, **parameters):
        """What a command of the protocol gives; events that come before it are read."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message):
        kind, about = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(entry.get("value", entry)) for entry in about["args"]))
        elif kind == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def open(self, address):
        self.call("Page.navigate", url=address)

    def run(self, script):
        """The value of an expression of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, element):
        """With the mouse, in the middle of what a JavaScript expression finds, once it stands still in view, uncovered."""
        place = (
            f"(element => {{ element.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            " const box = element.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;"
            " const top = document.elementFromPoint(x, y);"
            f" return top && (element.contains(top) || top.contains(element)) ? [x, y] : null }})({element})"
        )
        places = [None, None]

        def still():
            places.append(self.run(place))
            return places[-1] is not None and places[-1] == places[-2]

        self.wait(still, f"a still place of {element}")
        for kind in ("mousePressed", "mouseReleased"):
            x, y = places[-1]
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        """In the place of all that stands where the cursor is."""
        self.call("Input.dispatchKeyEvent", type="keyDown", commands=["selectAll"])
        self.call("Input.insertText", text=text)

    def text(self):
        return self.run("document.body ? document.body.innerText : ''") or ""

    def wait(self, condition, what, seconds=180):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what} did not come"
            time.sleep(0.1)

    def wait_for(self, words):
        try:
            self.wait(lambda: words in self.text(), f"{words!r} in {self.address()}")
        except AssertionError as error:
            raise AssertionError(f"{error}; errors {self.errors}; the page shows:\n{self.text()}") from None

    def address(self):
        return self.run("location.href")

    def screenshot(self, path):
        Path(path).write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
        )

    def close(self):
        self.stack.close()
        self.process.terminate()
        self.process.wait(20)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]
