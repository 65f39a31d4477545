"""PPO on Pong, frames per second including learning, against stock SB3 on the same cores.

Stock SB3: `PPO("CnnPolicy", make_atari_env(..., n_envs=8, vec_env_cls=SubprocVecEnv))`, frames
stacked, fp32, default Adam. Ours: the recipe of `quarl-nb train`. Same network (Nature CNN with
128 units), same hyperparameters, interleaved repeats in one run.
"""

from __future__ import annotations

import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

from quarl_nb.rl.model import make_model
from quarl_nb.rl.recipes import get_recipe

ENV_ID = "PongNoFrameskip-v4"
STEPS, REPEATS = 8 * 128 * 6, 2


def main() -> None:
    """Print both rates and their ratio."""
    torch.set_num_threads(2)
    recipe = get_recipe(f"ppo-{ENV_ID}")
    arguments = {k: v for k, v in recipe.hyperparameters.items() if k != "policy_kwargs"}
    frames = make_atari_env(ENV_ID, n_envs=8, seed=0, vec_env_cls=SubprocVecEnv)
    stock = PPO("CnnPolicy", VecFrameStack(frames, 4), seed=0, device="cpu",
                policy_kwargs=dict(features_extractor_kwargs=dict(features_dim=128)),
                **arguments)  # fmt: skip
    ours = make_model(recipe, seed=0, n_threads=2)
    rates: dict[str, list[float]] = {"stock SB3": [], "quarl_nb": []}
    for _ in range(REPEATS):
        for name, model in (("stock SB3", stock), ("quarl_nb", ours)):
            rates[name].append(rate(model))
            print(f"{name:10s} {rates[name][-1]:7.0f} steps/s")
    ratio = max(rates["quarl_nb"]) / max(rates["stock SB3"])
    print(f"train ppo {ENV_ID}: {ratio:.2f}x stock SB3 (target 2x)")
    stock.env.close()


def rate(model) -> float:
    """Environment steps per second of `STEPS` more steps of training."""
    started = time.perf_counter()
    model.learn(STEPS, reset_num_timesteps=False)
    return STEPS / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
