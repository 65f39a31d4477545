"""Atari evaluation against SB3's `evaluate_policy` as its documentation shows it.

Both run the same network on the same two cores. SB3 steps one environment behind its wrappers,
torch on both cores; ours is two processes of one thread, as `quarl-nb run ptq --workers 2` works,
each stepping ale-py's C++ environments in a batch. What is compared is emulator frames per second
over whole episodes (SB3's `Monitor` counts frames, ours counts agent steps of four).
"""

from __future__ import annotations

import time
from multiprocessing import get_context

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack

from quarl_nb.inference import fast_policy
from quarl_nb.rl.atari import ATARI_FRAME_SKIP
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.sb3.convert import policy_from_model

ENV_ID = "PongNoFrameskip-v4"
WORKERS, EPISODES, REPEATS = 2, 30, 2


def main() -> None:
    """Print both rates and their ratio."""
    peers, ours = [], []
    for _ in range(REPEATS):
        ours.append(our_rate())
        peers.append(sb3_rate(episodes=8))
        print(f"SB3 evaluate_policy {peers[-1]:7.0f} frames/s   quarl_nb {ours[-1]:7.0f} frames/s")
    print(f"evaluate {ENV_ID}: {max(ours) / max(peers):.1f}x SB3's evaluate_policy (target 4x)")


def stock_model() -> PPO:
    """Stock PPO over SB3's wrappers, with the 128 units of our Atari policies."""
    env = VecFrameStack(make_atari_env(ENV_ID, n_envs=1, seed=0), 4)
    features = dict(features_extractor_kwargs=dict(features_dim=128))
    return PPO("CnnPolicy", env, seed=0, policy_kwargs=features, device="cpu")


def sb3_rate(episodes: int) -> float:
    """Frames per second of SB3's own evaluation, fp32."""
    torch.set_num_threads(2)
    model = stock_model()
    started = time.perf_counter()
    env = model.get_env()
    assert env is not None
    _, lengths = evaluate_policy(model, env, episodes, return_episode_rewards=True)
    assert isinstance(lengths, list)
    return sum(lengths) / (time.perf_counter() - started)


def our_rate() -> float:
    """Frames per second of `WORKERS` processes that evaluate `EPISODES` episodes each."""
    context = get_context("spawn")
    start, results = context.Barrier(WORKERS + 1), context.Queue()
    processes = [context.Process(target=work, args=(100 * i, start, results))
                 for i in range(WORKERS)]  # fmt: skip
    for process in processes:
        process.start()
    start.wait()
    started = time.perf_counter()
    steps = sum(results.get() for _ in processes)
    elapsed = time.perf_counter() - started
    for process in processes:
        process.join()
    return steps * ATARI_FRAME_SKIP / elapsed


def work(first_seed: int, start, results) -> None:
    """One worker: all is built before the clock runs, but for the environments."""
    torch.set_num_threads(1)
    net = policy_from_model(stock_model(), env_id=ENV_ID)
    start.wait()
    result = evaluate(fast_policy(net), ENV_ID, range(first_seed, first_seed + EPISODES))
    results.put(sum(result.lengths))


if __name__ == "__main__":
    main()
