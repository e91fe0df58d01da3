"""Test the fit of counts as a linear function of blocks and trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.profile.launch_profile import ProfileError, fit_profile

PROBES = [{"block": 1, "trips": 4}, {"block": 1, "trips": 6}, {"block": 2, "trips": 9}]


@given(
    st.dictionaries(
        st.sampled_from(["issue", "barriers", "lanes"]), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))
    )
)
def test_linear_counts_are_fitted_exactly(truth):
    counts = [{m: a * p["block"] + b * p["trips"] for m, (a, b) in truth.items()} for p in PROBES]
    profile = fit_profile(PROBES, counts)
    for metric, (a, b) in truth.items():
        assert profile.counts({"block": 7, "trips": 1000})[metric] == 7 * a + 1000 * b


def test_nonlinear_metric_is_refused_by_name():
    counts = [{"issue": p["trips"] ** 2, "barriers": 1} for p in PROBES]
    with pytest.raises(ProfileError, match="issue is not linear in block, trips"):
        fit_profile(PROBES, counts)
