"""What new parameters cost to load."""

from __future__ import annotations

import copy

import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies import loading
from quarl_nb.studies.inference import random_inputs, random_policy
from quarl_nb.studies.loading import (
    LOADING,
    PACKED,
    torch_decider,
    torch_loader,
    torch_reader,
)


def test_the_smoke_profile_runs_to_a_record(tmp_path):
    store = ResultStore(tmp_path)
    summary = run_study(LOADING, "smoke", store, progress=False)
    assert (summary.done, summary.failed) == (1, 0)
    record = store.frame("loading").iloc[0]
    ways = [f"{way}_{precision}_s" for precision in PACKED
            for way in ("deserialize", "state_dict", "decide")]
    ways += ["pack_fp16_s", "pack_int8_s", "open_fp32_s", "open_int8_s"]
    for way in ways:
        assert len(record[way]) == 3 and min(record[way]) > 0
    sizes = [f"{form}_{precision}_bytes" for precision in PACKED
             for form in ("state_dict", "module", "torchscript")]
    weights = 67 * 64 + 64 * 64 * 2 + 64 * 21
    assert all(record[size] > weights * (1 if "int8" in size else 4) for size in sizes)
    assert record["payload_int8_bytes"] < record["payload_fp32_bytes"]
    assert "payload_fp16_bytes" not in record


@pytest.mark.parametrize("precision", PACKED)
def test_what_is_read_loads_as_what_was_sent(precision):
    net = random_policy("64x3", 0)
    source, target = (loading._torch_model(random_policy("64x3", seed), precision)
                      for seed in (0, 1))
    obs = torch.randn(8, *net.spec.obs_shape, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(target(obs), source(obs))
    target.load_state_dict(torch_reader(net, precision)())
    assert torch.equal(target(obs), source(obs))


@pytest.mark.parametrize("precision", PACKED)
def test_a_decision_is_the_modules_on_one_observation(precision):
    net = random_policy("64x3", 0)
    decided = torch_decider(net, precision, seed=3)()
    obs = torch.as_tensor(random_inputs(net, 1, 3))
    assert torch.equal(decided, loading._torch_model(net, precision)(obs))
    assert decided.shape == (1, 21) and not decided.requires_grad


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
