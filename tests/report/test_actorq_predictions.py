"""What parts predict, against runs whose parts and steps are planted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from planted_actorq import (
    INT8_S,
    LEARNER_S,
    ORT_S,
    TORCH_S,
    make_records,
    scaled,
)
from quarl_nb.report import actorq
from quarl_nb.report.actorq import tables
from quarl_nb.report.actorq.parts import step_parts
from quarl_nb.report.actorq.predictions import (
    bounded_speedup,
    held_out_speedups,
    predicted_speedups,
)

TORCH, INT8 = "fp32/torch", "int8/onnxruntime"


def with_a_slow_run(seeds: range = range(3)) -> pd.DataFrame:
    """Of int8 actors, the last seed's takes twice as long for everything."""
    records = make_records(["Walker Stand"], [TORCH, INT8], seeds)
    slow = 1 + ((records["precision"] == "int8") & (records["seed"] == seeds[-1]))
    parts = [scaled(own, by) for own, by in zip(records["actor_s"], slow, strict=True)]
    return records.assign(actor_s=parts, run_s=records["run_s"] * slow)


def test_what_parts_account_for_stands_beside_the_measurement() -> None:
    pairs = predicted_speedups(step_parts(make_records(["Walker Stand"], slower=1.25)))
    pair = pairs.set_index(["actor", "baseline"]).loc[INT8, "fp32/onnxruntime"]
    assert pair["accounted"] == pytest.approx(ORT_S / INT8_S) == pair["measured"]
    assert pair["load"] == pytest.approx(LEARNER_S / ORT_S)
    assert pair["gain"] == pytest.approx(ORT_S / INT8_S)
    assert pair["error"] == pytest.approx(0)


def test_a_run_is_predicted_by_the_other_seeds() -> None:
    parts = step_parts(with_a_slow_run())
    runs = held_out_speedups(parts).set_index("seed")
    gain = TORCH_S / INT8_S
    assert runs["measured"].to_dict() == pytest.approx({0: gain, 1: gain, 2: gain / 2})
    # One of the two that predict seeds 0 and 1 took twice as long; none of those that predict 2.
    assert runs["predicted"].to_dict() == pytest.approx({0: gain / 1.5, 1: gain / 1.5, 2: gain})
    assert runs["held_out"].all()
    (pair,) = predicted_speedups(parts).to_dict("records")
    assert pair["accounted"] == pytest.approx(3 * gain / 4) == pair["measured"]
    assert pair["error"] == pytest.approx((2 * np.log(1.5) + np.log(2)) / 3)
    shown = tables.prediction_table(predicted_speedups(parts)).iloc[0]
    assert shown["error, predicted from other runs"] == "50%"


def test_seeds_that_one_side_lacks_are_no_pairs() -> None:
    records = with_a_slow_run()
    some = records[(records["precision"] == "fp32") | (records["seed"] > 0)]
    assert held_out_speedups(step_parts(some))["seed"].tolist() == [1, 2]
    apart = records[(records["precision"] == "fp32") == (records["seed"] == 0)]
    assert held_out_speedups(step_parts(apart)).empty
    assert predicted_speedups(step_parts(apart))["error"].isna().all()
    _, points = actorq.time_figures.speedup_map(apart)
    assert points["panel"].tolist() == ["load"]


def test_a_single_run_is_predicted_by_its_own_parts_and_says_so() -> None:
    one = with_a_slow_run(range(1))
    run = held_out_speedups(step_parts(one)).iloc[0]
    assert not run["held_out"]
    assert run["predicted"] == pytest.approx(TORCH_S / INT8_S / 2) == run["measured"]
    pairs = predicted_speedups(step_parts(one))
    assert np.isnan(pairs["error"].item())
    assert tables.prediction_table(pairs)["error, predicted from other runs"].item() == ""
    three = with_a_slow_run()
    for records, own in ((one, True), (three, False)):
        left = actorq.time_figures.speedup_map(records)[0].axes[0]
        assert left.get_xlabel().startswith("speed-up of a step predicted from other runs' parts")
        assert left.get_xlabel().endswith("(a single run: from its own)") == own


def test_the_map_shows_every_run_beside_its_prediction() -> None:
    fig, points = actorq.time_figures.speedup_map(with_a_slow_run())
    runs = points[points["panel"] == "predicted"]
    (drawn,) = (line for line in fig.axes[0].lines if line.get_marker() == "o")
    assert list(drawn.get_xdata()) == runs["predicted"].tolist() and len(runs) == 3
    assert list(drawn.get_ydata()) == runs["measured"].tolist()


def test_the_bound_of_the_speedup_follows_amdahl() -> None:
    loads = np.array([0.1, 0.25, 0.5, 1.0, 3.0])
    # Actors four times faster: hidden behind the learner from a load of a quarter on.
    assert bounded_speedup(loads, 4.0).tolist() == [4, 4, 2, 1, 1]


def test_the_load_is_of_the_learner_beside_either_kind_of_actor() -> None:
    records = make_records(["Walker Stand"], [TORCH, INT8])
    longer = records["precision"].map({"fp32": 1, "int8": 3})
    busy = [scaled(own, by) for own, by in zip(records["learner_s"], longer, strict=True)]
    (pair,) = predicted_speedups(step_parts(records.assign(learner_s=busy))).to_dict("records")
    assert pair["load"] == pytest.approx(2 * LEARNER_S / TORCH_S)


def test_weights_that_travel_otherwise_than_computed_predict_nothing() -> None:
    plain = make_records(["Walker Stand"], [TORCH, INT8])
    other = make_records(["Walker Stand"], [TORCH], communication="int8")
    parts = step_parts(pd.concat([plain, other], ignore_index=True))
    (pair,) = predicted_speedups(parts).to_dict("records")
    assert sorted(pair["keys"]) == sorted(plain["key"])
