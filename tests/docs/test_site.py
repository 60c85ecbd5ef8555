"""The documentation's site builds, with every warning an error, and fetches nothing."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.docs.commands import ROOT, markdown_files

PACKAGE = ROOT / "fairseq_recur"
REPOSITORY = "https://example.org/owner/name"

pytestmark = pytest.mark.slow  # building it takes longer than all other tests of the documents


class Page(HTMLParser):
    """The contents of a page: its anchors, its links, and what a browser fetches for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list) -> None:
        found = dict(attributes)
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.fetched.append(found["href"])
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.fetched.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        ["bash", ROOT / "scripts" / "docs.sh", folder],
        env={**os.environ, "PYTHON": sys.executable, "REPOSITORY_URL": REPOSITORY,
             "REPOSITORY_EDIT": "edit/main/"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_markdown_file_has_a_page(site: Path) -> None:
    for path in markdown_files():
        place = path.relative_to(ROOT)
        if place.parts[0] not in ("tests", "site"):
            named = place.parent if path.name == "README.md" else place.with_suffix("")
            assert (site / named / "index.html").is_file(), place


def test_a_link_for_editing_leads_to_the_file(site: Path, pages: dict[Path, Page]) -> None:
    """Pages that are generated from the code have none."""
    for path in markdown_files():
        place = path.relative_to(ROOT)
        if place.parts[0] not in ("tests", "site"):
            named = place.parent if path.name == "README.md" else place.with_suffix("")
            links = pages[site / named / "index.html"].links
            assert f"{REPOSITORY}/edit/main/{place.as_posix()}" in links, place
    generated = pages[site / "docs" / "api" / "ops" / "index.html"].links
    assert not any("/edit/" in link for link in generated)


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """mkdocs checks the links of the Markdown; this checks those of the generated pages."""
    seen = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.relative_to(site)}: {link}"
            if parts.fragment and target in pages:
                there = pages[target].places
                assert unquote(parts.fragment) in there, f"{path.relative_to(site)}: {link}"
            seen += 1
    assert seen > 1000


def test_a_browser_fetches_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for address in page.fetched:
            assert not urlsplit(address).netloc, f"{path}: {address}"


def test_equations_are_drawn(site: Path) -> None:
    drawn = 0
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "arithmatex" not in text, path
        found = re.findall(r"<math .*?</math>", text, re.DOTALL)
        # A command that was not understood, and a sign of alignment that was.
        assert not any("\\" in e or re.search(r"<m[io]>&(amp;)?</m", e) for e in found), path
        drawn += len(found)
    fences = sum(p.read_text(encoding="utf-8").count("```math\n") for p in markdown_files())
    assert drawn >= fences > 5
    assert (site / "docs" / "STIXTwoMath-Regular.ttf").is_file()


def test_the_reference_has_every_module_of_its_folders(site: Path) -> None:
    text = "".join(p.read_text(encoding="utf-8") for p in (site / "docs" / "api").rglob("*.html"))
    for folder in ("pretrained", "models", "modules", "ops", "tasks", "criterions", "optim",
                   "scorers", "scoring", "inspection"):  # fmt: skip
        for path in (PACKAGE / folder).glob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            assert f'id="{name}"' in text, name


def test_the_search_finds_flags_and_troubleshooting_first(site: Path) -> None:
    """With Material's own search, outside a browser; a flag may be written with its dashes."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    flags = ["--segment-size", "segment-size", "--rsa-gate-init", "--recurrence-steps"]
    problems = ["Minimum loss scale reached", "apex"]
    done = subprocess.run(
        [node, ROOT / "tests" / "docs" / "search.js", site, *flags, *problems],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    for flag in flags:
        assert "docs/flags/" in found[flag], flag
    assert found["--segment-size"] == found["segment-size"]
    for problem in problems:
        before = found[problem][: found[problem].index("docs/troubleshooting/")]
        assert not any(page.startswith("docs/api/") for page in before), (problem, before)


@pytest.mark.slow
def test_in_a_browser(site: Path, tmp_path: Path) -> None:
    """All pages on a wide and on a narrow screen; SCREENSHOTS=FOLDER keeps their pictures."""
    pytest.importorskip("playwright", reason="needs playwright: see CONTRIBUTING.md")
    from tests.docs import browser

    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    with browser.opened(site, os.environ.get("CHROMIUM")) as (page, address):
        seen = 0
        found = {}
        for path in sorted(site.rglob("index.html")):
            name = path.parent.relative_to(site).as_posix()
            for width in browser.WIDTHS:
                picture = pictures / f"{name.replace('/', '_')}_{width}.png"
                seen += 1
                if wrong := browser.faults(page, f"{address}/{name}/", width, picture):
                    found[f"{name} at {width}"] = wrong
        assert seen > 100
        assert not found
        page.set_viewport_size({"width": max(browser.WIDTHS), "height": 900})
        for query, answer in {
            "--segment-size": "/docs/flags/",
            "--rsa-gate-init": "/docs/flags/",
            "Minimum loss scale reached": "/docs/troubleshooting/",
        }.items():
            before = browser.answers(page, address, query)
            assert answer in before, query
            assert not any("/docs/api/" in other for other in before[: before.index(answer)]), query


def test_the_navigation_names_no_page_twice() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]

    def leaves(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        children = entry if isinstance(entry, list) else entry.values()
        return [leaf for child in children for leaf in leaves(child)]

    found = leaves(nav)
    assert len(found) == len(set(found)) > 30


def test_results_are_those_of_the_pages_behind_them() -> None:
    """Every figure with two decimals, or with a comma, that docs/results.md gathers."""
    results = ROOT / "docs" / "results.md"
    others = "".join(p.read_text(encoding="utf-8") for p in markdown_files() if p != results)
    others = re.sub(r"\s+", " ", others)
    found = re.findall(r"(?<![\d.,])[-+]?\d+\.\d{2}(?!\d)|\d{1,3}(?:,\d{3})+", results.read_text())
    assert len(found) > 30
    for figure in found:
        either = f"({re.escape(figure)}|{re.escape(figure.replace(',', ''))})"
        assert re.search(rf"(?<![\d.]){either}(?!\d)", others), figure
