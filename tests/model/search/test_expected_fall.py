"""What measurements are expected to buy."""

import numpy as np

from kernrec.model.search import expected_fall


def test_outcomes_are_quantiles_of_the_errors_distribution() -> None:
    drawn = np.random.default_rng(0).standard_t(expected_fall.DEGREES, 200_000)
    outcomes = expected_fall._outcomes()
    expected = np.quantile(drawn, (np.arange(len(outcomes)) + 0.5) / len(outcomes))
    np.testing.assert_allclose(outcomes, expected, atol=0.06)
