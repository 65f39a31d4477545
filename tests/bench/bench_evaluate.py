"""Atari evaluation against SB3's `evaluate_policy` as its documentation shows it.

Both run the same trained policy on the same two cores. SB3 steps one environment behind its
wrappers; ours steps ale-py's C++ environments in a batch. What is compared is emulator frames
per second over whole episodes (SB3's `Monitor` counts frames, ours counts agent steps of four).
"""

from __future__ import annotations

import time

import torch
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack

from quarl_nb.rl.envs import ATARI_FRAME_SKIP
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.recipes import get_recipe

ENV_ID = "PongNoFrameskip-v4"
EPISODES, REPEATS = 4, 2


def main() -> None:
    """Print both rates and their ratio."""
    model = make_model(get_recipe(f"ppo-{ENV_ID}"), seed=0)
    net = PolicyNet.from_sb3(model, env_id=ENV_ID)
    peers, ours = [], []
    for repeat in range(REPEATS):
        torch.set_num_threads(2)
        peers.append(sb3_rate(model, EPISODES))
        torch.set_num_threads(1)  # the other core steps environments meanwhile
        ours.append(our_rate(net, repeat))
        print(f"SB3 evaluate_policy {peers[-1]:7.0f} frames/s   quarl_nb {ours[-1]:7.0f} frames/s")
    print(f"evaluate {ENV_ID}: {max(ours) / max(peers):.1f}x SB3's evaluate_policy (target 4x)")


def sb3_rate(model, episodes: int) -> float:
    """Frames per second of SB3's own evaluation, stock network in fp32."""
    from stable_baselines3 import PPO

    env = VecFrameStack(make_atari_env(ENV_ID, n_envs=1, seed=0), 4)
    features = dict(features_extractor_kwargs=dict(features_dim=128))
    stock = PPO("CnnPolicy", env, policy_kwargs=features)
    stock.policy.load_state_dict(model.policy.state_dict())
    started = time.perf_counter()
    _, lengths = evaluate_policy(stock, env, episodes, return_episode_rewards=True)
    env.close()
    return sum(lengths) / (time.perf_counter() - started)


def our_rate(net: PolicyNet, repeat: int) -> float:
    """Frames per second of ours: thirty episodes, as the PTQ study runs on Atari."""
    result = evaluate(net, ENV_ID, range(100 * repeat, 100 * repeat + 30), n_threads=2)
    return sum(result.lengths) * ATARI_FRAME_SKIP / result.wall_s


if __name__ == "__main__":
    main()
