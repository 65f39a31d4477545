"""What new parameters cost to load."""

from __future__ import annotations

import copy

import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies import loading
from quarl_nb.studies.inference import random_policy
from quarl_nb.studies.loading import LOADING, PACKED, torch_loader


def test_the_smoke_profile_runs_to_a_record(tmp_path):
    store = ResultStore(tmp_path)
    summary = run_study(LOADING, "smoke", store, progress=False)
    assert (summary.done, summary.failed) == (1, 0)
    record = store.frame("loading").iloc[0]
    ways = [f"state_dict_{precision}_s" for precision in PACKED]
    ways += ["pack_fp16_s", "pack_int8_s", "open_fp32_s", "open_int8_s"]
    for way in ways:
        assert len(record[way]) == 3 and min(record[way]) > 0


@pytest.mark.parametrize("precision", PACKED)
def test_every_parameter_is_loaded(precision, monkeypatch):
    net, made = random_policy("64x3", 0), []
    zeros = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in zeros.parameters():
            parameter.zero_()

    def of_zeros_first(net, precision):
        made.append(torch_model(net if made else zeros, precision))
        return made[-1]

    torch_model = loading._torch_model
    monkeypatch.setattr(loading, "_torch_model", of_zeros_first)
    load = torch_loader(net, precision)
    model, source = made
    obs = torch.randn(8, *net.spec.obs_shape, generator=torch.Generator().manual_seed(0))
    assert not model(obs).any() and source(obs).any()
    load()
    assert torch.equal(model(obs), source(obs))


@pytest.mark.parametrize(
    ("parameters", "says"),
    [({"networks": ["nature-cnn"]}, "nature-cnn"), ({"networks": ["64y3"]}, "64y3"),
     ({"repeats": 0}, "repeats"), ({"seed": -1}, "seed must be from 0 to 2147483647, not -1")],
)  # fmt: skip
def test_bad_parameters_are_named(parameters, says):
    with pytest.raises(QuarlError, match=says):
        plan(LOADING, "smoke", parameters=parameters)
