"""Test the page in a browser: clicks, keys, colors and an empty console. Needs Playwright and Chromium."""

import os
import re
import shutil
import threading
from typing import Any

import pytest

from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.op import find_op
from kernrec.page.answers import Answers
from kernrec.page.document import report
from kernrec.page.front import Subject
from kernrec.page.server import PageServer
from kernrec.recommender import Recommender
from tests.helpers.recording import make_measured_database

pytest.importorskip("bokeh", reason="needs the extra page")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")]

PROBLEM = find_op("matmul").problem("f32", None, m=256, n=512, k=256)
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        arguments = ["--disable-gpu", "--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        opened = started.chromium.launch(executable_path=BROWSER, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """Open a new page. Fail the test if the console shows a message."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    opened.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("requestfailed", lambda request: complaints.append(request.url))
    yield opened
    context.close()
    assert [text for text in complaints if "status of 400" not in text] == []


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "measured.duckdb"
    make_measured_database(path, problems=1, configs=12)
    chosen = {"gpus": ["rtx4090", "l40s"], "problem": Subject(PROBLEM).parameters, "view": "front"}
    recommender = Recommender(databases=[path])
    server = PageServer(Answers(recommender, kernel=find_kernel("matmul_simt")), 0, chosen)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.url
    server.shutdown()
    thread.join()
    server.server_close()


def drawn(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("body[data-drawn]")


def test_page_shows_pareto_fronts_of_two_gpus_side_by_side(page, url):
    drawn(page, url)
    assert page.locator(".panel h2").all_inner_texts() == ["NVIDIA GeForce RTX 4090", "NVIDIA L40S"]
    legends = page.locator(".legend").all_inner_texts()
    assert ["measured (12)" in legends[0], "measured (0)" in legends[1]] == [True, True]
    assert page.locator(".plot canvas").count() >= 2
    sources = page.evaluate("""() => {
        const { front } = kernrec.shown[0];
        return Object.keys(front.measured).map((n) => kernrec.describe(front, Number(n)).source);
    }""")
    assert len(sources) == 12
    assert all("measured" in source for source in sources), sources


def test_clicked_point_is_explained_and_its_command_copied(page, url):
    drawn(page, url)
    place = page.evaluate("""() => {
        const { plot, front } = kernrec.shown[0], number = front.front[0];
        const view = Bokeh.index.find_one(plot);
        const { x, y } = kernrec.shown[0].place(number);
        const box = view.el.getBoundingClientRect(), frame = view.frame;
        return [box.left + frame.x_scale.compute(x), box.top + frame.y_scale.compute(y)];
    }""")
    page.mouse.move(*place)
    page.mouse.click(*place)
    page.wait_for_selector("#explanation[data-drawn]")
    text = page.inner_text("#explanation")
    assert "Bottleneck:" in text
    assert "What to do:" in text
    assert "Energy by component" in text
    assert "Roofline" in text
    page.locator("#explanation .copy").first.click()
    page.wait_for_function("() => /copied|selected/.test(document.querySelector('#explanation .copy').textContent)")
    assert re.match(
        r"kernrec explain --kernel \S+ --gpu rtx4090 ", page.locator("#explanation code").nth(1).inner_text()
    )


def test_arrow_keys_move_along_the_front_and_explain_points(page, url):
    drawn(page, url)
    page.locator(".panel .plot").first.focus()
    page.keyboard.press("End")
    status = page.inner_text("#status")
    assert re.match(r"Point (\d+) of \1: ", status)
    page.keyboard.press("Enter")
    page.wait_for_selector("#explanation[data-drawn]")
    assert page.evaluate("document.activeElement.id") == "explanation"


def test_new_shape_updates_the_front_and_a_wrong_shape_shows_an_error(page, url):
    drawn(page, url)
    page.fill("#dims input[name=m]", "512")
    page.wait_for_function("() => document.querySelector('.panel caption')?.textContent.includes('m=512')")
    page.fill("#dims input[name=m]", "zero")
    page.wait_for_selector("#status.error")
    assert "whole number" in page.inner_text("#status")
    page.fill("#add-gpu", "h2000")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#status').textContent.includes('no GPU')")


def test_network_view_marks_two_rows_with_the_best_power_limit(page, url):
    drawn(page, url)
    page.locator("#tab-front").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#view-network[data-drawn]")
    assert page.locator("#view-network tr.knee").count() == 2


def test_every_control_has_a_label_and_every_plot_a_table(page, url):
    drawn(page, url)
    nameless = page.evaluate("""() => [...document.querySelectorAll('button, input, select, [role]')].filter(
        (e) => !e.closest('[hidden]') && !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
            || e.labels?.length || e.textContent.trim() || e.getAttribute('role') === 'status')).length""")
    assert nameless == 0
    for panel in page.locator(".panel").all():
        assert panel.locator("table caption").count() >= 1
        panel.locator("details:not(.codes) summary").click()
        panel.locator("details table").wait_for()


def test_narrow_window_scrolls_tables_but_not_the_page(page, url):
    page.set_viewport_size({"width": 400, "height": 800})
    drawn(page, url)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    config, energy = (page.locator(f".panel td:nth-child({column})").first.bounding_box() for column in (1, 3))
    assert 0 <= config["x"] < energy["x"] + energy["width"] <= 400  # the main figures are visible without scrolling


def test_report_works_from_a_file(page, tmp_path):
    gpus = [find_gpu("rtx4090"), find_gpu("t4")]
    text, _ = report(Answers(Recommender(databases=[]), None, 300), gpus, [Subject(PROBLEM)], "bert-base")
    file = tmp_path / "out.html"
    file.write_text(text, encoding="utf-8")
    drawn(page, file.as_uri())
    page.locator(".panel table button").first.click()
    page.wait_for_selector("#explanation[data-drawn]")
    page.click("#tab-network")
    page.wait_for_selector("#view-network[data-drawn]")


def test_power_limit_removes_points_from_the_pareto_fronts(page, url):
    drawn(page, url)
    page.select_option("#objective", "energy")
    page.select_option("#limit", "default")
    page.wait_for_function("() => document.querySelector('.panel tbody') && kernrec.shown[0]?.chosen != null")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.panel tbody tr')].every((row) => row.textContent.includes('default'))"
    )
    labels = page.evaluate("() => kernrec.shown[0].plot.below[0].ticker.ticks.length")
    assert labels >= 4
