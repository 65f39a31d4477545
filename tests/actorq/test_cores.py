"""Threads of the learner beside actors on the same cores, against sums done by hand."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch

from quarl_nb.actorq.cores import SharedCores
from quarl_nb.actorq.settings import Transitions


@pytest.fixture(autouse=True)
def six_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    yield
    torch.set_num_threads(before)


def message(actor: int, acting_s: float, wait_s: float) -> Transitions:
    nothing = np.zeros((0, 1))
    seconds = {"environment": acting_s / 4, "inference": acting_s * 3 / 4, "wait": wait_s}
    return Transitions(actor, 0, *[nothing] * 6, seconds=seconds, host=platform.node())


def first_threads(cores: SharedCores) -> int:
    with cores.shared():
        return torch.get_num_threads()


@pytest.fixture
def update(monkeypatch) -> Callable[..., int]:
    """One update that takes the seconds given for so many threads; how many it had."""
    now = [0.0]
    monkeypatch.setattr("quarl_nb.rl.threads.time.perf_counter", lambda: now[0])

    def one(cores: SharedCores, seconds: Mapping[int, float]) -> int:
        with cores.shared():
            threads = torch.get_num_threads()
            now[0] += seconds[threads]
        return threads

    return one


def test_actors_that_have_sent_nothing_yet_are_taken_to_act() -> None:
    assert first_threads(SharedCores(n_actors=4)) == 2


def test_the_learner_gets_the_cores_of_actors_that_wait_for_it() -> None:
    # 0.9 + 0.5 of a core and none, all of one, a fifth: one, two, nearer to two
    for last, threads in ((0.0, 5), (1.0, 4), (0.2, 4)):
        cores = SharedCores(n_actors=3)
        for actor, acting_s in enumerate([0.9, 0.5, last]):
            cores.heard_from(message(actor, acting_s, 1 - acting_s))
        assert first_threads(cores) == threads
        cores.release()


def test_an_actor_that_tells_of_no_seconds_is_taken_to_act() -> None:
    cores = SharedCores(n_actors=2)
    cores.heard_from(message(0, 0.0, 0.0))
    assert first_threads(cores) == 4


def test_actors_on_other_machines_share_no_core_with_the_learner() -> None:
    cores = SharedCores(n_actors=3)
    for actor, host in enumerate([platform.node(), "node-7", "node-8"]):
        sent = message(actor, 1.0, 0.0)
        sent.host = host
        cores.heard_from(sent)
    assert first_threads(cores) == 5


def test_one_thread_is_left_beside_more_actors_than_cores(update) -> None:
    cores = SharedCores(n_actors=9)
    assert {update(cores, {1: 1.0}) for _ in range(99)} == {1}


@pytest.mark.parametrize(("seconds", "faster"), [({1: 1e-3, 4: 30e-3}, 1), ({1: 0.29, 4: 0.15}, 4)])
def test_all_free_cores_or_one_whichever_is_faster(update, seconds, faster) -> None:
    cores = SharedCores(n_actors=2)
    taken = Counter(update(cores, seconds) for _ in range(10_000))
    slower = 5 - faster
    assert 5 < taken[slower]  # now and then, but for a fiftieth of the time
    total = sum(seconds[threads] * n for threads, n in taken.items())
    assert taken[slower] * seconds[slower] < 0.02 * total + 4 * seconds[slower]


def test_what_became_faster_is_found_and_an_odd_update_decides_nothing(update) -> None:
    cores = SharedCores(n_actors=2)
    update(cores, {4: 9.0})  # the first, which warms up
    assert not any(cores.recent.values())
    for _ in range(1000):
        update(cores, {1: 1e-3, 4: 30e-3})
    taken = [update(cores, {1: 1e-3, 4: 0.5e-3}) for _ in range(2000)]
    assert taken[0] == 1 and taken[-500:].count(4) > 450
    update(cores, {1: 5.0, 4: 5.0})
    assert [update(cores, {1: 1e-3, 4: 0.5e-3}) for _ in range(9)].count(4) >= 8


def test_release_gives_the_caller_its_threads_back() -> None:
    cores = SharedCores(n_actors=2)
    first_threads(cores)
    cores.release()
    assert torch.get_num_threads() == 6
