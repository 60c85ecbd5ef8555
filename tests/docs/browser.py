"""The site in headless Chromium: what is off-screen, how equations look, what a search finds."""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDTHS = (1300, 400)
# Elements that stick out of the window, unless something around them scrolls.
STICKING_OUT = """() => {
  const scrolls = (node) => {
    for (let at = node; at && at !== document.body; at = at.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
    return false;
  };
  return [...document.querySelectorAll(".md-content :is(p, table, img, pre, math, h1, h2, h3)")]
    .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 && !scrolls(node))
    .map((node) => node.tagName + " " + node.textContent.trim().slice(0, 60));
}"""
# Tables of which a part is off-screen, until one scrolls them.
CUT_TABLES = """() => [...document.querySelectorAll(".md-typeset__scrollwrap")]
  .filter((room) => room.scrollWidth > room.clientWidth + 1)
  .map((room) => room.textContent.trim().slice(0, 60))"""
# Subscripts that are not below their base, and superscripts that are not above.
FLAT_SCRIPTS = """() => [...document.querySelectorAll("msub, msup")].filter((node) => {
    const [base, script] = [...node.children].map((child) => child.getBoundingClientRect());
    const middle = (box) => (box.top + box.bottom) / 2;
    const distance = middle(script) - middle(base);
    return node.tagName.toLowerCase() === "msub" ? distance < 1 : distance > -1;
  }).map((node) => node.textContent)"""
# A page with equations on which the site's font for them was not loaded.
NO_FONT = """() => document.querySelector("math")
  && ![...document.fonts].some((font) => font.family.includes("Math") && font.status === "loaded")
  ? [document.title] : []"""
RESULTS = ".md-search-result__item > a"


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the folder while the block runs; the address is given."""
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def opened(site: Path, chromium: str | None) -> Iterator[tuple[Page, str]]:
    """Serve the site, and give an empty page of a browser and the site's address."""
    with served(site) as address, sync_playwright() as playwright:
        # Without a sandbox, because containers allow none. The pages are the project's own.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser.new_page(), address


def faults(page: Page, address: str, width: int, picture: Path) -> dict[str, list[str]]:
    """Return what is wrong with a page at a width, and take its picture."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address)
    page.evaluate("document.fonts.ready.then(() => true)")
    page.screenshot(path=picture, full_page=True)
    found = {
        "sticking out": page.evaluate(STICKING_OUT),
        "cut tables": page.evaluate(CUT_TABLES) if width == max(WIDTHS) else [],
        "flat scripts": page.evaluate(FLAT_SCRIPTS),
        "font of equations": page.evaluate(NO_FONT),
    }
    return {fault: places for fault, places in found.items() if places}


def answers(page: Page, address: str, query: str) -> list[str]:
    """Return the pages that the search box offers for a query, best first."""
    page.goto(address)
    box = page.locator("input.md-search__input")
    box.click()
    box.fill(query)
    box.press("End")  # the theme searches when a key is released
    page.locator(RESULTS).first.wait_for(state="attached")
    return page.locator(RESULTS).evaluate_all("links => links.map((link) => link.pathname)")
