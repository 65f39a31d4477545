"""ActorQ's actors and loop, as ratios: int8 against both fp32 engines, the loop against SB3's own.

    taskset -c 0 python tests/bench/bench_actorq.py actors   (one core)
    taskset -c 0 python tests/bench/bench_actorq.py learner  (one core)
    python tests/bench/bench_actorq.py loop                  (two cores)
    python tests/bench/bench_actorq.py cores                 (two cores)
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from quarl_nb.actorq import ActorQ, Settings
from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.algorithms import make_algorithm
from quarl_nb.actorq.cores import SharedCores
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.settings import ActorTask, Orders
from quarl_nb.actorq.variables import SharedVariables, Variables
from quarl_nb.rl.envs import make_env
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.sb3.convert import policy_from_model

ACTORS = {"torch fp32": ("fp32", "torch"), "ORT fp32": ("fp32", "onnxruntime"),
          "ORT int8": ("int8", "onnxruntime")}  # fmt: skip
# (environment, algorithm, int8 against torch fp32, int8 against ORT fp32)
TARGETS = [("CartPole-v1", "dqn", 8.0, 5.0), ("dm:cartpole-balance", "d4pg", 6.0, 4.0),
           ("dm:humanoid-stand", "d4pg", 4.5, 2.7)]  # fmt: skip
# Name -> autocast, fused optimizer.
LEARNERS = {"fp32": ("", False), "fp32 fused": ("", True), "bf16": ("bf16", False),
            "bf16 fused": ("bf16", True)}  # fmt: skip
ROUNDS, STEPS = 5, 400
LOOP_STEPS = 10_000


def actor_of(env_id: str, net: PolicyNet, precision: str, runtime: str, pull: int = 10**9) -> Actor:
    settings = Settings(precision=precision, runtime=runtime, n_actors=1, pull_period=pull)
    task = ActorTask(0, lambda: make_env(env_id), net.spec, settings)
    actor = Actor(task)
    actor.open(make_variables(net, 0, task))
    return actor


def step_s(actor: Actor, steps: int) -> float:
    started = time.perf_counter()
    actor.collect(steps, Orders(random=False, epsilon=0.05))
    return (time.perf_counter() - started) / steps


def bench_actors() -> None:
    """Environment steps of one actor, policy 3 x 2048, batch 1, one core."""
    torch.set_num_threads(1)
    for env_id, algo, over_torch, over_ort in TARGETS:
        net = policy_from_model(make_algorithm(algo, env_id, buffer_size=1000))
        actors = {name: actor_of(env_id, net, *kind) for name, kind in ACTORS.items()}
        for actor in actors.values():
            step_s(actor, 20)
        # Taken in turns, so that a change of the machine's load meets all of them.
        times: dict[str, list[float]] = {name: [] for name in actors}
        for _ in range(ROUNDS):
            for name, actor in actors.items():
                times[name].append(step_s(actor, STEPS))
        median = {name: statistics.median(values) for name, values in times.items()}
        shown = ", ".join(f"{name} {value * 1e6:.0f} us" for name, value in median.items())
        print(f"{env_id}: {shown} a step")
        for name, target in (("torch fp32", over_torch), ("ORT fp32", over_ort)):
            ratio = median[name] / median["ORT int8"]
            print(f"  int8 against {name}: {ratio:.1f}x (target {target}x)")
        if env_id == "dm:humanoid-stand":
            bench_pulls(env_id, net)


def bench_pulls(env_id: str, net: PolicyNet, period: int = 30) -> None:
    """What pulling a new int8 policy every 30 steps adds to a step."""
    actor = actor_of(env_id, net, "int8", "onnxruntime", period)
    payload = make_variables(net, 0, actor.task).payload
    shared = SharedVariables(len(payload))
    costs = []
    for version in range(1, 60):
        shared.publish(Variables(version, payload))
        started = time.perf_counter()
        variables = shared.pull()
        assert variables is not None
        actor.open(variables)
        costs.append(time.perf_counter() - started)
        step_s(actor, 3)
    cost = statistics.median(costs) / period
    print(f"  pulling int8 every {period} steps: {cost * 1e3:.3f} ms a step (target 0.25 ms)")


def bench_learner(updates: int = 8, batch_size: int = 128) -> None:
    """Updates of learners 3 x 2048 wide: fused Adam and bfloat16 against neither."""
    torch.set_num_threads(1)
    for algo, env_id in (("dqn", "CartPole-v1"), ("d4pg", "dm:cartpole-balance")):
        learners = {name: make_algorithm(algo, env_id, autocast=autocast, fused=fused)
                    for name, (autocast, fused) in LEARNERS.items()}  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in learners}
        for learner in learners.values():
            learner.learning_starts = 10**9  # collect only
            learner.learn(500)
            learner.train(2, batch_size)
        for _ in range(ROUNDS):
            for name, learner in learners.items():
                started = time.perf_counter()
                learner.train(updates, batch_size)
                times[name].append((time.perf_counter() - started) / updates)
        median = {name: statistics.median(values) for name, values in times.items()}
        for name, seconds in median.items():
            print(f"{algo} update, {name}: {seconds * 1e3:.0f} ms, "
                  f"{median['fp32'] / seconds:.2f}x fp32")  # fmt: skip


def bench_loop() -> None:
    """Environment steps per second: ActorQ in fp32 with one actor against SB3's learn()."""
    torch.set_num_threads(2)
    options: dict[str, Any] = dict(
        batch_size=64, learning_starts=500, train_freq=4, gradient_steps=1
    )
    ratios = []
    for seed in range(3):
        theirs = make_algorithm("dqn", "CartPole-v1", 256, seed, **options)
        started = time.perf_counter()
        theirs.learn(LOOP_STEPS)
        sb3 = LOOP_STEPS / (time.perf_counter() - started)
        ours = make_algorithm("dqn", "CartPole-v1", 256, seed, **options)
        actorq = ActorQ(ours, precision="fp32", n_actors=1, samples_per_insert=16, seed=seed)
        result = actorq.learn(LOOP_STEPS, progress_bar=False)
        ratios.append(result.steps / result.wall_s / sb3)
        print(f"SB3 learn {sb3:.0f} steps/s ({theirs._n_updates} updates), "
              f"ActorQ {result.steps / result.wall_s:.0f} ({result.updates} updates)")  # fmt: skip
    print(f"ActorQ fp32, one actor, against SB3: {statistics.median(ratios):.2f}x (target 1x)")


