"""The cost of the page: the answer to a change of shape, the size of a report, and panning 10,000 points.

Answers are timed by the processor, as the server gives them, each for a shape that was not asked before: a front alone
and as JSON. Panning needs `playwright` and a Chromium of the system, which draws without a GPU here: the processor time
of the page's main thread for each move of the pointer, and the time between two frames; beside them an empty plot,
which is what the browser itself and the plotting library take. A card draws faster.
"""

import json
import os
import shutil
import sys
import threading
from typing import Any

from kernrec.gpu import find_gpus
from kernrec.op import find_op
from kernrec.op.workload import default_workload, workload
from kernrec.page.answers import Answers
from kernrec.page.report import MOST_BYTES, points_of_each, report
from kernrec.page.server import PageServer
from kernrec.page.subject import Subject
from kernrec.recommender import Recommender

from .timing import at_rank, spent

AIM_MS = 100.0
POINTS = 10_000

# A front with as many points as one answer may have: those of a real one, moved about by up to 30 %.
_GROW = """async ([count, empty]) => {
    const front = structuredClone(kernrec.shown[0].front), have = front.points.latency_s.length;
    for (const [name, column] of Object.entries(front.points)) {
        front.points[name] = Array.from({ length: count }, (_, i) => {
            const moved = /_(s|j|w)$/.test(name) ? 1 + 0.3 * ((i * 7919 + name.length * 31) % 997) / 997 : 1;
            return column[i % have] * moved;
        });
    }
    front.measured = {};
    const onDrawn = (n) => { window.drawn = n; };
    const hooks = { describe: (n) => kernrec.describe(front, n), onPick: () => {}, onDrawn };
    const start = performance.now();
    const made = await kernrec.drawFront(document.querySelector(".plot"), front, kernrec.scales([front]), hooks);
    if (empty) made.plot.renderers = [];
    return performance.now() - start;
}"""
_FRAMES = """() => { window.frames_ms = []; let last = performance.now(); (function tick() {
    requestAnimationFrame((now) => { frames_ms.push(now - last); last = now; tick(); }); })(); }"""


def run(gpus: str = "h200,rtx4090", moves: int = 40) -> int:
    """Print the figures of GPUs side by side and of so many moves of the pointer; 1 where one is above its aim."""
    answers, cards = Answers(Recommender(databases=[])), find_gpus(gpus)
    slow = False
    for op, dtype, grown in (("matmul", "f16", "m"), ("conv2d", "f16", "h"), ("attention", "f16", "keys")):
        milliseconds = change_of_shape(answers, cards[0].name, op, dtype, grown)
        slow |= milliseconds > AIM_MS
        print(f"change of shape, {op} on {cards[0].name}: {milliseconds:.0f} ms (median of 7; aim {AIM_MS:g} ms)")
    network = workload("llama-3-8b-decode")
    layers = [Subject(problem) for problem in dict.fromkeys(layer.problem for layer in network.layers)]
    few = Answers(Recommender(databases=[]), None, points_of_each(len(layers) * len(cards)))
    text, missing = report(few, cards, layers, network.name)
    size = len(text.encode())
    print(
        f"report of {network.name}: {size / 1e6:.2f} MB, {len(layers)} problems on {len(cards)} GPUs,"
        f" {len(missing)} without an answer (aim {MOST_BYTES / 1e6:g} MB)"
    )
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser = None
    if browser is None:
        print("panning needs playwright and a Chromium of the system: left out", file=sys.stderr)
        return int(slow or size > MOST_BYTES)
    with sync_playwright() as started:
        arguments = ["--disable-gpu", "--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        opened = started.chromium.launch(executable_path=browser, args=arguments)
        panning(opened, answers, cards[0].name, moves)
        opened.close()
    return int(slow or size > MOST_BYTES)


def change_of_shape(answers: Answers, gpu: str, op: str, dtype: str, grown: str) -> float:
    """Processor time of a front's answer as JSON (ms), the median of 7 shapes that were not asked before."""
    definition = find_op(op)
    dims = default_workload(definition).layers_of(op)[0].problem.dim
    times = []
    for number in range(8):
        problem = definition.problem(dtype, None, **dims | {grown: dims[grown] + 8 * number})
        parameters = {"gpu": gpu, **Subject(problem).parameters}
        times.append(spent(lambda: json.dumps(answers.answer("front", parameters), separators=(",", ":"))))  # noqa: B023
    return at_rank(times[1:]).cpu * 1e3  # the first reads profiles, too


def panning(browser: Any, answers: Answers, gpu: str, moves: int) -> None:
    """Prints what moving a plot of many points takes, and what an empty one does."""
    problem = find_op("matmul").problem("f16", None, m=4096, n=4096, k=4096)
    server = PageServer(answers, 0, {"gpus": [gpu], "problem": Subject(problem).parameters, "view": "front"})
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    for count, empty in ((POINTS, False), (POINTS // 10, False), (POINTS, True)):
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.set_default_timeout(120_000)
        page.goto(server.url)
        page.wait_for_selector("body[data-drawn]")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def busy_s(session: Any = session) -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")

        draw_ms = page.evaluate(_GROW, [count, empty])
        page.wait_for_timeout(500)
        box = page.locator(".plot canvas").first.bounding_box()
        x, y = box["x"] + 200, box["y"] + 150
        page.mouse.move(x, y)
        page.mouse.down()
        page.evaluate(_FRAMES)
        start = busy_s()
        for number in range(moves):
            page.mouse.move(x + 4 * number, y + 2 * number)
        used = (busy_s() - start) / moves * 1e3
        frames = sorted(page.evaluate("frames_ms"))
        page.mouse.up()
        what = "an empty plot" if empty else f"{count} points ({page.evaluate('drawn')} drawn)"
        print(
            f"panning {what}: {used:.0f} ms of the main thread a move, {frames[len(frames) // 2]:.0f} ms between frames"
            f" (median; worst {frames[-1]:.0f} ms); drawn at first in {draw_ms:.0f} ms"
        )
        page.close()
    server.shutdown()
    server.server_close()
