from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from quarl_nb.errors import QuarlError
from quarl_nb.rl.recipes import recipes
from quarl_nb.runner import plan
from quarl_nb.studies.ptq import PTQ
from quarl_nb.studies.ptq_episodes import NEEDED, episodes_needed


def test_the_number_of_the_textbook():
    """Differences of +1 and -1 about a mean of 10: s = 2/3^0.5, (1.6449 + 1.2816) s / 0.5."""
    reference, treatment = [10.0, 10.0, 10.0, 10.0], [9.0, 11.0, 9.0, 11.0]
    assert episodes_needed(reference, treatment) == 100  # 45.7, in hundreds
    assert episodes_needed(reference, treatment, margin=0.01) == 1200  # 1142
    assert episodes_needed([-x for x in reference], treatment, margin=0.01) == 1200
    assert episodes_needed(reference, reference) == 0


def test_so_many_episodes_find_equal_policies_equal_as_often_as_promised():
    generator, margin = np.random.default_rng(0), 0.05
    pairs = 50 + generator.normal(0, 50, (2, 200_000))  # rounding up adds no episodes to speak of
    n = episodes_needed(*pairs, margin=margin)
    again = 50 + generator.normal(0, 50, (2, 1000, n))
    lost = (again[0] - again[1]) / 50
    error = lost.std(axis=1, ddof=1) / n**0.5
    found = np.abs(lost.mean(axis=1)) + stats.norm.ppf(0.95) * error < margin
    assert found.mean() == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(
    ("reference", "treatment", "said"),
    [
        ([1.0], [1.0], "2 episodes"),
        ([1.0, 2.0], [1.0], "not 2 and 1"),
        ([-1.0, 1.0], [0.0, 1.0], "mean return is 0"),
    ],
)
def test_what_has_no_variance_or_no_mean_is_refused(reference, treatment, said):
    with pytest.raises(QuarlError, match=said):
        episodes_needed(reference, treatment)


def test_only_what_is_judged_plays_so_many_and_all_else_as_many_as_before():
    assert NEEDED.keys() <= recipes().keys()
    assert all(100 <= n <= 10_000 for n in NEEDED.values())  # more would be days of a core
    names = ["ppo-QbertNoFrameskip-v4", "ppo-CartPole-v1", "ddpg-Walker2d-v5"]
    cells = PTQ.cells({**PTQ.profiles["full"], "policies": names})
    played = {(cell["policy"], cell["precision"], cell["ranges"]): budget["episodes"]
              for cell, budget in cells}  # fmt: skip
    many = {key: n for key, n in played.items() if n not in (30, 100)}
    assert many == {
        (name, precision, "minmax"): n
        for name, n in ((names[0], 700), (names[2], 1300))
        for precision in ("fp32", "fp16", "affine8")
    }
    assert played["ppo-CartPole-v1", "affine8", "minmax"] == 100
    assert played["ppo-QbertNoFrameskip-v4", "affine4", "minmax"] == 30


def test_of_what_is_swept_every_width_plays_as_many_and_what_is_judged_more_where_it_must():
    for name, judged in (("dqn-SeaquestNoFrameskip-v4", 200), ("dqn-MsPacmanNoFrameskip-v4", 1800)):
        cells = PTQ.cells({**PTQ.profiles["full"], "policies": [name]})
        played = {(cell["precision"], cell["ranges"]): budget["episodes"] for cell, budget in cells}
        swept = {precision: n for (precision, ranges), n in played.items() if ranges == "minmax"}
        assert {swept.pop(precision) for precision in ("fp32", "fp16", "affine8")} == {judged}
        assert len(swept) == 16 and set(swept.values()) == {200}
        assert {n for (_, ranges), n in played.items() if ranges != "minmax"} == {30}


def test_what_is_swept_alone_plays_no_more_than_that_takes():
    name = "dqn-MsPacmanNoFrameskip-v4"
    alone = PTQ.profiles["full"] | {"policies": [name], "ranges": [], "judged": []}
    assert {budget["episodes"] for _, budget in PTQ.cells(alone)} == {200}
    assert {budget["episodes"] for _, budget in PTQ.cells(alone | {"swept": []})} == {30}


def test_what_200_episodes_left_open_plays_as_many_at_every_width_as_its_verdict_takes():
    cells = PTQ.cells({**PTQ.profiles["full"], "policies": ["dqn-BreakoutNoFrameskip-v4"]})
    assert {b["episodes"] for cell, b in cells if cell["ranges"] == "minmax"} == {1200}


def test_what_a_profile_judges_need_not_be_among_the_precisions_chosen():
    chosen = {"policies": ["ppo-QbertNoFrameskip-v4"], "precisions": ["fp32", "affine4"]}
    played = {job.cell["precision"]: job.budget["episodes"]
              for job in plan(PTQ, "full", chosen | {"ranges": []})}  # fmt: skip
    assert played == {"fp32": 700, "affine4": 30}
