"""The documentation site: it builds without a warning, has a page for each system, no dead link, and fetches nothing."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

from fedstill.algorithms import algorithms

ROOT = Path(__file__).parent.parent
LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "use": "href"}  # what a browser fetches by itself
pytest.importorskip("mkdocs", reason="the extra fedstill[docs] is not installed")


class Links(HTMLParser):
    """A page's identifiers, its links, and what it makes a browser fetch."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = {name: value or "" for name, value in attributes}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and "stylesheet" in found.get("rel", "") + found.get("as", ""):
            self.loaded.append(found["href"])
        if tag in LOADED and LOADED[tag] in found:
            self.loaded.append(found[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it, in strict mode, but for the pages that are made from docstrings."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSTILL_DOCS_WITHOUT_API", "yes")
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.validation.links.anchors = 0  # those of the API are left out here; the others are checked below
        build(config)
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {page: Links(page.read_text()) for page in site.rglob("*.html") if page.name != "404.html"}


def test_links_lead_to_pages_and_headings(site, pages):
    broken = []
    for page, found in pages.items():
        for link in found.links:
            address, anchor = urldefrag(link)
            if urlparse(address).scheme:
                continue
            target = (page.parent / unquote(address)).resolve() if address else page
            target = target / "index.html" if target.is_dir() else target
            generated = target.parent.name == "api"
            if not target.exists() or (anchor and not generated and unquote(anchor) not in pages[target].ids):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 60
    assert not broken


def test_links_to_the_api_name_what_is_there(pages):
    """Their headings are made from docstrings, which this build leaves out: the names must be importable instead."""
    import importlib

    named = {
        unquote(urldefrag(link).fragment) for found in pages.values() for link in found.links if "api/" in link and "#" in link
    }
    assert len(named) > 20
    for name in named:
        module, _, member = name.rpartition(".")
        assert hasattr(importlib.import_module(module), member), name


def test_nothing_is_fetched_from_elsewhere(site, pages):
    fetched = {address for found in pages.values() for address in found.loaded}
    assert fetched
    assert not [address for address in fetched if urlparse(address).scheme not in ("", "data") or address.startswith("//")]
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert styles
    assert not [found for text in styles for found in re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*|@import[^;]*", text)]


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_system_has_a_page_with_its_parts(name):
    text = (ROOT / "docs" / "systems" / f"{name}.md").read_text()
    kind = algorithms()[name]
    assert text.startswith(f"# {kind.title}\n")
    sections = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert sections == [
        "The idea", "A round", "The equations, as implemented", "When to use it", "What we measured", "Options"
    ]  # fmt: skip
    idea = text.split("## The idea")[1].split("##")[0].strip()
    assert len(re.findall(r"[.!?](?:\s|$)", idea)) == 3, "the idea in three sentences"
    assert "$$" in text
    assert "```flow\n" in text
    assert f"<!-- options of {name} -->" in text
    assert f"({name}.md)" in (ROOT / "docs" / "systems" / "README.md").read_text()


def test_options_equations_and_flows_are_on_the_page(site):
    page = (site / "systems" / "fedprox.html").read_text()
    assert "<code>algorithm.mu</code>" in page
    assert "<math" in page
    assert '<svg role="img"' in page
    assert "arithmatex" not in page


def test_every_package_has_a_page_in_the_api():
    named = set(
        re.findall(r"^::: ([\w.]+)$", "\n".join(p.read_text() for p in (ROOT / "docs" / "api").glob("*.md")), re.MULTILINE)
    )
    packages = {f"fedstill.{path.parent.name}" for path in (ROOT / "src" / "fedstill").glob("*/__init__.py")}
    assert packages <= named


def test_lines_of_markdown_are_wrapped():
    """Tables, code, equations and the generated list of options aside."""
    pages = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.name != "configuration.md"]
    long = set()
    for page in pages:
        text = re.sub(r"^([ \t]*)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        if any(len(line) > 120 and not re.match(r"\s*(\||\$\$|<|!\[|>)", line) for line in text.splitlines()):
            long.add(str(page.relative_to(ROOT)))
    assert not long, f"run: python website/wrap.py {' '.join(sorted(long))}"


@pytest.mark.browser
def test_pages_in_a_browser_are_quiet_and_fit(site):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("Chromium or its driver is not installed (Debian: apt install chromium chromium-driver)")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        for width in (1400, 390):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            for page in ("index.html", "systems/fedd3a.html", "notebooks/compare.html"):
                browser.get(base + page)
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width, f"{page} at {width}"
        events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        assert asked
        assert not [address for address in asked if not address.startswith((base, "data:", "blob:"))]
        assert not browser.get_log("browser")
    finally:
        browser.quit()
        server.shutdown()
