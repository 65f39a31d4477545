"""Threads of the learner beside actors on the same cores, against sums done by hand."""

from __future__ import annotations

import platform
from collections.abc import Iterator

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


def test_actors_that_have_sent_nothing_yet_are_taken_to_act() -> None:
    cores = SharedCores(n_actors=4)
    cores.share()
    assert torch.get_num_threads() == 2


def test_the_learner_gets_the_cores_of_actors_that_wait_for_it() -> None:
    cores = SharedCores(n_actors=3)
    for actor, (acting_s, wait_s) in enumerate([(0.9, 0.1), (0.5, 0.5), (0.0, 2.0)]):
        cores.heard_from(message(actor, acting_s, wait_s))
    cores.share()
    assert torch.get_num_threads() == 5  # 0.9 + 0.5 + 0 of a core: one
    cores.heard_from(message(2, 1.0, 0.0))
    cores.share()
    assert torch.get_num_threads() == 4  # 0.9 + 0.5 + 1: two


def test_actors_on_other_machines_share_no_core_with_the_learner() -> None:
    cores = SharedCores(n_actors=3)
    for actor, host in enumerate([platform.node(), "node-7", "node-8"]):
        sent = message(actor, 1.0, 0.0)
        sent.host = host
        cores.heard_from(sent)
    cores.share()
    assert torch.get_num_threads() == 5


def test_one_thread_is_left_beside_more_actors_than_cores() -> None:
    cores = SharedCores(n_actors=9)
    cores.share()
    assert torch.get_num_threads() == 1


def test_release_gives_the_caller_its_threads_back() -> None:
    cores = SharedCores(n_actors=2)
    cores.share()
    cores.release()
    assert torch.get_num_threads() == 6
