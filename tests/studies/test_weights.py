from __future__ import annotations

import numpy as np
import pytest
import torch

from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import Head, PolicyNet, PolicySpec, save_policy
from quarl_nb.runner import run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies.weights import WEIGHTS, histogram


def test_histograms_count_every_weight_once():
    counts, edges = histogram(torch.arange(10.0).reshape(2, 5), 3)
    assert counts.tolist() == [3, 3, 4]
    np.testing.assert_allclose(edges, [0, 3, 6, 9])


def test_statistics_of_a_policy_are_recorded_by_layer(tmp_path, monkeypatch):
    layers = (Layer("linear", {"in_features": 4, "out_features": 2}),)
    spec = PolicySpec("ppo", "CartPole-v1", (4,), layers, Head("argmax"))
    weight = torch.tensor([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.3]])
    net = PolicyNet(spec, {"layers.0.weight": weight, "layers.0.bias": torch.zeros(2)})
    save_policy(net, tmp_path / "data" / "policies" / "ppo-CartPole-v1")
    monkeypatch.chdir(tmp_path)
    store = ResultStore()
    run_study(WEIGHTS, "smoke", store, progress=False)
    found = {each["cell"]["precision"]: each for each in store.records("weights", "smoke")}
    assert found.keys() == {"affine8", "affine4"}
    record = found["affine8"]
    measured, arrays = record["measured"], store.arrays(record)
    assert measured["layer"] == ["layers.0.weight"]
    assert measured["range"] == [pytest.approx(7.3)]
    np.testing.assert_allclose(measured["std"], [weight.numpy().std()])
    # 8 bits over [0, 7.3]: the largest error is at most half a step.
    assert 0 < measured["max_error"][0] <= 7.3 / 255 / 2 * 1.001
    assert arrays["counts"].sum() == 8
    assert arrays["edges"].shape == (1, 102)
