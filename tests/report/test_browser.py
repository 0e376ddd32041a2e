"""The page in a real browser: everything drawn, nothing loaded, every switch working, numbers as in the run folders.

Screenshots go to the folder that FEDSTILL_SCREENSHOTS names, else to the test's own.
"""

import base64
import json
import os
import shutil
import statistics
import threading
from pathlib import Path

import pytest

from fedstill.report.live import live_server
from fedstill.report.page import build_page
from fedstill.report.runs import load_runs
from fedstill.report.tables import latex, markdown, summarise
from tests.report.runfolders import write_comparison, write_run

pytestmark = pytest.mark.browser

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"),
    *("--disable-component-update", "--disable-sync", "--no-first-run", "--window-size=1280,900"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip("Chromium or its driver is not installed (Debian: apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = write_comparison(tmp_path_factory.mktemp("runs"), ("fedavg", "feddf", "dafkd"), rounds=8)
    build_page([folder])
    return folder


def screen(browser, width=1280, height=900, scheme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    colours = {"name": "prefers-color-scheme", "value": scheme}
    still = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [colours, still]})


def visit(browser, address):
    browser.get(address)
    wait(browser, "return document.documentElement.dataset.drawn === 'yes'")


def wait(browser, script, seconds=15):
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, seconds, poll_frequency=0.05).until(lambda b: b.execute_script(script))


@pytest.fixture
def page(browser, comparison):
    screen(browser)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what came before is not this test's
    visit(browser, (comparison / "report.html").as_uri())
    return browser


def requested(browser):
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def test_nothing_is_loaded_and_nothing_goes_wrong(page, comparison):
    assert page.get_log("browser") == []
    own = ("data:", "blob:", "chrome:")  # the last are of the browser's first tab, which may still be loading
    outside = [url for url in requested(page) if not url.startswith(own)]
    assert outside == [(comparison / "report.html").as_uri()]


def test_every_chart_is_drawn_with_data(page):
    charts = page.execute_script("""
      return [...document.querySelectorAll("main section:not([hidden]) .chart")].map((div) => ({
        id: div.id, traces: div.data?.length ?? 0,
        values: (div.data ?? []).flatMap((t) => (t.z ? t.z.flat() : t.orientation === "h" ? t.x : t.y))
          .filter((v) => v !== null).length,
        marks: div.querySelectorAll(
          ".scatterlayer .js-line, .scatterlayer .point, .barlayer .point path, .heatmaplayer image").length,
        wide: div.querySelector(".main-svg")?.getBoundingClientRect().width, room: div.getBoundingClientRect().width,
      }))""")
    ids = {chart["id"] for chart in charts} - {""}
    assert ids == {
        *("chart-curves", "chart-rounds-to", "chart-bytes-to", "chart-domains", "chart-partition", "chart-heatmap"),
        *("chart-course", "chart-losses", "chart-seconds", "chart-bytes"),
    }
    # before and after for feddf and dafkd, the judge's line for the three seeds of dafkd, confusion on three domains
    assert sum(chart["id"] == "" for chart in charts) == 2 + 3 + 3
    for chart in charts:
        assert chart["traces"], chart
        assert chart["values"], chart
        assert chart["marks"], chart
        assert chart["wide"] == pytest.approx(chart["room"], abs=2), chart
    assert page.execute_script("return [...document.querySelectorAll('#gallery img')].every((i) => i.naturalWidth > 0)")
    assert len(page.find_elements("css selector", "#gallery img")) == 6
    assert "accuracy by prototype" in page.find_element("id", "absent").text


def table(page):
    return page.execute_script(
        "return [...document.querySelectorAll('#table tr')].map((r) => [...r.children].map((c) => c.textContent))"
    )


def test_the_table_has_the_numbers_of_the_summaries(page, comparison):
    head, *rows = table(page)
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        said = [json.loads(p.read_text()) for p in sorted((comparison / cells["method"]).glob("*/summary.json"))]
        final = [100 * s["final_accuracy"] for s in said]
        assert cells["accuracy %"] == f"{statistics.mean(final):.2f} ± {statistics.stdev(final):.2f}"
        best = [100 * s["best_accuracy"] for s in said]
        assert cells["best %"] == f"{statistics.mean(best):.2f} ± {statistics.stdev(best):.2f}"
        assert cells["MB"].startswith(f"{statistics.mean(s['bytes_total'] for s in said) / 1e6:.1f}")
    marked = page.execute_script("return [...document.querySelectorAll('#table td.best')].map((c) => c.textContent)")
    assert max((dict(zip(head, row, strict=True))["accuracy %"] for row in rows), key=lambda t: float(t[:5])) in marked


