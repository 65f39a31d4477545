from __future__ import annotations

import hashlib
import math

import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.study import Cell, network_name, resolve_parameters
from quarl_nb.testing import FakeStudy


def test_key_is_the_hash_of_the_canonical_text():
    text = ('{"budget":{"episodes":100},"cell":{"algo":"ppo","seed":0},'
            '"schema_version":2,"study":"ptq"}')
    key = Cell("ptq", {"seed": 0, "algo": "ppo"}).key({"episodes": 100}, 2)
    assert key == hashlib.sha256(text.encode()).hexdigest()


def test_key_depends_on_each_part_and_not_on_order():
    cell = Cell("ptq", {"a": 1, "b": 2})
    key = cell.key({"n": 1, "m": 2}, 1)
    assert key == Cell("ptq", {"b": 2, "a": 1}).key({"m": 2, "n": 1}, 1)
    others = [
        Cell("qat", {"a": 1, "b": 2}).key({"n": 1, "m": 2}, 1),
        Cell("ptq", {"a": 1, "b": 3}).key({"n": 1, "m": 2}, 1),
        cell.key({"n": 2, "m": 2}, 1),
        cell.key({"n": 1, "m": 2}, 2),
    ]
    assert len({key, *others}) == 5


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_a_cell_that_is_not_json_is_refused(value):
    with pytest.raises(QuarlError, match="study 'ptq' is not JSON"):
        Cell("ptq", {"x": value}).key({}, 1)


def test_overrides_replace_the_profile_and_leave_it_unchanged():
    study = FakeStudy()
    parameters = resolve_parameters(study, "smoke", {"n_cells": 7, "algos": ["dqn"]})
    assert parameters == {"n_cells": 7, "delay_s": 0.0, "algos": ["dqn"], "episodes": 2}
    assert study.profiles["smoke"]["n_cells"] == 3


def test_an_int_passes_for_a_float_but_not_the_other_way():
    delay = resolve_parameters(FakeStudy(), "smoke", {"delay_s": 1})["delay_s"]
    assert type(delay) is float and delay == 1  # the cell that 1.0 is
    with pytest.raises(QuarlError, match="'n_cells' must be int, not 1.5"):
        resolve_parameters(FakeStudy(), "smoke", {"n_cells": 1.5})


@pytest.mark.parametrize(
    ("profile", "overrides", "message"),
    [
        ("fast", {}, "unknown profile of study 'fake' 'fast'; allowed: smoke, quick"),
        ("smoke", {"n_cell": 1}, "did you mean 'n_cells'.*delay_s, algos, episodes"),
        ("smoke", {"n_cells": "many"}, "'n_cells' must be int, not 'many'"),
        ("smoke", {"n_cells": True}, "must be int, not True"),
        ("smoke", {"delay_s": math.nan}, "'delay_s' must be finite, not nan"),
        ("smoke", {"delay_s": -math.inf}, "'delay_s' must be finite, not -inf"),
        ("smoke", {"algos": "ppo"}, "'algos' must be a list, not 'ppo'"),
        ("smoke", {"algos": ["ppo", 3]}, r"'algos'\[1\] must be str, not 3"),
    ],
)
def test_bad_parameters_are_refused(profile, overrides, message):
    with pytest.raises(QuarlError, match=message):
        resolve_parameters(FakeStudy(), profile, overrides)


def test_a_profile_whose_records_nobody_would_find_is_refused():
    class Paper(FakeStudy):
        profiles = {"paper": FakeStudy().profiles["smoke"]}

    message = "^study 'fake' has a profile 'paper'; a study's may be: full, quick, smoke$"
    with pytest.raises(QuarlError, match=message):
        resolve_parameters(Paper(), "paper")


class SeededStudy(FakeStudy):
    """Its smallest profile has no seeds, and so does not show that they are numbers."""

    @property
    def profiles(self):
        return {"smoke": {"seeds": [], "nothing": []}, "full": {"seeds": [0], "nothing": []}}


def test_elements_of_an_empty_list_are_of_the_type_that_another_profile_has():
    study = SeededStudy()
    assert resolve_parameters(study, "smoke") == {"seeds": [], "nothing": []}
    assert resolve_parameters(study, "smoke", {"seeds": [3]})["seeds"] == [3]
    assert resolve_parameters(study, "full", {"seeds": []})["seeds"] == []
    assert resolve_parameters(study, "smoke", {"nothing": ["x", 1]})["nothing"] == ["x", 1]
    with pytest.raises(QuarlError, match=r"'seeds'\[1\] must be int, not 'x'"):
        resolve_parameters(study, "smoke", {"seeds": [0, "x"]})


def test_networks_are_named_by_their_hidden_sizes():
    assert network_name([64, 64, 64]) == "64x3" and network_name([32]) == "32x1"
    assert network_name([4096, 512, 1024]) == "4096-512-1024"
    assert network_name([]) == "linear"
