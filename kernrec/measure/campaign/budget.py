"""Whether a budget suffices for anything, asked before a campaign begins."""

from kernrec.errors import UsageError
from kernrec.measure.campaign.results import CampaignBudget
from kernrec.measure.protocol import measure_config


def check_budget(budget: CampaignBudget, with_energy: bool) -> None:
    """Raises `UsageError` for a time that is shorter than one measurement, of latency or of energy, too."""
    least_s = measure_config.LATENCY_CAP_S
    if with_energy:
        least_s += measure_config.SETTLE_S + min(coarse for coarse, _ in measure_config.WINDOWS_S.values())
    if budget.seconds is not None and budget.seconds < least_s:
        raise UsageError(
            f"a budget of {budget.seconds:.3g} s is shorter than one measurement, which takes up to {least_s:.3g} s;"
            " give more, or a number such as 20configs"
        )
