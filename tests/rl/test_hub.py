"""Policies from the Hugging Face Hub, with the download replaced by local folders."""

from __future__ import annotations

import sys
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import stable_baselines3 as sb3
from huggingface_hub.errors import LocalEntryNotFoundError

from quarl_nb.errors import QuarlError
from quarl_nb.rl.hub import load_from_hub
from quarl_nb.rl.policies import load_policy, save_policy

SOURCE = "hub:sb3/ppo-CartPole-v1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a repository of the RL Zoo looks, its commit the folder's name."""
    found = tmp_path / "0a1b2c"
    found.mkdir()
    sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu", seed=0).save(found / "ppo-CartPole-v1.zip")
    (found / "config.yml").write_text("gamma: 0.98\n")
    return found


def test_a_zip_of_the_hub(folder: Path) -> None:
    asked = []

    def download(repository: str, revision: str | None) -> str:
        asked.append((repository, revision))
        return str(folder)

    net = load_from_hub(SOURCE, download)
    assert net.spec.env_id == "CartPole-v1" and net.spec.algo == "ppo"
    assert net.spec.provenance["source"] == SOURCE
    assert net.spec.provenance["revision"] == "0a1b2c"
    obs = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    local = load_policy(folder / "ppo-CartPole-v1.zip")
    assert np.array_equal(net.act(obs)[0], local.act(obs)[0])
    load_from_hub(f"{SOURCE}@main", download)
    assert asked == [("sb3/ppo-CartPole-v1", None), ("sb3/ppo-CartPole-v1", "main")]


def test_a_policy_folder_of_the_hub(folder: Path) -> None:
    net = load_policy(folder / "ppo-CartPole-v1.zip")
    save_policy(net, folder, {"steps": 5})
    found = load_from_hub(SOURCE, lambda *_: str(folder))
    assert found.spec.provenance["steps"] == 5 and found.spec.layers == net.spec.layers
    with pytest.raises(QuarlError, match="vecnormalize goes with an SB3 zip: .* has its own"):
        load_from_hub(SOURCE, lambda *_: str(folder), env_id="CartPole-v1", vecnormalize="n.pkl")


def test_the_hub_names_no_environment_whose_module_would_run(folder: Path, tmp_path: Path) -> None:
    net = load_policy(folder / "ppo-CartPole-v1.zip")
    net.spec = replace(net.spec, env_id="some_module:E-v0")
    save_policy(net, folder)
    for given in ({}, {"env_id": None}):
        with pytest.raises(QuarlError, match="in 'some_module:E-v0', which would run that module"):
            load_from_hub(SOURCE, lambda *_: str(folder), **given)
    for env_id in ("CartPole-v1", "my_module:E-v0"):
        found = load_from_hub(SOURCE, lambda *_: str(folder), env_id=env_id)
        saved = save_policy(found, tmp_path / "mine")  # of which a study makes the environment
        assert load_policy(saved).spec.env_id == env_id


def test_load_policy_downloads_only_what_it_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns: list[str] = []

    def snapshot(repository: str, revision: str | None, allow_patterns: list[str]) -> str:
        patterns.extend(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert load_policy(SOURCE).spec.env_id == "CartPole-v1"
    assert "*.zip" in patterns and "*" not in patterns
    for read in ("vec_normalize.pkl", "a/vecnormalize.pkl", "config.yml", "a/config.yml",
                 "policy.safetensors", "policy.safetensors.00", "policy.json"):  # fmt: skip
        assert any(fnmatch(read, pattern) for pattern in patterns), read


def test_failures_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in ("hub:", "hub:x", "hub:a/b/c", "hub:/b"):
        with pytest.raises(QuarlError, match="bad source"):
            load_from_hub(source, lambda *_: str(folder))
    (folder / "ppo-CartPole-v1.zip").unlink()
    with pytest.raises(QuarlError, match="must hold one model zip, it holds: none"):
        load_from_hub(SOURCE, lambda *_: str(folder))

    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no connection\nand no cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(QuarlError, match="cannot fetch .* no connection and no cache"):
        load_policy(SOURCE)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(QuarlError, match=r"pip install 'quarl_nb\[hub\]'"):
        load_policy(SOURCE)
