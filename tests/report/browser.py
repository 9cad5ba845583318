"""A headless Chromium on a pipe, spoken to in its DevTools protocol: opens a page at some width, tells what went wrong, takes a picture.

Nothing but the standard library, and no port: file descriptors 3 and 4 carry JSON messages that end with a zero byte.
"""

import base64
import contextlib
import json
import os
import select
import subprocess
import time

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Browser:
    def __init__(self, send, receive):
        self.send, self.receive, self.number, self.buffer, self.session = send, receive, 0, b"", None
        self.complaints = []

    def call(self, method, **params):
        """The answer to a command; what the page complains about meanwhile is kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while True:
            told = self.hear()
            if told.get("id") == self.number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return told["result"]

    def hear(self, seconds=60):
        """The next message."""
        while b"\0" not in self.buffer:
            if not select.select([self.receive], [], [], seconds)[0]:
                raise TimeoutError("chromium says nothing")
            part = os.read(self.receive, 1 << 20)
            if not part:
                raise RuntimeError("chromium has gone")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        told = json.loads(text)
        about, params = told.get("method", ""), told.get("params", {})
        if about == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["exception"].get("description", str(params)))
        elif about == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif about == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif about == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"asks the network for {params['request']['url']}")
        return told

    def ask(self, expression):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, path, width, height=900, dark=False, ready="document.documentElement.dataset.figures"):
        """The page at this width, once `ready` is true. Phones are those below 500."""
        self.complaints.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + 60
        while not self.ask(f"document.readyState === 'complete' && ({ready}) || null"):
            assert time.monotonic() < end, f"never ready: {self.complaints}"
            time.sleep(0.05)

    def picture(self, path):
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))


# What does not fit: boxes wider than the window, and drawings that stick out of theirs.
CUT_OFF = """
[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && !e.closest('svg') && !e.closest('thead') && (box.right > innerWidth + 1 || box.left < -1);
}).map(e => `${e.tagName}.${e.className}#${e.id}`).concat(
[...document.querySelectorAll('.chart svg')].filter(svg => {
  const frame = svg.closest('figure').getBoundingClientRect();
  return [...svg.querySelectorAll('text, path, line')].some(e => {
    const box = e.getBoundingClientRect();
    return box.width && (box.right > frame.right + 1 || box.left < frame.left - 1);
  });
}).map(e => 'drawing in ' + e.closest('figure').id))
"""

# Words that lie on each other, within a drawing: pairs of texts whose boxes overlap by more than a little.
OVERLAPS = """
[...document.querySelectorAll('.chart svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim() && getComputedStyle(t).opacity > 0)
    .map(t => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width);
  const found = [];
  texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (wide > 2 && high > 4) found.push(`${svg.closest('figure').id}: "${a}" on "${b}"`);
  }));
  return found;
})
"""


@contextlib.contextmanager
def chromium(folder):
    """A browser; `folder` is for what it keeps."""
    from_us, to_it = os.pipe()
    to_us, from_it = os.pipe()
    # Descriptors 3 and 4 of the child, whatever their numbers here.
    command = f'exec 3<&{from_us} 4>&{from_it}; exec chromium "$@"'
    process = subprocess.Popen(
        ["bash", "-c", command, "chromium", *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(from_us, from_it), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(from_us)
    os.close(from_it)
    try:
        browser = Browser(to_it, to_us)
        page = next(t for t in browser.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        browser.session = browser.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            browser.call(f"{domain}.enable")
        yield browser
    finally:
        os.close(to_it)
        process.terminate()
        process.wait()
        os.close(to_us)
