from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import Subset
from structgrad.suites import measure
from structgrad.suites.base import COLUMNS
from structgrad.suites.measures.measurement import FRAME_COLUMNS, Measurement
from structgrad.suites.statistics.interval import Interval


@pytest.fixture(scope="module")
def found() -> Measurement:
    scores = torch.tensor([1.0, 0.5, -0.5, 0.0, 2.0], dtype=torch.float64)

    def product(z: torch.Tensor) -> torch.Tensor:
        return z[..., 0] * z[..., 1] * 2 + z[..., 2]

    return measure(make_estimator("rloo[num_samples=3]"), Subset(2), product, scores)


def test_a_measurement_names_what_was_measured(found: Measurement) -> None:
    text = found._repr_html_()
    for word in ("rloo[num_samples=3]", "subset[k=2]", "product", "n=5", "10 structures", "unbiased-exact", "relative MSE"):
        assert word in text
    assert repr(found).startswith("<Measurement of rloo[num_samples=3] on subset[k=2]: relative bias 0, ")
    assert len(repr(found)) < 200


def test_intervals_and_replicates_are_shown(found: Measurement) -> None:
    sampled = replace(found, tier="mc", replicates=4096, sampling="budget", metrics={"relative_bias": Interval(0.5, 0.4, 0.625, "t")})
    assert "0.500 [0.400, 0.625]" in sampled._repr_html_()
    assert "4096 replicates (budget)" in sampled._repr_html_()


def test_the_frame_of_a_measurement(found: Measurement) -> None:
    frame = found.frame
    assert list(frame.columns) == list(FRAME_COLUMNS)
    assert dict(frame.dtypes.astype(str)) == {name: COLUMNS[name] for name in FRAME_COLUMNS}
    assert frame["metric"].tolist() == list(found.metrics)
    one = frame.set_index("metric").loc["gradient_nonzeros"]
    assert (one["unit"], one["estimator"], one["reference"]) == ("count", "rloo[num_samples=3]", "")
    assert one["value"] == found.metrics["gradient_nonzeros"].value
    assert one["log_count"] == pytest.approx(math.log(10))
    assert frame["low"].isna().all()
