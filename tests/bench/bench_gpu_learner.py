"""A GPU learner's update as a CUDA graph against the same launched from Python, networks of ActorQ.

    python tests/bench/bench_gpu_learner.py   (a CUDA GPU)
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from quarl_nb.actorq import Settings
from quarl_nb.actorq.algorithms import make_algorithm
from quarl_nb.actorq.learner import Learner
from quarl_nb.rl.cuda_graph import train_once

ROUNDS, UPDATES = 5, 60
# (algorithm, environment, autocast, whether Adam is fused)
LEARNERS = [("dqn", "CartPole-v1", "", True), ("dqn", "CartPole-v1", "", False),
            ("dqn", "CartPole-v1", "bf16", True), ("d4pg", "Pendulum-v1", "", True),
            ("d4pg", "Pendulum-v1", "bf16", True), ("ddpg", "Pendulum-v1", "", True),
            ("td3", "Pendulum-v1", "", True)]  # fmt: skip


def learner_of(algo: str, env_id: str, autocast: str, fused: bool, graphed: bool) -> Learner:
    options: dict[str, Any] = {"n_steps": 10} if algo in ("dqn", "d4pg") else {}
    algorithm = make_algorithm(algo, env_id, device="cuda", autocast=autocast, fused=fused,
                               batch_size=256, learning_starts=10**9, **options)  # fmt: skip
    algorithm.learn(1000)  # collects only
    learner = Learner(algorithm, Settings(), 60_000)
    if not graphed:
        learner._train = partial(train_once, algorithm)
    return learner


def updated_s(learner: Learner) -> tuple[float, float]:
    """Seconds of an update, and of these those of taking the batch."""
    before, started = learner.seconds["sample"], time.perf_counter()
    for _ in range(UPDATES):
        learner.update()
    whole = time.perf_counter() - started
    return whole / UPDATES, (learner.seconds["sample"] - before) / UPDATES


def weights_after(learner: Learner, updates: int = 30) -> torch.Tensor:
    np.random.seed(0)
    torch.manual_seed(0)
    for _ in range(updates):
        learner.update()
    state = learner.algorithm.policy.state_dict().values()
    return torch.cat([weights.flatten().double() for weights in state])


def main() -> None:
    if not torch.cuda.is_available():
        print("no GPU here")
        return
    torch.set_num_threads(1)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batches of 256")
    for algo, env_id, autocast, fused in LEARNERS:
        learners = {name: learner_of(algo, env_id, autocast, fused, name == "graph")
                    for name in ("python", "graph")}  # fmt: skip
        launched, replayed = map(weights_after, learners.values())
        apart = float((launched - replayed).norm() / launched.norm())
        times = {name: [updated_s(learner) for _ in range(ROUNDS)]
                 for name, learner in learners.items()}  # fmt: skip
        (python, _), (graph, sample) = (
            [statistics.median(part) for part in zip(*each, strict=True)] for each in times.values()
        )
        kind = f"{algo} {autocast or 'fp32'}" + (", Adam not fused" if not fused else "")
        print(f"{kind}: {python * 1e3:.2f} ms launched from Python, "
              f"{graph * 1e3:.2f} as a graph ({sample * 1e3:.2f} for its batch), "
              f"{python / graph:.1f}x; weights apart by {apart:.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
