"""Test that long lines wrap between words on a terminal and in a pipe, and that a log note stays on one line."""

import io

from kernrec.cli.format import print_line, print_notes

TEXT = "  time: latency 3.42 ms, issue 3.42 ms, fma 2.12 ms"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_wide_line_wraps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    narrow, pipe = Terminal(), io.StringIO()
    print_line(TEXT, narrow)
    print_line(TEXT, pipe)
    lines = narrow.getvalue().splitlines()
    assert max(map(len, lines)) <= 30
    assert [line[: len(line) - len(line.lstrip())] for line in lines] == ["  ", *["      "] * (len(lines) - 1)]
    assert not any(line.lstrip().startswith("ms") for line in lines)  # a unit stays next to its number
    assert " ".join(narrow.getvalue().split()) == " ".join(TEXT.split())
    assert pipe.getvalue() == narrow.getvalue()


def test_wide_problem_wraps_after_a_comma(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_line(
        "  attention_mma attention[batch=1,heads=32,queries=2048,keys=2048]f16,bhsd on Tesla T4", narrow := Terminal()
    )
    first, *below = narrow.getvalue().splitlines()
    assert first == "  attention_mma"
    assert [line.strip() for line in below] == [
        "attention[batch=1,heads=32,",
        "queries=2048,keys=2048]f16,bhsd on",
        "Tesla T4",
    ]


def test_note_is_one_line_in_a_log(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    print_notes([TEXT.strip()])
    assert log.getvalue() == f"note: {TEXT.strip()}\n"
