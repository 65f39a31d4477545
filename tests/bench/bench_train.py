"""PPO, A2C and DQN on Pong, frames per second including learning, against stock SB3.

Stock SB3: `PPO("CnnPolicy", make_atari_env(..., n_envs=8, vec_env_cls=SubprocVecEnv))`, frames
stacked, fp32, default Adam. Ours: the recipe of `quarl-nb train`. Same network (Nature CNN with
128 units), same hyperparameters, same cores, a process each, repeats by turns in one run, of which
each one's fastest counts.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

from quarl_nb.processes import CONTEXT, keep_freed_memory
from quarl_nb.rl.model import ALGORITHMS, make_model
from quarl_nb.rl.prioritized import PrioritizedDQN, PrioritizedReplayBuffer
from quarl_nb.rl.recipes import Recipe, get_recipe

ENV_ID = "PongNoFrameskip-v4"
STEPS, REPEATS = 8 * 128 * 2, 6
REPLAY = 2_000  # transitions: a full buffer, whose memory has been touched, as in a long training
model: list[BaseAlgorithm] = []  # of a trainer's process


def main() -> None:
    """Print both rates and their ratio of every algorithm, or of those named."""
    for algo in sys.argv[1:] or ("ppo", "a2c", "dqn"):
        rates: dict[str, list[float]] = {name: [] for name in PREPARED}
        with ExitStack() as stack:
            trainers = {name: stack.enter_context(trainer(name, algo)) for name in PREPARED}
            for _ in range(REPEATS):
                for name, process in trainers.items():
                    rates[name].append(process.submit(rate).result())
                    print(f"{name:10s} {rates[name][-1]:7.0f} steps/s")
        ratio = max(rates["quarl_nb"]) / max(rates["stock SB3"])
        print(f"train {algo} {ENV_ID}: {ratio:.2f}x stock SB3 (target 2x)", flush=True)


def trainer(name: str, algo: str) -> ProcessPoolExecutor:
    """A process of its own, which trains: ours sets up its memory, SB3's has what Python has."""
    return ProcessPoolExecutor(1, mp_context=CONTEXT, initializer=prepare, initargs=(name, algo))


def prepare(name: str, algo: str) -> None:
    """In the trainer's process: make the model, and train to the end of its warm-up."""
    torch.set_num_threads(2)
    recipe = get_recipe(f"{algo}-{ENV_ID}").with_uniform_replay()  # SB3 has no other
    if algo == "dqn":  # updates from the first measured step on
        recipe.hyperparameters.update(learning_starts=300, buffer_size=REPLAY)
    model.append(PREPARED[name](recipe))
    model[0].learn(REPLAY)


def our_model(recipe: Recipe) -> BaseAlgorithm:
    """The recipe as `quarl-nb train` trains it."""
    keep_freed_memory()
    torch.set_flush_denormal(True)  # as `train` has it
    return make_model(recipe, seed=0, n_threads=2)


def stock_model(recipe: Recipe, seed: int = 0) -> BaseAlgorithm:
    """The same recipe of an Atari game in SB3 as its documentation shows it.

    Its optimizers are the algorithms' own; prioritized replay, which SB3 has not, is ours here too.
    """
    one = recipe.n_envs == 1
    frames = make_atari_env(
        recipe.env_id, recipe.n_envs, seed=seed, vec_env_cls=DummyVecEnv if one else SubprocVecEnv
    )
    arguments = {k: v for k, v in recipe.hyperparameters.items() if k != "policy_kwargs"}
    kind = ALGORITHMS[recipe.algo]
    if arguments.get("replay_buffer_class") == "prioritized":
        kind, arguments["replay_buffer_class"] = PrioritizedDQN, PrioritizedReplayBuffer
    return kind("CnnPolicy", VecFrameStack(frames, 4), seed=seed, device="cpu",
                policy_kwargs=dict(features_extractor_kwargs=dict(features_dim=128)),
                **arguments)  # fmt: skip


PREPARED = {"stock SB3": stock_model, "quarl_nb": our_model}


def rate() -> float:
    """Environment steps per second of `STEPS` more steps of training."""
    started = time.perf_counter()
    model[0].learn(STEPS, reset_num_timesteps=False)
    return STEPS / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
