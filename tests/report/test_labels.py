"""How figures and tables name policies."""

from __future__ import annotations

import pandas as pd
import pytest

from quarl_nb.report.labels import policy_label, policy_labels


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        ("ppo-CartPole-v1", "PPO CartPole"),
        ("a2c-MountainCarContinuous-v0", "A2C MountainCar"),
        ("dqn-PongNoFrameskip-v4", "DQN Pong"),
        ("public/a2c-HalfCheetah-v3", "A2C HalfCheetah (public)"),
        ("public/a3c-gru-breakout-v4.80", "A3C-GRU Breakout (public)"),
        ("public/dueling-ddqn-PongDeterministic-v4", "DUELING-DDQN Pong (public)"),
        ("crossq-Pendulum-v1", "CROSSQ Pendulum"),
        ("dqn-AirNavigation-I-early", "DQN AirNavigation-I-early"),
        # Of one's own, as their owners call them.
        *((name, name) for name in ("my_model", "my-neg", "big-net", "run-2", "exp1-seed3-v2",
                                    "a2c-x-final")),
    ],
)
def test_policies_have_short_labels(policy: str, label: str) -> None:
    assert policy_label(policy) == label


def test_policies_that_are_shown_together_have_labels_of_their_own() -> None:
    shared = {
        "ppo-MountainCar-v0": "PPO MountainCar-v0",
        "ppo-MountainCarContinuous-v0": "PPO MountainCarContinuous-v0",
        "dqn-CartPole-v0": "DQN CartPole-v0",
        "dqn-CartPole-v1": "DQN CartPole-v1",
        "public/a3c-gru-pong-v4.80": "A3C-GRU pong-v4.80 (public)",
        "public/a3c-gru-PongDeterministic-v4": "A3C-GRU PongDeterministic-v4 (public)",
    }
    alone = {"dqn-PongNoFrameskip-v4": "DQN Pong", "my_model": "my_model",
             "public/dqn-PongNoFrameskip-v4": "DQN Pong (public)"}  # fmt: skip
    assert policy_labels([*shared, *alone]) == shared | alone
    assert policy_labels(pd.Series(["dqn-CartPole-v1"] * 2)) == {"dqn-CartPole-v1": "DQN CartPole"}
    assert policy_labels([]) == {}