def test_the_curves_have_the_numbers_of_the_histories(page, comparison):
    drawn = page.execute_script(
        "return document.getElementById('chart-curves').data.map((t) => ({name: t.name, x: t.x, y: t.y}))"
    )
    for method in ("fedavg", "feddf", "dafkd"):
        histories = [p.read_text().splitlines() for p in sorted((comparison / method).glob("*/history.jsonl"))]
        accuracy = [[json.loads(line)["accuracy"] for line in lines] for lines in histories]
        each_round = list(zip(*accuracy, strict=True))
        curve = {t["name"]: t for t in drawn}
        assert curve[method]["x"] == list(range(1, 9))
        assert curve[method]["y"] == pytest.approx([statistics.mean(v) for v in each_round])
        upper = [statistics.mean(v) + statistics.stdev(v) for v in each_round]
        assert curve[f"{method}, upper edge"]["y"] == pytest.approx(upper)


def test_the_area_of_a_dot_is_the_number_of_samples(page, comparison):
    held = json.loads((comparison / "dafkd" / "seed0" / "clients.json").read_text())["clients"]
    counts = {(c["id"], str(k)): n for c in held for k, n in enumerate(c["counts"]) if n}
    dots = page.execute_script("""
      const div = document.getElementById("chart-partition");
      const dots = (group, { x, y, text }) =>
        [...group.querySelectorAll(".point")].map((p, i) => [x[i], y[i], text[i], p.getBBox().width]);
      return [...div.querySelectorAll(".scatterlayer .trace")].flatMap((group, t) => dots(group, div.data[t]))""")
    assert {(x, y): n for x, y, n, _ in dots} == counts
    most = max(dots, key=lambda dot: dot[2])
    for _, _, count, width in dots:
        assert (width / most[3]) ** 2 == pytest.approx(count / most[2], rel=0.05, abs=0.002)


def test_headings_sort_by_mouse_and_keyboard(page):
    def order():
        return [row[0] for row in table(page)[1:]]

    def heading(title):
        return page.find_element("css selector", f'#table button[data-column="{title}"]')

    heading("accuracy %").click()
    assert order() == ["dafkd", "feddf", "fedavg"], "the best first"
    heading("accuracy %").send_keys("\ue007")  # Enter; the focus survived the first
    assert order() == ["fedavg", "feddf", "dafkd"]
    assert heading("accuracy %").find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    heading("method").click()
    assert order() == ["dafkd", "fedavg", "feddf"]


def test_the_table_is_copied_as_it_is_sorted(page, comparison):
    page.execute_script("""
      window.copied = [];
      const clipboard = { writeText: async (text) => { copied.push(text); } };
      Object.defineProperty(navigator, "clipboard", { value: clipboard })""")
    rows = summarise(load_runs([comparison]))
    page.find_element("id", "copy-markdown").click()
    page.find_element("id", "copy-latex").click()
    wait(page, "return copied.length === 2")
    assert page.execute_script("return copied") == [markdown(rows), latex(rows)]
    page.find_element("css selector", '#table button[data-column="seconds"]').click()
    page.find_element("id", "copy-markdown").click()
    wait(page, "return copied.length === 3")
    lines = page.execute_script("return copied[2]").splitlines()
    assert lines[2].startswith("| fedavg"), "the least seconds first"
    assert sorted(lines) == sorted(markdown(rows).splitlines())


def test_methods_switch_on_and_off_everywhere(page):
    count = """
      const traces = (id) => document.getElementById(id).data.length;
      return [traces("chart-curves"), traces("chart-domains"),
        document.getElementById("chart-rounds-to").data[0].y.length,
        document.getElementById("chart-seconds").data[0].y.length,
        document.querySelectorAll("#distillation-facets .chart").length,
        document.querySelectorAll("#table tr.off").length]"""
    before = page.execute_script(count)
    assert before == [9, 3, 3, 3, 2, 0]
    chip = page.find_element("css selector", '#methods button[data-method="feddf"]')
    chip.send_keys(" ")
    assert page.execute_script(count) == [6, 2, 2, 2, 1, 1]
    chip = page.find_element("css selector", '#methods button[data-method="feddf"]')
    assert chip.get_attribute("aria-pressed") == "false"
    assert page.switch_to.active_element == chip, "the keyboard stays where it was"
    chip.click()
    assert page.execute_script(count) == before


