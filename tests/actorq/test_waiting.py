"""Whoever has to wait sleeps: a blocked actor, learner or quantizer takes no CPU."""

import multiprocessing
import threading
import time

import gymnasium as gym
import psutil
import pytest
from stable_baselines3 import DQN

from quarl_nb.actorq import ActorQ, Settings
from quarl_nb.actorq.children import send
from quarl_nb.actorq.settings import MOST_AHEAD

MESSAGE = 10  # steps


def test_a_message_that_the_learner_has_yet_to_read_is_waited_for_not_sent():
    here, there = multiprocessing.Pipe()
    received = []

    def read_late():
        time.sleep(0.5)
        received.append(there.recv())

    reader = threading.Thread(target=read_late)
    reader.start()
    seconds = {"send": 0.0, "wait": 0.0}
    started = time.perf_counter()
    send(here, b"x" * 3_000_000, seconds)  # more than a pipe holds
    assert sum(seconds.values()) <= time.perf_counter() - started
    reader.join()
    assert len(received[0]) == 3_000_000
    assert seconds["wait"] > 0.3 and seconds["send"] < 0.15


def cpu_s(name):
    """CPU-seconds so far of a child, by its name in ActorQ; of this process by ""."""
    children = multiprocessing.active_children()
    pid = next(c.pid for c in children if c.name == name) if name else None
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


class Meter:
    """Watches a run: what each role's CPU and the wall clock say from one step count to another."""

    def __init__(self, *names):
        self.names, self.readings = names, []

    def __call__(self, result):
        reading = {name: cpu_s(name) for name in self.names} | {"wall": time.perf_counter()}
        self.readings.append((result.steps, reading))

    def spent(self, first, last):
        steps = dict(self.readings)
        return {key: steps[last][key] - steps[first][key] for key in steps[first]}


def test_an_actor_that_is_ahead_sleeps_until_the_rate_limiter_lets_it_go_on(
    small_dqn, counter
):
    class Slow(DQN):
        def train(self, gradient_steps, batch_size):
            time.sleep(0.02)
            super().train(gradient_steps, batch_size)

    model = small_dqn(counter())
    model.__class__ = Slow
    meter = Meter("actor 0", "quantizer")
    actorq = ActorQ(model, counter, n_actors=1, transitions_per_message=MESSAGE,
                    samples_per_insert=8, publish_period=10**9)  # fmt: skip
    result = actorq.learn(160, progress_bar=False, on_message=meter)
    # 60 updates of 0.02 s from 100 steps on: one batch of 8 for each step.
    spent = meter.spent(100, 160)
    assert spent["wall"] > 1
    assert spent["actor 0"] < spent["wall"] / 4 and spent["quantizer"] < spent["wall"] / 4
    assert result.actor_s["wait"] > 1 and result.learner_s["wait"] < result.learner_s["train"]


def test_a_learner_without_new_steps_sleeps_until_a_message_comes(small_dqn, counter):
    class Slow(counter):
        def step(self, action):
            time.sleep(0.02)
            return super().step(action)

    meter = Meter("", "actor 0", "quantizer")
    actorq = ActorQ(small_dqn(counter()), Slow, n_actors=1, transitions_per_message=MESSAGE,
                    samples_per_insert=1, publish_period=10**9)  # fmt: skip
    result = actorq.learn(160, progress_bar=False, on_message=meter)
    spent = meter.spent(100, 160)  # 60 steps of 0.02 s
    assert spent["wall"] > 1
    for role in meter.names:
        assert spent[role] < spent["wall"] / 4, role
    assert result.learner_s["wait"] > 1


def test_an_actor_makes_the_next_updates_steps_during_this_one(small_dqn, counter, tmp_path):
    """An update is made of 8 / 0.25 steps: four messages, beside the one that is being made."""
    made = tmp_path / "steps"

    class Counted(counter):
        def step(self, action):
            with made.open("ab") as file:
                file.write(b".")
            return super().step(action)

    class Patient(DQN):
        def train(self, gradient_steps, batch_size):
            deadline = time.monotonic() + 20
            while made.stat().st_size - self.num_timesteps < 4 * MESSAGE:
                assert time.monotonic() < deadline, "the actor stands still"
                time.sleep(0.001)
            super().train(gradient_steps, batch_size)

    model = small_dqn(counter())
    model.__class__ = Patient
    actorq = ActorQ(model, Counted, n_actors=1, transitions_per_message=MESSAGE,
                    samples_per_insert=0.25)  # fmt: skip
    result = actorq.learn(260, progress_bar=False)
    assert result.stopped == "done" and result.updates >= 5
    assert made.stat().st_size - result.steps <= 5 * MESSAGE


@pytest.mark.parametrize(("samples_per_insert", "batch_size", "settings", "messages"), [
    (16, 256, {}, 1),  # the paper's: 16 steps of four actors
    (1, 128, {"n_actors": 1}, 3),
    (1, 800, {}, 4),  # 200 steps of each of four actors
    (1, 128, {"n_actors": 1, "pull_period": 30}, 5),  # none reaches over a pull
    (1, 128, {"n_actors": 1, "pull_period": 60}, 5),  # messages of 50 and 10 steps by turns
    (1, 256, {"n_actors": 1, "envs_per_actor": 64, "transitions_per_message": 100}, 4),  # of 64
    (1, 256, {"n_actors": 1, "envs_per_actor": 100}, 3),  # one step of all is more than 50
    (1, 128, {"n_actors": 1, "envs_per_actor": 2, "pull_period": 3}, 64),  # each of one step
    (0.001, 128, {}, MOST_AHEAD),
])  # fmt: skip
def test_messages_ahead_by_hand(samples_per_insert, batch_size, settings, messages):
    made = Settings(samples_per_insert=samples_per_insert, **settings)
    assert made.messages_ahead(batch_size) == messages


@pytest.mark.parametrize(("settings", "updates"), [
    ({}, 125),  # the paper's: 250 updates while each of four actors makes 1000 steps
    ({"n_actors": 1, "pull_period": 120}, 4),  # 7.5 while it makes them: half are nearer to 4
    ({"n_actors": 1, "pull_period": 30}, 1),
    ({"n_actors": 1, "pull_period": 1}, 1),
    ({"publish_period": 7}, 7),
])  # fmt: skip
def test_updates_per_publication_by_hand(settings, updates):
    assert Settings(**settings).updates_per_publication(256) == updates


def test_actors_act_on_the_newest_orders_however_many_messages_they_may_be_ahead(
    small_dqn, counter, tmp_path
):
    """The first orders are to act at random: 33 of them, since 8 / 0.025 steps make an update."""
    drawn = tmp_path / "drawn"
    drawn.touch()

    class Watched(gym.spaces.Discrete):
        def sample(self, *arguments):
            with drawn.open("ab") as file:
                file.write(b".")
            return super().sample(*arguments)

    class Noted(counter):
        def __init__(self):
            super().__init__()
            self.action_space = Watched(3)

        def step(self, action):
            time.sleep(0.001)  # the learner is the faster side, and its answers come in time
            return super().step(action)

    actorq = ActorQ(small_dqn(counter()), Noted, n_actors=1, transitions_per_message=MESSAGE,
                    samples_per_insert=0.025)  # fmt: skip
    result = actorq.learn(400, progress_bar=False)
    assert result.stopped == "done"
    assert 20 <= drawn.stat().st_size <= 100  # of the warm-up of 20, and messages on their way
