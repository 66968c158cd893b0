"""Pages in a browser: no error on its console, no sideways scroll, no broken link.

Headless Chromium loads each page in frames as wide as a phone and as a desktop.
"""

from __future__ import annotations

import functools
import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier

from tests.plain import plain

SITE = Path(__file__).parents[2] / "docs" / "_build"
NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), "")

pytestmark = pytest.mark.skipif(
    not BROWSER, reason=f"no browser: none of {', '.join(NAMES)} is on PATH"
)

WIDTHS = (390, 1280)

#: Opens pages in frames, and writes what is wrong with them into its title.
PROBE = """<!doctype html><link rel="icon" href="data:,"><title></title><script>
const [pages, widths] = JSON.parse(decodeURIComponent(location.search.slice(1)));
const texts = {}, found = [];
const text = address => texts[address] ??= fetch(address).then(
  answer => answer.ok ? answer.text() : null);
async function broken(link) {
  const address = new URL(link.href);
  if (address.origin !== location.origin) return false;
  const at = decodeURIComponent(address.hash.slice(1));
  const page = await text(address.href.split("#")[0]);
  if (page === null) return true;
  const target = new DOMParser().parseFromString(page, "text/html");
  return at && !target.getElementById(at) && !target.getElementsByName(at).length;
}
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 800px; border: 0`;
  const loaded = new Promise(done => frame.onload = done);
  frame.src = page;
  document.body.append(frame);
  await loaded;
  const root = frame.contentDocument.documentElement;
  if (root.scrollWidth > width)
    found.push(`${page} is ${root.scrollWidth} px wide in ${width} px`);
  if (width === widths[0])
    for (const link of root.querySelectorAll("a[href]"))
      if (await broken(link))
        found.push(`${page} links to ${link.getAttribute("href")}`);
  frame.remove();
}
onload = async () => {
  for (const page of pages) for (const width of widths) await look(page, width);
  document.title = "found " + JSON.stringify(found);
};
</script><body>"""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and the probe."""

    def do_GET(self) -> None:
        if not self.path.startswith("/probe?"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(PROBE.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = functools.partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def problems(folder: Path, *pages: str) -> list[str]:
    """Return what is wrong with pages of a folder, as sentences."""
    with served(folder) as address:
        asked = quote(json.dumps([pages, WIDTHS]))
        how = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
        budget = "--virtual-time-budget=60000"
        command = [BROWSER, *how, budget, "--dump-dom", f"{address}/probe?{asked}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    title = re.search("<title>found (.*)</title>", done.stdout)
    assert title is not None, done.stderr
    said = re.findall(r':CONSOLE[:(]\d+\)?\] "(.*)", source: ', done.stderr)
    return [*said, *json.loads(html.unescape(title[1]))]


def test_what_is_wrong_with_a_page_is_found(tmp_path):
    (tmp_path / "good.html").write_text(
        "<h1 id='top'>A page</h1><a href='#top'>up</a><a href='bad.html#é'>bad</a>"
    )
    (tmp_path / "bad.html").write_text(
        "<meta charset=utf-8><p id='é' style='width: 500px'>wide</p>"
        "<a href='#none'>a</a><a href='good.html#top'>b</a><a href='gone.html'>c</a>"
        "<script>console.error('an error'); nothing()</script>"
    )
    assert problems(tmp_path, "good.html") == []
    found = problems(tmp_path, "bad.html")
    assert {text for text in found if "bad.html is" in text} == {
        "bad.html is 508 px wide in 390 px"
    }
    assert [text for text in found if "bad.html links" in text] == [
        "bad.html links to #none",
        "bad.html links to gone.html",
    ]
    assert {"an error", "Uncaught ReferenceError: nothing is not defined"} < {*found}


def test_a_card(tmp_path):
    X, y = load_iris(return_X_y=True)
    fast = plain(RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, y))
    fast.fit(X).summary(X, batch_sizes=[1, 8])
    card = fast._repr_html_().replace("<details>", "<details open>")
    page = f"<!doctype html><meta charset=utf-8><body>{card}"
    (tmp_path / "card.html").write_text(page, encoding="utf-8")
    assert problems(tmp_path, "card.html") == []


@pytest.mark.skipif(
    not (SITE / "index.html").exists(),
    reason="the site is not built: python -m sphinx docs docs/_build",
)
def test_pages_of_the_site():
    assert problems(SITE, "index.html", "start.html") == []
