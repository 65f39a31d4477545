"""CrossQ's batch normalization becomes part of the layers that follow it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.rl.policies import PolicyNet, load_policy, save_policy
from quarl_nb.rl.sb3.batch_norm import fold_batch_norm
from quarl_nb.rl.sb3.convert import policy_from_model


def crossq(**policy: Any) -> sb3_contrib.CrossQ:
    """With random weights and running statistics, as if trained."""
    policy = dict(net_arch=[16, 12]) | policy
    model = sb3_contrib.CrossQ("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu",
                               policy_kwargs=policy)  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.policy.state_dict().items():
        if name.endswith("ra_var"):
            tensor.uniform_(0.01, 2.0, generator=generator)
        elif not name.endswith("steps"):
            tensor.normal_(0.0, 0.5, generator=generator)
    return model


def observations() -> np.ndarray:
    return np.random.default_rng(0).normal(0.0, 2.0, (64, 3)).astype(np.float32)


def assert_same(net: PolicyNet, model: sb3_contrib.CrossQ) -> None:
    obs = observations()
    expected = model.predict(obs, deterministic=True)[0]
    assert expected.std() > 0.02
    np.testing.assert_allclose(net.act(obs)[0], expected, atol=2e-5)  # float32 in another order


@pytest.mark.parametrize("options", [
    {}, {"net_arch": [8]}, {"batch_norm_eps": 0.5}, {"activation_fn": torch.nn.Tanh},
    {"use_sde": True, "clip_mean": 0.3}, {"net_arch": dict(pi=[4, 8, 4, 4], qf=[8])},
], ids=str)  # fmt: skip
def test_same_actions_live_zipped_and_on_disk(options: dict[str, Any], tmp_path: Path) -> None:
    model = crossq(**options)
    live = policy_from_model(model)
    assert live.spec.algo == "crossq"
    assert_same(live, model)
    model.save(tmp_path / "model.zip")
    zipped = load_policy(tmp_path / "model.zip")
    assert (zipped.spec.algo, zipped.spec.layers) == ("crossq", live.spec.layers)
    assert all(map(torch.equal, zipped.state_dict().values(), live.state_dict().values()))
    save_policy(zipped, tmp_path / "policy")
    assert_same(load_policy(tmp_path / "policy"), model)


def tensors() -> dict[str, torch.Tensor]:
    """A trunk of one layer [1, 1] between two normalizations, of which the second does nothing."""
    norms = {"ra_mean": [2.0], "ra_var": [0.24], "scale": [4.0], "bias": [5.0], "steps": 7}, {
        "ra_mean": [0.0], "ra_var": [0.99], "scale": [1.0], "bias": [0.0], "steps": 7}  # fmt: skip
    linear = {"weight": [[3.0]], "bias": [1.0]}
    parts = {"latent_pi.0": norms[0], "latent_pi.1": linear, "latent_pi.3": norms[1], "mu": linear}
    return {f"actor.{layer}.{name}": torch.tensor(value)
            for layer, values in parts.items() for name, value in values.items()}  # fmt: skip


def test_a_layer_takes_in_the_normalization_before_it() -> None:
    # s = 4 / sqrt(0.24 + 0.01) = 8; weight 3 * 8; bias 1 + 3 * (5 - 8 * 2).
    assert fold_batch_norm(tensors(), 0.01) == {
        "actor.latent_pi.0.weight": torch.tensor([[24.0]]),
        "actor.latent_pi.0.bias": torch.tensor([-32.0]),
        "actor.mu.weight": torch.tensor([[3.0]]), "actor.mu.bias": torch.tensor([1.0]),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), [
    ("latent_pi.0.ra_var", [2]), ("latent_pi.0.scale", [1, 1]), ("latent_pi.1.bias", [2]),
    ("mu.weight", [1]), ("mu.weight", [1, 1, 1]),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_named(name: str, shape: list[int]) -> None:
    norm, layer = ("3", "mu") if "mu" in name else ("0", "latent_pi.1")
    told = rf"normalization 'actor.latent_pi.{norm}.\*' does not fit the layer 'actor.{layer}.\*'"
    with pytest.raises(QuarlError, match=told):
        fold_batch_norm(tensors() | {f"actor.{name}": torch.ones(shape)}, 0.01)


@pytest.mark.parametrize(("lost", "added", "told"), [
    ("actor.latent_pi.3.scale", None, "is damaged: KeyError: 'actor.latent_pi.3.scale'"),
    (None, "actor.latent_pi.8.weight", r"unsupported layers 'actor.latent_pi.\*'"),
])  # fmt: skip
def test_zips_of_other_layers_are_refused(
    lost: str | None, added: str | None, told: str, tmp_path: Path
) -> None:
    model = crossq()
    model.save(tmp_path / "whole.zip")
    tensors = {name: t for name, t in model.policy.state_dict().items() if name != lost}
    payload = io.BytesIO()
    torch.save(tensors | ({added: torch.ones(12, 12)} if added else {}), payload)
    with (
        zipfile.ZipFile(tmp_path / "whole.zip") as whole,
        zipfile.ZipFile(tmp_path / "m.zip", "w") as changed,
    ):
        changed.writestr("data", whole.read("data"))
        changed.writestr("policy.pth", payload.getvalue())
    with pytest.raises(QuarlError, match=told) as caught:
        load_policy(tmp_path / "m.zip")
    assert "\n" not in str(caught.value)
