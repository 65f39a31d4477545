"""Policies that look at nothing: what they do, and the file of what they earn."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.paths import untrained_file
from quarl_nb.report.untrained import untrained_returns
from quarl_nb.rl import untrained


def test_random_actions_fill_the_space() -> None:
    generator = torch.Generator().manual_seed(0)
    box = gym.spaces.Box(np.array([-1.0, 0], np.float32), np.array([1.0, 10], np.float32))
    actions, _ = untrained.RandomPolicy(box).act(np.zeros((4000, 7)), None, generator)
    assert actions.shape == (4000, 2) and actions.dtype == np.float32
    assert actions.min(axis=0) == pytest.approx([-1, 0], abs=0.02)
    assert actions.mean(axis=0) == pytest.approx([0, 5], abs=0.2)
    chosen, _ = untrained.RandomPolicy(gym.spaces.Discrete(3, start=1)).act(
        np.zeros((3000, 4)), None, generator
    )
    assert np.bincount(chosen) / 3000 == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.03)


def test_idle_is_zero_or_the_bound_next_to_it() -> None:
    box = gym.spaces.Box(np.array([-1.0, 2], np.float32), np.array([1.0, 3], np.float32))
    actions, _ = untrained.IdlePolicy(box).act(np.zeros((5, 7)))
    assert actions.tolist() == [[0, 2]] * 5 and actions.dtype == np.float32


def test_an_unbounded_space_has_no_uniform_actions() -> None:
    for space in (gym.spaces.Box(-np.inf, np.inf, (1,)), gym.spaces.MultiBinary(3)):
        with pytest.raises(QuarlError, match="no uniform actions"):
            untrained.RandomPolicy(space)


def test_measured_environments_are_added_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "untrained.json"
    path.write_text(json.dumps({"Kept-v0": {"random": {"returns": [1.0]}}}))
    untrained.add(["CartPole-v1"], path)
    found = json.loads(path.read_text())
    assert found["Kept-v0"] == {"random": {"returns": [1.0]}}
    row = found["CartPole-v1"]
    assert "idle" not in row  # push left, push right: neither is nothing
    assert row["random"]["mean"] == pytest.approx(np.mean(row["random"]["returns"]))
    assert row["packages"]["gymnasium"] and row["seeds"] == list(range(30))
    again = untrained.measure("CartPole-v1")
    assert again["random"] == row["random"]


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_damaged_file_is_named_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "untrained.json"
    path.write_bytes(content)
    for read in (lambda: untrained.add(["CartPole-v1"], path), lambda: untrained_returns(path)):
        with pytest.raises(QuarlError, match=r"'.*untrained\.json' is damaged"):
            read()
    assert path.read_bytes() == content


def test_public_agents_environments_are_played_their_way() -> None:
    found = untrained.measure("ALE/Breakout-v5", episodes=2)
    recorded = json.loads(untrained_file().read_text())["ALE/Breakout-v5"]
    assert found["maker"] == recorded["maker"] == "baby-a3c"
    assert max(found["random"]["returns"]) < 10 and max(recorded["random"]["returns"]) < 10


def test_what_is_recorded_can_be_measured_again() -> None:
    recorded = json.loads(untrained_file().read_text())["MountainCarContinuous-v0"]
    again = untrained.measure("MountainCarContinuous-v0", episodes=2)
    assert again["idle"]["returns"] == recorded["idle"]["returns"][:2]
    assert again["random"]["mean"] == pytest.approx(recorded["random"]["mean"], abs=5)
