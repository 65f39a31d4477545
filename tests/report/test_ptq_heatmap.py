"""The page of all losses: every cell where and what the records say."""

from __future__ import annotations

import pandas as pd
import pytest

from quarl_nb.report.ptq.heatmap import loss_heatmap
from quarl_nb.report.style import NothingToDrawError

TWO = {"ppo-CartPole-v1": ("ppo", "CartPole-v1", 490.0),
       "a2c-CartPole-v1": ("a2c", "CartPole-v1", 480.0)}  # fmt: skip


def loss(policy: str, precision: str, _: str) -> float:
    return {"affine2": 0.9, "affine4": 0.3}.get(precision, 0.0) if policy[0] == "p" else -0.2


def cells(ax) -> dict[tuple[str, str], tuple[str, str]]:
    """(row, column) -> text and weight, of the cells that have one."""
    rows = [label.get_text() for label in ax.get_yticklabels()]
    columns = [label.get_text() for label in ax.get_xticklabels()]
    return {(rows[int(text.get_position()[1])], columns[int(text.get_position()[0])]):
            (text.get_text(), text.get_fontweight()) for text in ax.texts}  # fmt: skip


def test_each_loss_stands_in_its_row_and_column(records) -> None:
    frame = records(loss, ("affine2", "fp16", "affine4"), TWO, ("minmax", "mse"), noise=1e-4)
    missing = (frame["policy"] == "a2c-CartPole-v1") & (frame["precision"] == "affine4")
    fig, points = loss_heatmap(frame[~missing])
    found = cells(fig.axes[0])
    assert found == {
        ("A2C CartPole", "fp16"): ("\u221220", "normal"),
        ("A2C CartPole", "2"): ("\u221220", "normal"),
        ("PPO CartPole", "fp16"): ("0", "normal"),
        ("PPO CartPole", "4"): ("30", "bold"),
        ("PPO CartPole", "2"): ("90", "bold"),
    }
    assert [label.get_text() for label in fig.axes[0].get_xticklabels()] == ["fp16", "4", "2"]
    assert len(points) == 5 and set(points["ranges"]) == {"minmax"}


def test_two_seeds_of_a_policy_have_a_row_each(records) -> None:
    one = records(loss, ("affine2",), dict([*TWO.items()][:1]), noise=1e-4)
    fig, _ = loss_heatmap(pd.concat([one, one.assign(seed=1)], ignore_index=True))
    rows = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert rows == ["PPO CartPole, seed 0", "PPO CartPole, seed 1"]


def test_environments_that_short_labels_would_take_for_one_are_told_apart(records) -> None:
    both = {f"ppo-{env_id}": ("ppo", env_id, 490.0) for env_id in ("Walker2d-v4", "Walker2d-v5")}
    fig, _ = loss_heatmap(records(loss, ("affine2",), both, noise=1e-4))
    rows = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert rows == ["PPO Walker2d-v4", "PPO Walker2d-v5"]


def test_without_a_quantized_policy_there_is_nothing_to_draw(records) -> None:
    for frame in (pd.DataFrame(), records(loss, (), TWO)):
        with pytest.raises(NothingToDrawError):
            loss_heatmap(frame)
