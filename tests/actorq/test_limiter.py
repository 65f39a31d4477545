import numpy as np
import pytest

from quarl_nb.actorq.limiter import RateLimiter


def test_nothing_is_sampled_before_the_buffer_holds_its_least():
    limiter = RateLimiter(samples_per_insert=16, min_size=100, tolerance=512)
    assert limiter.can_insert(100) and not limiter.can_sample(1)
    limiter.inserts = 99
    assert not limiter.can_sample(1)
    limiter.inserts = 100
    assert limiter.can_sample(512) and not limiter.can_sample(513)


def test_each_side_is_blocked_once_it_is_ahead_by_the_tolerance():
    limiter = RateLimiter(samples_per_insert=4, min_size=10, tolerance=40, inserts=10)
    assert limiter.can_insert(10) and not limiter.can_insert(11)  # 4 x 11 > 40
    limiter.inserts += 10
    assert not limiter.can_insert(1)
    limiter.samples += 40
    assert limiter.can_insert(10) and limiter.can_sample(40)


def test_what_is_owed_is_what_was_inserted_times_the_ratio():
    limiter = RateLimiter(samples_per_insert=4, min_size=10, tolerance=40, inserts=10)
    assert limiter.can_sample(8) and not limiter.owes(8)
    limiter.inserts += 3
    assert limiter.owes(12) and not limiter.owes(13)
    limiter.samples += 5
    assert limiter.owes(7) and not limiter.owes(8)


def test_what_is_asked_of_a_fraction_of_a_sample_an_insert_is_not_rounded_to_none():
    assert RateLimiter(0.4, 5, 100, inserts=15, samples=3).ahead == 3 - 4
    assert RateLimiter(1.5, 5, 100, inserts=9).ahead == -6


def test_an_empty_buffer_is_not_sampled_where_no_least_is_asked():
    limiter = RateLimiter(samples_per_insert=16, min_size=0, tolerance=512)
    assert not limiter.can_sample(8)
    limiter.inserts = 1
    assert limiter.can_sample(8)


def test_the_ratio_is_kept_whoever_is_faster():
    rng = np.random.default_rng(0)
    for patience in (0.1, 0.5, 0.9):
        limiter = RateLimiter(samples_per_insert=16, min_size=50, tolerance=1000)
        for _ in range(20_000):
            if rng.random() < patience and limiter.can_insert(10):
                limiter.inserts += 10
            elif limiter.can_sample(64):
                limiter.samples += 64
            assert limiter.can_insert(10) or limiter.can_sample(64)  # never both blocked
        expected = (limiter.inserts - 50) * 16
        assert abs(limiter.samples - expected) <= 1000


def test_a_run_resumed_from_an_older_checkpoint_owes_nothing():
    limiter = RateLimiter(samples_per_insert=16, min_size=100, tolerance=512)
    limiter.resume(1100)
    assert limiter.samples == 16_000 and limiter.can_sample(512) and limiter.can_insert(32)


def test_a_run_resumed_without_its_buffer_owes_nothing_before_that_is_filled():
    limiter = RateLimiter(samples_per_insert=16, min_size=420, tolerance=3200)
    limiter.resume(400, ahead=-3200)
    assert not limiter.owes(8)
    limiter.inserts = 420
    assert limiter.owes(8)


@pytest.mark.parametrize("ahead", [-3200, 0, 3200])
def test_messages_that_do_not_add_up_to_the_least_fill_a_resumed_runs_buffer(ahead):
    limiter = RateLimiter(samples_per_insert=16, min_size=420, tolerance=3200)
    limiter.resume(300, ahead)
    while limiter.inserts < 420:
        assert not limiter.can_sample(8) and limiter.can_insert(50)
        limiter.inserts += 50
    assert limiter.inserts == 450
    assert limiter.can_insert(50) or limiter.can_sample(8)


@pytest.mark.parametrize("parts", [1, 2, 20])
def test_a_run_in_parts_samples_as_often_as_one(parts):
    done, ahead, samples = 0, 0, 0
    for part in range(1, parts + 1):
        limiter = RateLimiter(samples_per_insert=16, min_size=100, tolerance=512)
        limiter.resume(done, ahead)
        while limiter.inserts < 2000 * part // parts:
            limiter.inserts += 10
            while limiter.can_sample(64):  # a learner that is faster than its actors
                limiter.samples, samples = limiter.samples + 64, samples + 64
        done, ahead = limiter.inserts, limiter.ahead
    assert 0 < samples - 1900 * 16 <= 512
