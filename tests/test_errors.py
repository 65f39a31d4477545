from __future__ import annotations

import pytest

from quarl_nb.errors import QuarlError, check_choice


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
