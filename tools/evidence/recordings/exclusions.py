"""One list of the recorded rows and powers that are neither shipped nor learned from.

`tools/build_recorded.py` and the readers in `tools/evidence/recordings` both ask here. Rows that a recording's times
contradict one by one are not listed: `kernrec.model.vendor.limits` finds these.
"""

from dataclasses import dataclass

from evidence.recordings.power import MISREAD_M, SHORT_S

_ANOTHER = "more than a hundredth of the rows take less than half of the time that their arithmetic needs"
_H200 = f"m IN {MISREAD_M} OR (m > 256 AND latency_s < {SHORT_S})"
_H200_REASON = "about half of the power of rows with m - 1 and m + 1"


@dataclass(frozen=True)
class Exclusion:
    """Rows of a file that are left out, or only their power."""

    file: str
    """Stem of a Parquet file in `library`."""
    rows: str
    """Condition in SQL."""
    reason: str
    power_only: bool = False


_SETTLED_S = 5e-4
_UNSETTLED = (
    "the meter has not settled: where DRAM is as busy, power rises with the time of one launch (H200, decoding: 302 W "
    "at 64 to 128 us, 497 W at 256 to 512 us, 569 W from 1 ms on)"
)

EXCLUSIONS = (
    Exclusion("serving_attention_prefill", "system = 'l40s' AND kernel_source = 'flash_attention'", _ANOTHER),
    Exclusion("serving_attention_decode", "system = 'l40s' AND kernel_source = 'flash_attention'", _ANOTHER),
    Exclusion("serving_attention_prefill", "system = 'b200_sxm' AND framework = 'SGLang'", _ANOTHER),
    Exclusion("torch_rowwise_f32", "device LIKE '%P100%'", "the host takes 1.7 times as long for a call as others do"),
    Exclusion("serving_gemm", f"system = 'h200_sxm' AND ({_H200})", _H200_REASON, power_only=True),
    Exclusion("gemm_h200_power", _H200, _H200_REASON, power_only=True),
    Exclusion(
        "serving_gemm", f"framework = 'VLLM' AND system <> 'h200_sxm' AND latency_s < {SHORT_S}",
        "neighbors of the same time differ by a factor of three (n = 2,560, k = 10,240: 272 W at m = 96, 925 W at 129)",
        power_only=True,
    ),
    *(
        Exclusion(file, f"latency_s < {_SETTLED_S}", _UNSETTLED, power_only=True)
        for file in (
            "serving_attention_prefill", "serving_attention_decode", "attention_prefill_h200_power",
            "attention_decode_h200_power",
        )
    ),
)  # fmt: skip
"""Some recordings timed another problem: FlashAttention on an L40S takes down to a four hundredth of the arithmetic's
time, SGLang's prompts on a B200 a tenth, others fifty times too long."""


def excluded(file: str, power_only: bool = False) -> str:
    """Return the condition in SQL of the rows of a file that are left out, or of those whose power is."""
    conditions = [each.rows for each in EXCLUSIONS if (each.file, each.power_only) == (file, power_only)]
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def power_of(file: str, column: str = "power_w") -> str:
    """Return an expression in SQL: the power of a row, NULL if it is left out."""
    return f"CASE WHEN {excluded(file, power_only=True)} THEN NULL ELSE {column} END"
