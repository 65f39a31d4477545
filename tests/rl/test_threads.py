"""Threads of an SB3 algorithm's updates, by planted times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from quarl_nb.rl.threads import faster_threads


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Model:
    """An algorithm whose updates take so many seconds with one and two threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> None:
        self.now, self.seconds, self.taken = 0.0, seconds, [0, 0, 0]
        monkeypatch.setattr("quarl_nb.rl.threads.time.perf_counter", lambda: self.now)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        assert (gradient_steps, batch_size) == (1, 32)
        self.now += self.seconds[torch.get_num_threads()]
        self.taken[torch.get_num_threads()] += 1


@pytest.mark.parametrize(("seconds", "faster"), [({1: 1.0, 2: 40.0}, 1), ({1: 1.0, 2: 0.7}, 2)])
def test_updates_have_the_threads_that_are_faster(monkeypatch, seconds, faster) -> None:
    model = Model(monkeypatch, seconds)
    with faster_threads(model):
        for _ in range(1000):
            model.train(1, batch_size=32)
    assert model.taken[faster] > 960 and min(model.taken[1:]) >= 3
    assert torch.get_num_threads() == 2 and "train" not in vars(model)


def test_an_error_of_an_update_leaves_the_threads_as_they_were(monkeypatch) -> None:
    model = Model(monkeypatch, {})
    with pytest.raises(KeyError), faster_threads(model):
        model.train(1, batch_size=32)
    assert torch.get_num_threads() == 2 and "train" not in vars(model)


def test_one_thread_is_left_alone(monkeypatch) -> None:
    torch.set_num_threads(1)
    model = Model(monkeypatch, {1: 1.0})
    with faster_threads(model):
        assert "train" not in vars(model)
