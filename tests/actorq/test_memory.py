"""Actors of the paper's size stay small and do not grow."""

import multiprocessing

import psutil
import pytest

from quarl_nb.actorq import ActorQ
from quarl_nb.actorq.algorithms import make_algorithm

LIMIT_BYTES = 700e6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_int8_actor_of_the_papers_size_stays_below_700_mb():
    model = make_algorithm("dqn", "CartPole-v1", batch_size=32, learning_starts=200)
    sizes = []

    def watch(result):
        actor = next(c for c in multiprocessing.active_children() if c.name == "actor 0")
        sizes.append(psutil.Process(actor.pid).memory_info().rss)

    # A pull every 30 steps: some hundred policies of 8.6 MB are opened.
    actorq = ActorQ(model, n_actors=1, pull_period=30, publish_period=1, samples_per_insert=2)
    result = actorq.learn(20_000, progress_bar=False, on_message=watch)
    assert result.published > 200
    assert max(sizes) < LIMIT_BYTES
    tenth = len(sizes) // 10
    early, late = max(sizes[tenth : 2 * tenth]), max(sizes[-tenth:])
    print(f"{early / 1e6:.0f} MB, then {late / 1e6:.0f} MB over {result.pulls} pulls")
    assert late - early < 2 * result.payload_bytes  # the old policy goes when the new one is open
