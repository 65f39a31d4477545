"""Atari games."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quarl_nb.rl.atari import ATARI_SUFFIX
from quarl_nb.rl.recipes.recipe import Recipe, linear

# Figure 7 shows DQN on these three, so they come first.
FIGURE_7 = ("Breakout", "MsPacman", "Seaquest")
OTHER_GAMES = ("SpaceInvaders", "Qbert", "BeamRider")
A2C_OPTIMIZER = "SB3's default RMSprop"
# 128 units after the convolutions (the paper's "128 FC"), so that a file stays under 2 MB.
FEATURES: dict[str, Any] = dict(features_extractor_kwargs=dict(features_dim=128))
JUDGED: dict[str, Any] = dict(target_return=20.0, eval_every=50_000, eval_episodes=10)


def pong() -> list[Recipe]:
    """Pong, until it is won."""
    return [_pong(algo) for algo in ("ppo", "a2c", "dqn")]


def other_games() -> list[Recipe]:
    """Six more games of Table 4, fewer steps each."""
    return [_game(algo, game) for group in (FIGURE_7, OTHER_GAMES)
            for algo in ("a2c", "ppo", "dqn") for game in group]  # fmt: skip


def _pong(algo: str) -> Recipe:
    fused = dict(optimizer_kwargs=dict(eps=1e-5, fused=True))
    env_id = "Pong" + ATARI_SUFFIX
    if algo == "ppo":
        return Recipe(
            algo, env_id, 3_000_000,
            dict(n_steps=128, n_epochs=4, batch_size=256, learning_rate=linear(2.5e-4),
                 clip_range=linear(0.1), vf_coef=0.5, ent_coef=0.01,
                 policy_kwargs=FEATURES | fused),
            n_envs=8, source="RL Zoo, atari; 3 of its 10 million steps", **JUDGED,
        )  # fmt: skip
    if algo == "a2c":
        # The RL Zoo's RMSprop, TensorFlow's, has its epsilon (1e-5) under the root. Gradients of
        # 128 units are smaller: returns on Breakout stayed at 2 for 1.3 million steps, where SB3's
        # own had 66 after 0.9 million.
        return Recipe(
            algo, env_id, 8_000_000,
            dict(ent_coef=0.01, vf_coef=0.25, policy_kwargs=FEATURES),
            n_envs=16, **JUDGED,
            source=f"RL Zoo, atari; 8 of its 10 million steps; {A2C_OPTIMIZER}",
        )  # fmt: skip
    return _dqn(millions=3)


def _dqn(millions: int) -> Recipe:
    """Pong by Table 5, whose first 100,000 of a million steps explore, with so many millions."""
    return Recipe(
        "dqn", "Pong" + ATARI_SUFFIX, millions * 1_000_000,
        dict(buffer_size=10_000, learning_rate=1e-4, batch_size=32, learning_starts=10_000,
             target_update_interval=1000, train_freq=4, gradient_steps=1,
             exploration_fraction=0.1 / millions, exploration_final_eps=0.01,
             replay_buffer_class="prioritized", replay_buffer_kwargs=dict(alpha=0.6),
             policy_kwargs=FEATURES | dict(optimizer_kwargs=dict(fused=True))),
        source="the paper's Table 5, which is dqn.yml, atari, of the first RL Zoo (github.com/"
        f"araffin/rl-baselines-zoo) with {millions} of its 10 million steps; plain DQN, where "
        "stable-baselines 2 added double Q-learning and a dueling network", **JUDGED,
    )  # fmt: skip


def _game(algo: str, game: str) -> Recipe:
    """As Pong, with fewer steps."""
    base = _dqn(millions=1) if algo == "dqn" else _pong(algo)
    # No target may end it early, as Pong's does: evaluate half as often.
    recipe = replace(base, env_id=game + ATARI_SUFFIX, target_return=None, eval_every=100_000)
    if algo in ("ppo", "a2c"):
        # The largest logit may repeat itself for ever, as there are no sticky actions. The RL Zoo
        # samples on Atari, as does `enjoy.py` of the first one, which the paper's code began with.
        millions = dict(ppo=1, a2c=2)[algo]
        source = f"RL Zoo, atari; {millions} of its 10 million steps"
        source += f"; {A2C_OPTIMIZER}" * (algo == "a2c")
        return replace(recipe, timesteps=millions * 1_000_000, head="sample", source=source)
    return recipe
