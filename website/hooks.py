"""What MkDocs does not do by itself: complete the navigation, bring in pages from outside docs/, and turn equations, flows and
notebooks into HTML when the site is built, so that a reader's browser fetches nothing.
"""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from typing import Any

from flow import flow_svg
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebook import notebook_markdown
from options import options_table

ROOT = Path(__file__).parent.parent
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")  # pages that live in the root of the repository
SECTIONS = {"systems": "Systems", "results": "Results", "api": "API", "notebooks": "Start"}  # by folder; all others are guides


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add to the navigation what is in docs/ and not named there."""
    docs = Path(config.docs_dir)
    named = set(re.findall(r"[\w./-]+\.(?:md|ipynb)", str(config.nav)))
    pages = sorted([*docs.rglob("*.md"), *docs.rglob("*.ipynb")])
    for page in (page.relative_to(docs) for page in pages):
        if str(page) not in named and ".ipynb_checkpoints" not in page.parts:
            entries = section(config.nav, SECTIONS.get(page.parts[0], "Guides"))
            nested = [i for i, entry in enumerate(entries) if isinstance(entry, dict) and isinstance(*entry.values(), list)]
            entries.insert(nested[0] if nested else len(entries), str(page))
    config.nav = renamed(config.nav)
    return config


def section(nav: Any, name: str) -> list[Any]:
    """The entries of a section of the navigation."""
    return next(entry[name] for entry in nav if name in entry)


def renamed(nav: Any) -> Any:
    """The navigation with every notebook under the name of the page that is made of it."""
    if isinstance(nav, dict):
        return {title: renamed(entry) for title, entry in nav.items()}
    if isinstance(nav, list):
        return [renamed(entry) for entry in nav]
    return nav.replace(".ipynb", ".md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages from the root and a page for each notebook; leave notebooks and what is for repositories alone out."""
    for name in OUTSIDE:
        text = (ROOT / name).read_text()
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        if ".ipynb_checkpoints" not in file.src_uri:
            text = notebook_markdown(file.content_bytes)
            files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace what is written as text in the repository: links out of docs/, flows, tables of options."""
    if os.environ.get("FEDSTILL_DOCS_WITHOUT_API"):  # the tests build the site without its slowest pages
        markdown = re.sub(r"^::: .*$", "", markdown, flags=re.M)
    markdown = re.sub(r"\]\((?:\.\./)+(CHANGELOG|CONTRIBUTING|SECURITY)\.md", rf"]({up(page)}\1.md", markdown)
    markdown = re.sub(r"(\]\([\w./-]+)\.ipynb", r"\1.md", markdown)
    markdown = re.sub(r"^```flow\n(.*?)^```", lambda found: flow_svg(found[1]), markdown, flags=re.M | re.S)
    return re.sub(r"^<!-- options of (\S+) -->$", lambda found: options_table(found[1], up(page)), markdown, flags=re.M)


def up(page: Page) -> str:
    """The way from a page to the root of the documentation."""
    return "../" * page.file.src_uri.count("/")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Equations as MathML, which browsers draw without a script; tables of options marked, so that their text gets room."""
    html = html.replace("<th>values, meaning</th>", '<th class="meaning">values, meaning</th>')
    html = re.sub(r"<code>[^<]*</code>", lambda found: found[0].replace(r"\|", "|"), html)  # as a table's cell has to write it
    html = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda found: mathml(found[1], "inline"), html, flags=re.S)
    html = re.sub(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', lambda found: mathml(found[1], "block"), html, flags=re.S)
    if "arithmatex" in html:
        raise ValueError(f"{page.file.src_uri}: an equation was not converted")
    return html


def mathml(latex: str, display: str) -> str:
    """An equation as MathML; a displayed one can be scrolled where the screen is narrow."""
    made = convert(unescape(latex).strip(), display=display)
    if "\\" in made:
        raise ValueError(f"a command of this equation is not known: {latex}")
    return made if display == "inline" else f'<div class="equation">{made}</div>'