def choose(page, id, value):
    page.execute_script(
        "const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('change'))",
        id,
        value,
    )


def test_curves_change_their_axes_and_show_each_seed(page, comparison):
    lines = [json.loads(x) for x in (comparison / "fedavg" / "seed0" / "history.jsonl").read_text().splitlines()]
    choose(page, "curves-x", "megabytes")
    choose(page, "curves-y", "domains/mnist")
    page.find_element("id", "curves-seeds").click()
    drawn = page.execute_script("return document.getElementById('chart-curves').data.map((t) => [t.name, t.x, t.y])")
    seed = next(t for t in drawn if t[0] == "fedavg, seed 0")
    assert seed[2] == [line["domains"]["mnist"] for line in lines]
    assert seed[1][-1] == pytest.approx(sum(line["bytes_down"] + line["bytes_up"] for line in lines) / 1e6)
    assert len(drawn) == 3 * (3 + 1)


def test_values_are_read_by_hovering_and_by_keyboard(page, comparison):
    from selenium.webdriver.common.action_chains import ActionChains

    chart = page.find_element("id", "chart-curves")
    text = "return [...document.querySelectorAll('#chart-curves .hoverlayer text')].map((t) => t.textContent).join(' ')"
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chart)
    ActionChains(page).move_to_element(chart).perform()
    assert wait(page, text).count("±") == 3
    chart.send_keys("\ue014" * 2)  # right arrow twice: the second round
    accuracy = [json.loads(p.read_text().splitlines()[1])["accuracy"] for p in (comparison / "fedavg").glob("*/history.jsonl")]
    wait(page, text.replace("return ", "return (") + f").includes('{100 * statistics.mean(accuracy):.2f}%')")


def test_the_numbers_of_a_chart_open_as_a_table(page):
    details = page.find_element("css selector", "#chart-domains + details.numbers")
    details.find_element("tag name", "summary").click()
    rows = wait(
        page,
        """const rows = [...document.querySelectorAll("#chart-domains + details table tr")];
        return rows.length && rows.map((r) => [...r.children].map((c) => c.textContent))""",
    )
    assert rows[0] == ["", "dafkd", "fedavg", "feddf"]
    assert [row[0] for row in rows[1:]] == ["mnist", "optdigits", "blended"]
    drawn = page.execute_script("return document.getElementById('chart-domains').data.map((t) => t.y[0])")
    assert [float(v) for v in rows[1][1:]] == pytest.approx(drawn, rel=1e-5)


def test_no_button_sends_a_chart_away(page):
    titles = page.execute_script(
        "return [...new Set([...document.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title))]"
    )
    assert len(titles) == 4
    assert not any(word in title.lower() for title in titles for word in ("cloud", "share", "edit", "link"))


def test_the_verdict_stands_on_top(page):
    box = page.find_element("id", "verdict")
    assert box.get_attribute("data-kind") == "winner"
    said = box.text
    assert said.startswith("Take dafkd:")
    for part in ("95 % interval", "3 seeds, paired", "as much as feddf", "The ensemble of dafkd is"):
        assert part in said
    assert box.location["y"] < page.find_element("id", "summary").location["y"]
    drawn = page.execute_script("return document.getElementById('chart-verdict').data.map((t) => [t.name, t.x, t.error_x.array])")
    assert [name for name, _, _ in drawn] == ["fedavg", "feddf"], "the next best on top"
    assert all(x[0] - half[0] > 0 for _, x, half in drawn)


