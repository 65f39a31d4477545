"""A crew takes in what the rate limiter has room for, of every actor alike."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from stable_baselines3 import DQN

from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.crew import QUANTIZER, Crew
from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.process import ProcessCrew
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.saving import Saving
from quarl_nb.actorq.settings import ActorTask, Orders, Settings, Transitions
from quarl_nb.errors import QuarlError
from quarl_nb.rl.checkpoint import Progress


class Eager:
    """A member whose next message is always there; it dies if that is None."""

    def __init__(self, name, message=None, restarts=0):
        self.name, self.message, self.restarts, self.told = name, message, restarts, []

    def receive(self):
        return self.message

    def send(self, message):
        self.told.append(message)

    def death(self):
        return "fell ill"

    def await_hello(self): ...
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
        return Eager(f"actor {task.index}", message, task.restarts)

    def new_quantizer(self, restarts):
        return Eager(QUANTIZER, (1000, 0.5), restarts)

    def order_payload(self, weights):
        self.members[QUANTIZER].send(weights.version)

    def announce(self, publication):
        return publication


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
    assert 0 <= learner.steps - 3000 < settings.message_transitions  # of one message alone
    assert not learner.is_behind()
    assert 0.5 * learner.limiter.tolerance < max(leads) <= learner.limiter.tolerance
    assert max(heard.values()) - min(heard.values()) <= 1


@pytest.fixture
def crew(counter):
    """Two actors and a quantizer, of a run that was resumed after 100 updates."""
    model = DQN("MlpPolicy", counter(), learning_starts=20, batch_size=8, buffer_size=1000,
                device="cpu")  # fmt: skip
    settings = Settings(n_actors=2, publish_period=5, samples_per_insert=0.05)
    learner = Learner(model, settings, 10**6, updates=100)
    tasks = [ActorTask(i, counter, learner.policy().spec, settings) for i in range(2)]
    return EagerCrew(Run(learner, 3000, Saving(), Progress(), bar=False), tasks)


def test_the_clock_starts_when_all_are_up_and_actors_begin_then(crew, monkeypatch):
    events = []
    monkeypatch.setattr(Eager, "await_hello", lambda self: events.append("up"))
    monkeypatch.setattr(Eager, "send", lambda self, _: events.append(self.name))
    monkeypatch.setattr(crew.run, "start_clock", lambda: events.append("clock"))
    crew.start()
    # 8 / 0.05 steps make an update: of two actors' 80 each, in messages of 50, two are sent ahead.
    assert events == ["up"] * 3 + ["clock"] + ["actor 0"] * 3 + ["actor 1"] * 3


def test_weights_are_ordered_after_every_publish_period_of_a_quantizer_that_is_free(crew):
    crew.start()
    quantizer = crew.members[QUANTIZER]

    def update(times):
        for _ in range(times):
            crew.learner.updates += 1
            crew._publish_if_due()

    update(4)
    assert quantizer.told == []
    update(3)
    assert quantizer.told == [105]
    crew._take(quantizer)  # it is done with these
    update(2)
    assert quantizer.told == [105]
    update(6)  # the second is due while it is still busy
    assert quantizer.told == [105, 110]
    crew._take(quantizer)
    crew._publish_if_due()
    assert quantizer.told == [105, 110, 115]


def test_a_quantizer_that_dies_at_its_work_leaves_its_successor_free(crew):
    crew.start()
    crew.learner.updates += 5
    crew._publish_if_due()
    crew.members[QUANTIZER].message = None
    crew._take(crew.members[QUANTIZER])
    crew.learner.updates += 5
    crew._publish_if_due()
    assert crew.members[QUANTIZER].told == [110]


@pytest.mark.parametrize("name", ["actor 1", QUANTIZER])
def test_whoever_dies_three_times_without_a_message_ends_the_run(crew, name):
    def die(times):
        for _ in range(times):
            crew.members[name].message = None
            crew._take(crew.members[name])

    crew.start()
    die(2)
    crew._take(crew.members[name])  # one message: it counts anew
    die(2)
    assert crew.members[name].restarts == crew.run.result.restarts == 4
    with pytest.raises(QuarlError, match=f"^{name} fell ill, 3 times without sending anything$"):
        die(1)


def test_a_successor_begins_as_its_predecessor_did_and_knows_how_often_it_was_started(crew):
    crew.start()
    first = crew.members["actor 1"]
    first.message = None
    crew._take(first)
    assert crew.members["actor 1"].told == first.told and len(first.told) == 3
    assert [task.restarts for task in crew.tasks] == [0, 1]


def test_children_are_told_how_often_they_were_started(crew, monkeypatch):
    monkeypatch.setattr("quarl_nb.actorq.process.Child",
                        lambda name, body, arguments, restarts=0: (name, restarts))  # fmt: skip
    processes = ProcessCrew(crew.run, crew.tasks)
    assert processes.new_actor(replace(crew.tasks[1], restarts=2)) == ("actor 1", 2)
    assert processes.new_quantizer(3) == (QUANTIZER, 3)


def test_an_actor_on_another_machine_leaves_its_core_to_the_learner(crew):
    crew.start()
    crew.members["actor 1"].message.host = "node-7"
    crew._take(crew.members["actor 1"])
    assert crew.cores.busy == [1.0, 0.0]


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
    actor.open(make_variables(net, 1, task))
    assert list(islice(lengths(), 1000)) == made  # as after every pull
    batch = 10  # an update's steps are 1000
    assert settings.messages_ahead(batch) == min(100, int(np.ceil(1000 / np.mean(made))))
