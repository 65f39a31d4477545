"""What makes the policy that acts older, by planted ages."""

from __future__ import annotations

import pandas as pd
import pytest

from planted_actorq import make_records
from quarl_nb.report.actorq.age_rules import lower_spi_fresher, rare_pulls_staler

TASK = ["Cartpole Balance"]


def aged(spi: float, age: float, seeds: range = range(3), **options: object) -> pd.DataFrame:
    return of_age(age, make_records(
        TASK, ["int8/onnxruntime"], seeds, samples_per_insert=spi, **options))  # fmt: skip


def of_age(age: float, frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(age_mean=[age * (1 + 0.01 * seed) for seed in frame["seed"]])


@pytest.mark.parametrize(("at_most", "verdict"), [
    (40.0, "reproduced"), (2.02, "inconclusive"), (1.0, "not reproduced"),
])  # fmt: skip
def test_the_policy_is_older_at_more_samples_per_insert(at_most: float, verdict: str) -> None:
    frame = pd.concat([aged(0.1, 2.0), aged(1.0, 99.0), aged(4.0, at_most)], ignore_index=True)
    found = lower_spi_fresher(frame)
    assert found.verdict == verdict and "in 1 setting of 1 task" in found.measured
    assert found.interval.value == pytest.approx(at_most / 2)
    assert set(found.keys) == set(frame["key"][frame["samples_per_insert"] != 1.0])


def test_every_setting_has_to_and_settings_are_not_mixed() -> None:
    wide = pd.concat([aged(0.1, 2.0), aged(4.0, 40.0)])
    narrow = pd.concat([aged(0.1, 2.0, width=64), aged(4.0, 1.0, width=64)])
    found = lower_spi_fresher(pd.concat([wide, narrow], ignore_index=True))
    assert found.verdict == "not reproduced" and "0.5 to 20 times" in found.measured
    apart = pd.concat([aged(0.1, 2.0), aged(4.0, 40.0, width=64)])
    assert lower_spi_fresher(apart).verdict == "not measured"


def test_too_few_runs_and_smoke_decide_nothing() -> None:
    two = pd.concat([aged(0.1, 2.0, range(2)), aged(4.0, 40.0, range(2))])
    found = lower_spi_fresher(two)
    assert found.verdict == "inconclusive"
    assert "as few as 2 runs of a kind, where 3 decide" in found.measured
    three = pd.concat([aged(0.1, 2.0, width=64), aged(4.0, 40.0, width=64)])
    found = lower_spi_fresher(pd.concat([two, three], ignore_index=True))
    assert found.verdict == "reproduced" and "in 1 setting of 1 task" in found.measured
    smoke = pd.concat([aged(0.1, 2.0), aged(4.0, 40.0)]).assign(profile="smoke")
    assert lower_spi_fresher(smoke).verdict == "not measured"
    assert lower_spi_fresher(pd.DataFrame()).verdict == "not measured"


def test_the_policy_is_older_where_pulls_are_rare() -> None:
    rows = [of_age(age, make_records(TASK, ["int8/onnxruntime"], pull_period=period))
            for period, age in ((30, 2.0), (1000, 9.0), (5000, 30.0))]  # fmt: skip
    frame = pd.concat(rows, ignore_index=True)
    found = rare_pulls_staler(frame)
    assert found.verdict == "reproduced" and found.interval.value == pytest.approx(15)
    assert "at 5000 as at 30 steps from pull to pull, in 1 setting of 1 task" in found.measured
    younger = frame.assign(age_mean=1 / frame["age_mean"])
    assert rare_pulls_staler(younger).verdict == "not reproduced"
    assert lower_spi_fresher(frame).verdict == "not measured"


def test_ages_are_corrected_for_all_settings() -> None:
    """2.5, 2.75, 3 over 2, 2.02, 2.04 is 1.36 [1.09, 1.70] at 5 %, [0.990, 1.87] at 2.5 %."""
    made = []
    for width in (2048, 64):
        for spi, age, spread in ((0.1, 2.0, 0.01), (4.0, 2.5, 0.1)):
            rows = make_records(["Cartpole Balance"], ["int8/onnxruntime"],
                                samples_per_insert=spi, width=width)  # fmt: skip
            made.append(rows.assign(age_mean=[age * (1 + spread * s) for s in rows["seed"]]))
    assert lower_spi_fresher(pd.concat(made[:2], ignore_index=True)).verdict == "reproduced"
    assert lower_spi_fresher(pd.concat(made, ignore_index=True)).verdict == "inconclusive"
