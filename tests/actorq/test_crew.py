"""A crew takes in what the rate limiter has room for, of every actor alike."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from stable_baselines3 import DQN

from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.crew import QUANTIZER, Crew
from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.saving import Saving
from quarl_nb.actorq.settings import ActorTask, Orders, Settings, Transitions
from quarl_nb.rl.checkpoint import Progress


class Eager:
    """A member whose next message is always there."""

    restarts = 0

    def __init__(self, name, message=None):
        self.name, self.message = name, message

    def receive(self):
        return self.message

    def await_hello(self): ...
    def send(self, _): ...
    def close(self): ...
    def interrupt(self): ...
    def end(self): ...


class EagerCrew(Crew):
    """Actors that are always ready and send what their settings let them send at most."""

    def ready(self, _):
        return self.actors

    def new_actor(self, task):
        envs = task.settings.envs_per_actor
        steps, obs = task.settings.message_transitions // envs, self.learner.algorithm.env.reset()
        obs, none = np.zeros((steps, envs, *obs.shape[1:])), np.zeros((steps, envs))
        message = Transitions(task.index, 0, obs, obs, none.astype(int), none, none, none,
                              seconds={"wait": 0.0})  # fmt: skip
        return Eager(f"actor {task.index}", message)

    def new_quantizer(self, restarts):
        return Eager(QUANTIZER)

    def order_payload(self, weights): ...
    def announce(self, publication): ...


@pytest.mark.parametrize("options", [
    {},
    dict(envs_per_actor=30, transitions_per_message=10),  # a message is longer than that
    dict(pull_period=10),
])  # fmt: skip
def test_actors_are_never_ahead_by_more_than_the_tolerance_and_take_turns(
    counter, monkeypatch, options
):
    model = DQN("MlpPolicy", counter(), learning_starts=20, batch_size=8, buffer_size=100,
                device="cpu")  # fmt: skip
    settings = Settings(n_actors=3, **options)
    learner = Learner(model, settings, 10**6)
    monkeypatch.setattr(model, "train", lambda **_: None)
    tasks = [ActorTask(i, counter, learner.policy().spec, settings) for i in range(3)]
    run, heard, leads = Run(learner, 3000, Saving(), Progress(), bar=False), Counter(), []

    def receive(message):
        learner.insert(message)
        heard[message.actor] += 1
        leads.append(learner.limiter._lead)

    monkeypatch.setattr(run, "receive", receive)
    EagerCrew(run, tasks).work()
    assert learner.steps >= 3000
    assert 0.5 * learner.limiter.tolerance < max(leads) <= learner.limiter.tolerance
    assert max(heard.values()) - min(heard.values()) <= 1


@pytest.mark.parametrize("envs", [1, 3, 7, 40])
@pytest.mark.parametrize("pull, most", [(30, 50), (100, 50), (70, 50), (100, 30), (5, 1)])
def test_messages_are_as_long_and_as_many_as_actors_make_them(
    counter, mlp_policy, envs, pull, most
):
    settings = Settings(n_actors=1, envs_per_actor=envs, pull_period=pull, samples_per_insert=0.01,
                        transitions_per_message=most)  # fmt: skip
    net = mlp_policy(2, (4,), 3)
    task = ActorTask(0, counter, net.spec, settings)
    actor = Actor(task)
    actor.open(make_variables(net, 0, task))

    def lengths():
        while not actor.pull_due:
            yield len(actor.collect(actor.message_steps, Orders(True)))

    made = list(islice(lengths(), 1000))
    assert max(made) == settings.message_transitions
    batch = 10  # an update's steps are 1000
    assert settings.messages_ahead(batch) == min(100, int(np.ceil(1000 / np.mean(made))))