def test_which_point_was_taken(page, comparison):
    lines = [json.loads(x)["line"] for x in (comparison / "dafkd" / "seed0" / "history.jsonl").read_text().splitlines()]
    chart = """[...document.querySelectorAll("#line-facets figure")].find((f) => f.dataset.key === "dafkd, seed 0")"""
    drawn = page.execute_script(f"return {chart}.querySelector('.chart').data")
    scores, carried, delivered = drawn
    assert scores["y"] == lines[0]["points"]
    gains = [100 * (line["scores"]["cnn"][2] - line["scores"]["cnn"][0]) for line in lines]
    assert scores["z"][2] == pytest.approx(gains)
    assert (carried["y"], delivered["y"]) == ([1.0] * 8, [0.5] * 8)
    text = page.execute_script(f"return {chart}.querySelector('p').textContent")
    assert "Judged by the clients" in text
    assert "Delivered: t = 0.50" in text
    assert "Carried on: t = 1.00" in text
    harm = page.execute_script("return [...document.querySelectorAll('#distillation-facets .harm')].length")
    assert harm == 0, "what is carried on is better than the average"
    assert not page.find_element("id", "distillation-harm").is_displayed(), "no word of orange where there is none"
    tops = "return [...document.querySelectorAll('#distillation-facets .chart')].map((c) => c.getBoundingClientRect().top)"
    assert len(set(page.execute_script(tops))) == 1, "charts side by side begin at the same height"


