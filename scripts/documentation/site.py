"""What mkdocs needs to make a site of this repository's Markdown files where they are.

It is a hook of mkdocs, see mkdocs.yml. It does this:

- pages keep their path in the repository, also those outside of docs/, so that their links
  to each other need no change; files to which they link come along, and a link for editing a
  page leads to its file;
- the pages of the Python reference list the modules of the folders named in API;
- the search shows troubleshooting and flags before the reference;
- equations, ``$...$`` or a fence ``math``, become MathML, which browsers draw without a script;
  the font for them is the one that ziamath contains (STIX Two Math, SIL Open Font License).
"""

import re
from collections.abc import Iterator
from html import unescape
from importlib.resources import files as resources
from pathlib import Path
from re import Match

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PACKAGE = "fairseq_recur"

# Page of the reference: its title, and the folders whose modules it has.
API: dict[str, list[str]] = {
    "pretrained": ["pretrained"],
    "models": ["models"],
    "modules": ["modules"],
    "ops": ["ops"],
    "fairseq": ["tasks", "criterions", "optim", "scorers"],
    "scoring": ["scoring"],
    "inspection": ["inspection"],
}
TITLES = {
    "pretrained": "Trained models",
    "models": "Models",
    "modules": "Modules",
    "ops": "Operations on tensors",
    "fairseq": "Tasks, criterions, optimizers, scorers",
    "scoring": "Scoring",
    "inspection": "Looking into models",
}
FONT = "STIXTwoMath-Regular.ttf"
LINK = re.compile(r"\]\(([^)#\s]+)")
MATHS = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)


def markdown_files(root: Path) -> Iterator[Path]:
    """The Markdown files of the project, not of its environments and results."""
    for path in sorted(root.rglob("*.md")):
        parts = path.relative_to(root).parts
        if not any(part.startswith(".") or part in ("work", "site", "tests") for part in parts):
            yield path


def linked_files(root: Path, pages: list[Path]) -> Iterator[Path]:
    """The files other than pages to which the pages link: figures, results, programs."""
    found = set()
    for page in pages:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            if path.is_file() and path.suffix != ".md" and root in path.parents:
                found.add(path)
    yield from sorted(found)


def api_page(root: Path, name: str) -> str:
    """The reference's page of this name, for mkdocstrings."""
    lines = [f"# {TITLES[name]}", ""]
    for folder in API[name]:
        for path in sorted((root / PACKAGE / folder).glob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            lines += [f"::: {module.removesuffix('.__init__')}", ""]
    return "\n".join(lines)


def repository_file(config: MkDocsConfig, uri: str, path: Path) -> File:
    """A file outside of docs/, which mkdocs would take for one that nobody can edit."""
    file = File.generated(config, uri, abs_src_path=str(path))
    file.edit_uri = uri
    return file


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs: the files of the site, by their paths in the repository."""
    root = Path(config.config_file_path).resolve().parent
    theme = [file for file in files if not file.abs_src_path.startswith(str(root / "docs"))]
    pages = list(markdown_files(root))
    own = [root / "docs" / name for name in ("site.css", "search.js")]
    paths = [*pages, *linked_files(root, pages), *own]
    made = {path.relative_to(root).as_posix(): path for path in paths}
    made[f"docs/{FONT}"] = Path(str(resources("ziamath.fonts") / FONT))
    return Files(
        [
            *theme,
            *(repository_file(config, uri, path) for uri, path in made.items()),
            *(
                File.generated(config, f"docs/api/{name}.md", content=api_page(root, name))
                for name in API
            ),
        ]
    )


# Pages that answer a question stand before the reference in the results of a search, although a
# word in a title counts a thousand times as much as one in the text.
BOOSTS = {"docs/troubleshooting.md": 10, "docs/flags.md": 10, "docs/api/": 0.0005}
# Pages whose tables need the room of the table of contents.
WIDE = ("docs/planning.md", "examples/modeling_recurrence/results/")


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Called by mkdocs with the Markdown of a page: set its weight in the search, and its width."""
    for start, boost in BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    if page.file.src_uri.startswith(WIDE):
        page.meta["hide"] = ["toc"]
    return markdown


def as_mathml(found: Match[str]) -> str:
    """One equation of LaTeX in arithmatex's element, as MathML.

    latex2mathml makes rows and columns of align*, which means the same on a page of its own, and of
    aligned, which repositories' viewers want, one long line.
    """
    display = "block" if found[1] == "div" else "inline"
    latex = unescape(found[2]).strip().replace("{aligned}", "{align*}")
    return latex2mathml.converter.convert(latex, display=display)


def on_page_content(html: str, **_: object) -> str:
    """Called by mkdocs with the HTML of a page."""
    return MATHS.sub(as_mathml, html)
