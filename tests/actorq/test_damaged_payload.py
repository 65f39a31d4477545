"""A payload that was damaged on its way ends the run in one line; what was done is kept."""

import multiprocessing
from dataclasses import replace

import pytest

from quarl_nb.actorq import ActorQ
from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.process import ProcessCrew
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.settings import ActorTask, Orders, Settings
from quarl_nb.actorq.variables import Variables
from quarl_nb.errors import QuarlError

pytestmark = pytest.mark.timeout(120)  # nothing hangs
DAMAGED = "cut or corrupted|not a quarl_nb payload|weights on the wire are damaged"


def flipped(payload, position):
    """One bit of one byte."""
    changed = bytearray(payload)
    changed[position] ^= 1 << position % 8
    return bytes(changed)


def damage(kind, payload):
    return payload[: len(payload) // 2] if kind == "cut" else flipped(payload, len(payload) - 70)


FORMATS = [
    dict(precision="int8"),
    dict(precision="fp32"),
    dict(precision="bf16", runtime="torch"),
    dict(precision="fp32", communication="int8"),
]


@pytest.mark.parametrize("settings", FORMATS)
def test_an_actor_refuses_every_damage_and_goes_on_with_the_policy_it_has(
    counter, mlp_policy, settings
):
    net = mlp_policy(2, (8,), 3)
    task = ActorTask(0, counter, net.spec, Settings(n_actors=1, **settings))
    actor = Actor(task)
    actor.open(make_variables(net, 1, task))
    whole = make_variables(net, 2, task)
    size = len(whole.payload)
    damaged = [flipped(whole.payload, position) for position in range(0, size, 5)]
    damaged += [whole.payload[:length] for length in range(0, size, 50)]
    for payload in damaged:
        with pytest.raises(QuarlError, match=DAMAGED) as error:
            actor.open(replace(whole, payload=payload))
        assert "\n" not in str(error.value) and actor.version == 1
    assert actor.collect(3, Orders(False)).version == 1
    actor.open(whole)
    assert actor.collect(3, Orders(False)).version == 2


def test_an_actor_refuses_variables_older_than_those_it_has(counter, mlp_policy):
    net = mlp_policy(2, (8,), 3)
    task = ActorTask(0, counter, net.spec, Settings(n_actors=1))
    actor = Actor(task)
    actor.open(make_variables(net, 2, task))
    with pytest.raises(QuarlError, match="variables went back from 2 to 1"):
        actor.open(make_variables(net, 1, task))
    assert actor.version == 2


@pytest.mark.parametrize("kind", ["cut", "flipped"])
def test_a_damaged_payload_ends_a_serial_run_with_what_was_done(
    small_dqn, counter, monkeypatch, kind
):
    closed, publications = [], []

    class Closing(counter):
        def close(self):
            closed.append(self)

    def third_is_damaged(net, version, task):
        whole = make_variables(net, version, task)
        publications.append(version)
        wrong = len(publications) == 3
        return replace(whole, payload=damage(kind, whole.payload)) if wrong else whole

    monkeypatch.setattr("quarl_nb.actorq.serial.make_variables", third_is_damaged)
    actorq = ActorQ(small_dqn(counter()), Closing, "serial", n_actors=1, pull_period=50)
    with pytest.raises(QuarlError, match="^payload is cut or corrupted: .*$") as error:
        actorq.learn(1000, progress_bar=False)
    result = actorq.result
    assert result.stopped == str(error.value)
    # Two pulls of 50 steps went well; the message that tells of the third was never sent.
    assert (result.steps, result.pulls, len(result.episodes), len(closed)) == (100, 2, 14, 1)
    assert result.updates > 0 and "sample" not in vars(actorq.algorithm.replay_buffer)


@pytest.fixture
def crews(monkeypatch):
    """The process engine's crews of this test, as they start; none may leave anybody behind."""
    found, start = [], ProcessCrew.start

    def keep(crew):
        found.append(crew)
        start(crew)

    monkeypatch.setattr(ProcessCrew, "start", keep)
    yield found
    assert not multiprocessing.active_children()


def fails_in_process(actorq, crews, strike, message):
    """A run that is struck after 500 steps and ends for that reason alone, its result whole."""
    struck_at = []

    def once(result):
        if result.steps >= 500 and not struck_at:
            struck_at.append(result.steps)
            strike(crews[0])

    with pytest.raises(QuarlError, match=message) as error:
        actorq.learn(10**6, progress_bar=False, on_message=once)
    result = actorq.result
    assert "\n" not in str(error.value) and result.stopped == str(error.value)
    assert result.restarts == 0 and result.steps >= struck_at[0] and result.updates > 0
    assert sum(e.length for e in result.episodes) > 400 and result.learner_s["train"] > 0


def wrong_payload(kind, crew, mlp_policy):
    if kind == "of another network":
        return make_variables(mlp_policy(2, (8,), 7), 0, crew.tasks[0]).payload
    return damage(kind, crew.payloads.pull().payload)


@pytest.mark.parametrize("kind, message", [
    ("flipped", "payload is cut or corrupted: .*"),
    ("of another network", "the payload is of another network: it has 7 outputs, the policy 3"),
])  # fmt: skip
def test_a_wrong_payload_in_shared_memory_ends_the_run(
    small_dqn, counter, mlp_policy, crews, kind, message
):
    def strike(crew):
        payload = wrong_payload(kind, crew, mlp_policy)
        crew.payloads.publish(Variables(10**6, payload))

    # The quantizer, the only writer, publishes nothing of its own.
    actorq = ActorQ(small_dqn(counter()), counter, n_actors=1, pull_period=50,
                    publish_period=10**9)  # fmt: skip
    fails_in_process(actorq, crews, strike, f"^actor 0: {message}$")


def test_weights_that_reach_the_quantizer_damaged_end_the_run(small_dqn, counter, crews):
    def strike(crew):
        whole = crew.order_payload

        def damaged(weights):
            whole(replace(weights, payload=damage("flipped", weights.payload)))

        crew.order_payload = damaged

    actorq = ActorQ(small_dqn(counter()), counter, n_actors=1, pull_period=50)
    fails_in_process(actorq, crews, strike, "^quantizer: weights on the wire are damaged: .*$")
