"""Messages for names that nobody knows."""

from kernrec.errors import UsageError, nearest, unknown


def test_the_nearest_name_ignores_case_and_separators() -> None:
    assert nearest("RTX-40 90", ["rtx3090", "rtx4090", "a100"])[0] == "rtx4090"


def test_a_beginning_of_a_name_is_enough() -> None:
    assert nearest("transp", ["matmul", "transpose"]) == ["transpose"]


def test_few_known_names_are_listed_when_none_is_near() -> None:
    error = unknown("objective", "zzz", ["latency", "energy"])
    assert isinstance(error, UsageError)
    assert error.exit_status == 2
    assert str(error) == "unknown objective 'zzz'; known: latency, energy"


def test_the_command_that_lists_them_is_named() -> None:
    assert "`kernrec gpus`" in str(unknown("GPU", "rtx4091", ["rtx4090"], see="kernrec gpus"))