def test_what_is_taken_for_what(page, comparison):
    tables = [
        json.loads((comparison / "dafkd" / f"seed{s}" / "confusion.json").read_text())["domains"]["mnist"] for s in range(3)
    ]
    summed = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]
    chosen = page.execute_script("const s = document.getElementById('confusion-method'); return s.selectedOptions[0].textContent")
    assert chosen == "dafkd", "the leader's first"
    figure = """[...document.querySelectorAll("#confusion-facets figure")].find((f) => f.dataset.key === "mnist")"""
    text, z = page.execute_script(f"const {{ text, z }} = {figure}.querySelector('.chart').data[0]; return [text, z]")
    assert [[int(cell or 0) for cell in row] for row in text] == summed
    assert all((z[i][j] > 0) == (i == j) for i in range(10) for j in range(10) if summed[i][j])
    right = 100 * sum(summed[i][i] for i in range(10)) / sum(map(sum, summed))
    said = page.execute_script(f"return {figure}.querySelector('p').textContent")
    assert said.startswith(f"{right:.1f} % correct; most frequent error")


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Six domains and two prototypes; one system has failed, one weighs all alike, and one gains next to nothing."""
    folder = tmp_path_factory.mktemp("odd")
    for name in ("fedavg", "feddf", "fedd3a", "kdcl"):
        for seed in (0, 1, 2):
            run = write_run(folder / name / f"seed{seed}", name, seed, rounds=30)
            lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
            for line in lines:
                level = 0.02 if name == "kdcl" else 0.9 + 0.0005 * line["round"]
                line["accuracy"] = level
                line["merged_accuracy"] = level + 0.00001 if name == "feddf" else None
                line["ensemble_accuracy"] = None
                line["domains"] = {f"a domain {d}": max(level - 0.01 * d, 0.0) for d in range(6)}
                line["prototypes"] = {"resnet-8": level, "mobilenet": level}
                if name == "fedd3a":
                    line["statistics"] = {"bytes": 100, "coverage": {"site-0": 0.5, "site-1": 0.9}}
                if "weights" in line and name == "feddf":
                    line["weights"] = dict.fromkeys(line["weights"], 1 / 6)
                    line["weights_by_domain"] = dict.fromkeys(line["weights_by_domain"], line["weights"])
            (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            said = json.loads((run / "summary.json").read_text())
            changed = {"final_accuracy": lines[-1]["accuracy"], "best_accuracy": lines[-1]["accuracy"]}
            (run / "summary.json").write_text(json.dumps(said | changed))
    build_page([folder])
    return folder


def test_the_table_fits_where_there_is_room(browser, odd):
    screen(browser, 1400)
    visit(browser, (odd / "report.html").as_uri())
    size = "const t = document.getElementById('table'); return [t.offsetWidth, t.parentElement.clientWidth]"
    needed, room = browser.execute_script(size)
    assert len(table(browser)[0]) == 18
    assert needed <= room
    lines = "return [...document.querySelectorAll('#table tbody th span:last-child')].map((s) => s.getClientRects().length)"
    assert browser.execute_script(lines) == [1, 1, 1, 1], "names are not broken"


@pytest.mark.parametrize("level", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("rounds", [1, 3])
def test_equal_accuracies_have_an_axis_of_accuracies(browser, tmp_path, level, rounds):
    run = write_run(tmp_path / "run", "fedavg", 0, rounds=rounds)
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    history = [line | {"accuracy": level, "domains": dict.fromkeys(line["domains"], level)} for line in lines]
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    visit(browser, build_page([run]).as_uri())
    low, high = browser.execute_script("return document.getElementById('chart-curves')._fullLayout.yaxis.range")
    assert max(-0.001, level - 0.03) <= low <= level <= high <= min(1.001, level + 0.03)
    assert high - low >= 0.02


def test_an_outlier_does_not_squeeze_the_others(browser, odd):
    screen(browser, 1400)
    browser.get_log("browser")
    visit(browser, (odd / "report.html").as_uri())
    axis = "return document.getElementById('chart-curves')._fullLayout.yaxis.range"
    low, high = browser.execute_script(axis)
    assert 0.85 < low < 0.9005
    assert 0.915 <= high < 1
    assert "kdcl" in browser.find_element("id", "curves-beyond").text
    browser.find_element("id", "curves-full").click()
    low, high = browser.execute_script(axis)
    assert low < 0.02
    assert browser.find_element("id", "curves-beyond").text == ""
    ahead = "return document.getElementById('chart-verdict').data.map((t) => [t.name, t.x[0], t.text[0]])"
    assert browser.execute_script(ahead)[0] == ["kdcl", 1, "+89.50"], "an arrow at the edge"
    assert browser.get_log("browser") == []


def test_no_switch_where_nothing_is_cut(page):
    assert not page.find_element("id", "curves-full").is_displayed()
    assert page.find_element("id", "curves-beyond").text == ""


def test_whose_knowledge_opens_on_a_system_that_weighs(browser, odd):
    screen(browser)
    visit(browser, (odd / "report.html").as_uri())
    chosen = "return document.getElementById('weights-run').selectedOptions[0].textContent"
    assert browser.execute_script(chosen) == "fedd3a, seed 0"
    assert browser.find_element("id", "weights-note").text == ""
    place = browser.execute_script(
        "return [...document.getElementById('weights-run').options].find((o) => o.textContent === 'feddf, seed 1').value"
    )
    choose(browser, "weights-run", place)
    assert browser.find_element("id", "weights-note").text == "Every client counts the same in this run."


def test_zero_has_no_minus_and_virtual_features_are_told_of(browser, odd):
    screen(browser)
    visit(browser, (odd / "report.html").as_uri())
    covered = browser.find_element("id", "coverage-table").text.split("\n")
    assert covered == ["client fedd3a", "site-0 50 %", "site-1 90 %", "mean 70 %"]
    text = browser.execute_script("return document.body.innerText")
    assert "0.00 points per round" in text
    for minus in "-−":
        assert f"{minus}0.00" not in text


def test_real_and_virtual_features_have_one_colour_a_domain_and_two_marks(browser, tmp_path):
    screen(browser)
    write_run(tmp_path / "a", "fedvirtual")
    write_run(tmp_path / "b", "feddf")
    browser.get_log("browser")
    visit(browser, build_page([tmp_path]).as_uri())
    looks = (
        "return document.getElementById('chart-features').data.map((t) => [t.name, t.marker.color, t.marker.symbol, t.x.length])"
    )
    found = browser.execute_script(looks)
    assert [name.split(", ")[1] for name, *_ in found] == ["real", "virtual"] * 3
    assert len({colour for _, colour, *_ in found}) == 3
    assert [(mark, n) for *_, mark, n in found] == [("circle", 40), ("x-thin-open", 40)] * 3
    assert "41 % of their variance" in browser.find_element("id", "features-box").text
    assert not browser.find_element("id", "coverage-table").is_displayed(), "no site told its coverage"
    assert browser.get_log("browser") == []


def test_pictures_of_noise_are_called_so(page):
    told = [p.text for p in page.find_elements("css selector", "#gallery .wrong")]
    assert len(told) == 6
    assert all(text.startswith("Noise (neighbouring pixels correlate by 0.0") for text in told)
    assert "correlation below 0.35" in page.find_element("id", "images-decided").text


def test_the_charts_follow_the_reader_from_light_to_dark(page):
    look = """
      const chart = document.getElementById("chart-curves");
      return [getComputedStyle(document.body).backgroundColor, chart.layout.font.color, chart.data.at(-1).line.color,
        document.querySelector("#table .swatch").style.background]"""
    light = page.execute_script(look)
    screen(page, scheme="dark")
    wait(page, "return document.getElementById('chart-curves').layout.font.color === '#e6eaf0'")
    assert all(a != b for a, b in zip(light, page.execute_script(look), strict=True))
    assert page.get_log("browser") == []


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("desktop", 1280, "light"), ("phone", 390, "light"), ("desktop-dark", 1280, "dark")]
)
def test_screens(browser, comparison, tmp_path, name, width, scheme):
    screen(browser, width, scheme=scheme)
    visit(browser, (comparison / "report.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width, "nothing sticks out"
    back, ink = browser.execute_script(
        "const chart = document.getElementById('chart-curves');"
        "return [getComputedStyle(document.body).backgroundColor, chart.layout.font.color]"
    )
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")
    assert (int(ink[1:3], 16) < 128) == (scheme == "light")
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
    folder = Path(os.environ.get("FEDSTILL_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"report-{name}.png"
    picture.write_bytes(base64.b64decode(shot["data"]))
    assert picture.stat().st_size > 50_000


def test_it_prints_light_and_within_the_sheet(browser, comparison):
    screen(browser, 1280, scheme="dark")
    visit(browser, (comparison / "report.html").as_uri())
    browser.execute_script("""
      addEventListener("beforeprint", () => {
        const charts = [...document.querySelectorAll("section:not([hidden]) .chart")];
        window.printed = charts.map((div) => ({ ink: div.layout.font.color, wide: div._fullLayout.width }));
      })""")
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    assert base64.b64decode(pdf["data"]).startswith(b"%PDF")
    printed = wait(browser, "return window.printed")
    assert len(printed) == 19
    assert all(int(chart["ink"][1:3], 16) < 128 and chart["wide"] <= 700 for chart in printed)
    assert browser.execute_script("return !document.documentElement.classList.contains('printing')")


def test_damaged_and_interrupted_runs_say_what_is_missing(browser, tmp_path):
    write_run(tmp_path / "whole", "feddf", rounds=6)
    cut = write_run(tmp_path / "cut", "dafkd", rounds=6)
    (cut / "summary.json").unlink()
    text = (cut / "history.jsonl").read_text()
    (cut / "history.jsonl").write_text(text[: len(text) // 2])
    (cut / "clients.json").write_text("{")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.toml").write_text('rounds = 4\n[algorithm]\nname = "kdcl"\n')
    screen(browser)
    browser.get_log("browser")
    visit(browser, build_page([tmp_path]).as_uri())
    assert browser.get_log("browser") == []
    told = browser.find_element("id", "problems").text
    for part in (
        "dafkd",
        "summary.json is missing",
        "damaged line",
        "clients.json is damaged",
        "kdcl",
        "history.jsonl is missing",
    ):
        assert part in told
    assert "feddf" not in told
    assert browser.find_element("css selector", "#chart-curves .main-svg")


def test_a_run_with_nothing_yet_still_gives_a_page(browser, tmp_path):
    (tmp_path / "history.jsonl").write_text("")
    browser.get_log("browser")
    visit(browser, build_page([tmp_path]).as_uri())
    assert browser.get_log("browser") == []
    assert "no accuracy recorded yet" in browser.find_element("id", "lead").text
    assert "history.jsonl has no round yet" in browser.find_element("id", "problems").text


def test_live_follows_a_run_and_keeps_what_was_switched(browser, tmp_path):
    write_run(tmp_path / "a", "feddf", rounds=4)
    growing = write_run(tmp_path / "b", "dafkd", rounds=6)
    (growing / "summary.json").unlink()
    lines = (growing / "history.jsonl").read_text().splitlines(keepends=True)
    (growing / "history.jsonl").write_text("".join(lines[:3]))
    server = live_server([tmp_path])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        screen(browser)
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        visit(browser, f"http://127.0.0.1:{server.server_port}/")
        wait(browser, "return document.getElementById('live').textContent.includes('dafkd, seed 0: round 3 of 6')")
        browser.find_element("css selector", '#methods button[data-method="feddf"]').click()
        choose(browser, "curves-y", "domains/mnist")
        (growing / "history.jsonl").write_text("".join(lines[:5]))
        curve = "document.getElementById('chart-curves').data"
        wait(browser, f"return {curve}.length === 1 && {curve}[0].y.length === 5")
        said = [json.loads(line)["domains"]["mnist"] for line in lines[:5]]
        assert browser.execute_script(f"return {curve}[0].y") == said
        assert browser.get_log("browser") == []
        assert {url.split("/")[2] for url in requested(browser) if url.startswith("http")} == {f"127.0.0.1:{server.server_port}"}
        browser.get("about:blank")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