def bench_cores() -> None:
    """Environment steps per second by the learner's threads: timed updates, all cores, one."""
    torch.set_num_threads(2)
    # Width, actors, samples an insert, steps, whether another process wants a core.
    for width, actors, samples, steps, beside in (
        (64, 2, 1, 20_000, False), (256, 2, 1, 10_000, False), (2048, 1, 8, 2_500, False),
        (64, 2, 1, 20_000, True), (256, 2, 1, 10_000, True),
    ):  # fmt: skip
        rates: dict[str, list[float]] = {"timed": [], "two": [], "one": []}
        with another_busy_process() if beside else nullcontext():
            for seed in range(3):
                for threads, measured in rates.items():
                    model = make_algorithm("dqn", "CartPole-v1", width, seed, learning_starts=500)
                    actorq = ActorQ(model, n_actors=actors, samples_per_insert=samples, seed=seed)
                    with learner_threads(threads):
                        result = actorq.learn(steps, progress_bar=False)
                    measured.append(result.steps / result.wall_s)
        shown = ", ".join(f"{threads} {min(measured):.0f} to {max(measured):.0f}"
                          for threads, measured in rates.items())  # fmt: skip
        timed, two, one = map(statistics.median, rates.values())
        print(f"DQN {width} wide, actors: {actors}, samples an insert: {samples}, another busy "
              f"process: {beside}\n  steps/s by the learner's threads: {shown}; "
              f"timed {timed / two:.2f}x two, {timed / one:.2f}x one")  # fmt: skip


@contextmanager
def learner_threads(threads: str) -> Iterator[None]:
    """Updates with timed threads, as the loop does, or with torch's own two or one."""
    if threads == "timed":
        yield
        return
    torch.set_num_threads({"two": 2, "one": 1}[threads])
    with patch.object(SharedCores, "shared", nullcontext):
        yield
    torch.set_num_threads(2)


@contextmanager
def another_busy_process() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            yield
        finally:
            busy.kill()


PARTS = {"actors": bench_actors, "learner": bench_learner, "loop": bench_loop, "cores": bench_cores}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
