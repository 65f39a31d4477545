from __future__ import annotations

import numpy as np
import pytest

from quarl_nb.errors import QuarlError, check_at_least, check_choice, check_counts, check_seeds


def test_an_allowed_value_comes_back():
    assert check_choice("profile", "quick", ["smoke", "quick"]) == "quick"


def test_an_unknown_value_names_the_nearest_and_all():
    with pytest.raises(QuarlError) as error:
        check_choice("environment", "CartPole-v0", ["CartPole-v1", "Acrobot-v1"])
    assert str(error.value) == (
        "unknown environment 'CartPole-v0'; did you mean 'CartPole-v1'? "
        "allowed: CartPole-v1, Acrobot-v1"
    )


def test_nothing_near_gives_no_hint():
    with pytest.raises(QuarlError, match=r"^unknown study 'xyz'; allowed: ptq$"):
        check_choice("study", "xyz", ["ptq"])


def test_an_empty_choice_says_so():
    with pytest.raises(QuarlError, match=r"allowed: none$"):
        check_choice("policy", "x", [])


def test_a_number_that_is_too_small_or_none_is_named():
    check_at_least(1, steps=1, episodes=2)
    with pytest.raises(QuarlError, match="^episodes must be at least 1, not 0$"):
        check_at_least(1, steps=1, episodes=0)
    with pytest.raises(QuarlError, match="^seconds must be at least 0, not nan$"):
        check_at_least(0, seconds=float("nan"))


def test_a_count_is_a_whole_number():
    check_counts(1, steps=1, episodes=np.int64(2))
    for wrong in (2.5, 2.0, "2", None):
        with pytest.raises(QuarlError, match=f"^episodes must be a whole number, not {wrong!r}$"):
            check_counts(1, steps=1, episodes=wrong)
    with pytest.raises(QuarlError, match="^episodes must be at least 1, not 0$"):
        check_counts(1, episodes=0)


def test_a_seed_out_of_range_is_named():
    check_seeds(0, 2**31 - 1)
    check_seeds()
    with pytest.raises(QuarlError, match="^seed must be from 0 to 2147483647, not 2147483648$"):
        check_seeds(5, 2**31)
    with pytest.raises(QuarlError, match="^seed must be a whole number, not 1.5$"):
        check_seeds(5, 1.5)
    with pytest.raises(QuarlError, match="^seed must be a whole number, not True$"):
        check_seeds(True)
