"""Test that a report is one file that works offline and answers its reader's questions."""

import json
import re

import pytest

from kernrec.gpu import find_gpu
from kernrec.interop.workload_files import find_workload
from kernrec.op import find_op
from kernrec.page import document as reports
from kernrec.page.answers import Answers
from kernrec.page.front import Subject
from kernrec.recommender import Recommender
from tests.helpers.command import run_apart, run_here
from tests.helpers.models import LLAMA_3_8B
from tests.helpers.needs import needs
from tests.helpers.serving import written

pytestmark = needs("bokeh")

PROBLEM = find_op("matmul").problem("f32", None, m=256, n=512, k=256)
GPUS = [find_gpu("rtx4090"), find_gpu("t4")]


@pytest.fixture(scope="module")
def text():
    made, missing = reports.report(Answers(Recommender(databases=[]), None, 300), GPUS, [Subject(PROBLEM)], "bert-base")
    assert missing == []
    return made


def data_of(text: str) -> dict:
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert inside is not None
    return json.loads(inside[1])


def test_report_loads_no_external_files(text):
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "default-src 'none'" in own
    assert not re.findall(r"<(?:script|img|iframe)[^>]*\bsrc=|<link[^>]*href=\"(?!data:)", own)
    assert "<!--" not in own


def test_report_has_every_front_with_explanations(text):
    data = data_of(text)
    answers = data["answers"]
    fronts = {name: answer for name, answer in answers.items() if name.startswith("front?")}
    assert len(fronts) == len(GPUS)
    explained = [answer for name, answer in answers.items() if name.startswith("explain?")]
    assert len(explained) == sum(len(front["front"]) for front in fronts.values())
    assert len([name for name in answers if name.startswith("network?")]) == len(GPUS)


def test_answer_text_cannot_close_a_script_tag():
    from kernrec.page.document import offline_document

    hostile = {"note": "</script><script>alert(1)</script><!--scripts-->"}
    made = offline_document(hostile)
    assert data_of(made) == hostile
    assert "alert(1)</script>" not in made


def test_command_writes_the_report_and_reports_errors(tmp_path):
    target = tmp_path / "out.html"
    shape = ["--op", "matmul", "--shape", "m=64,n=64,k=64"]
    done = run_apart("explore", "--gpu", "rtx4090", *shape, "--output", str(target))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\S+: \d\.\d MB, 1 problem on 1 GPU\n", done.stdout)
    assert data_of(target.read_text(encoding="utf-8"))["mode"] == "report"


def test_command_selects_the_backend_of_a_report(tmp_path):
    target = tmp_path / "out.html"
    question = ["explore", "--workload", "bert-base", "--gpu", "h100", "--output", str(target)]
    assert run_here(*question, "--backend", "sglang").returncode == 0
    answers = data_of(target.read_text(encoding="utf-8"))["answers"]
    (shown,) = [answer for name, answer in answers.items() if name.startswith("network?")]
    assert shown["headline"] == "SGLang today"


def test_model_report_shows_backend_totals_and_gpus_with_too_little_memory(tmp_path):
    model = find_workload(str(written(tmp_path / "Llama-3-8B", LLAMA_3_8B)), None, 4096)
    answers = Answers(Recommender(databases=[]), model, 300, backend=["vllm"])
    text, missing = reports.report(answers, [find_gpu("l40s"), find_gpu("rtx4060")], [], model.name)
    networks = {name: answer for name, answer in data_of(text)["answers"].items() if name.startswith("network?")}
    (shown,) = [answer for answer in networks.values() if "error" not in answer]
    assert shown["headline"] == "vLLM today"
    assert shown["sweep"][0]["name"] == "vLLM today"
    assert {layer["kernel"].partition(" ")[0] for layer in shown["layers"] if layer["worth_it"] is False} == {"vLLM"}
    assert len(missing) == 1
    assert "does not fit" in missing[0]
