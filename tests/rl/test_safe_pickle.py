"""Other people's files: statistics are read, and nothing of theirs runs."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from quarl_nb.errors import QuarlError
from quarl_nb.rl import safe_pickle
from quarl_nb.rl.safe_pickle import open_zip, read_member, read_tensors, read_vecnormalize


class Malicious:
    """Creates a marker file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def normalizer() -> VecNormalize:
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), clip_obs=7.0, epsilon=1e-6)
    env.seed(0)
    env.reset()
    for _ in range(50):
        env.step(np.zeros((1, 1)))
    return env


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_statistics_are_those_that_sb3_wrote(
    normalizer: VecNormalize, tmp_path: Path, protocol: int
) -> None:
    file = tmp_path / "vecnormalize.pkl"
    file.write_bytes(pickle.dumps(normalizer, protocol=protocol))
    found = read_vecnormalize(file)
    assert found is not None and found.mean.dtype == np.float64
    assert np.array_equal(found.mean, normalizer.obs_rms.mean)
    assert np.array_equal(found.var, normalizer.obs_rms.var)
    assert (found.epsilon, found.clip) == (1e-6, 7.0)


def test_arrays_keep_their_order_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "arrays.pkl"
    arrays = [
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([True, False]),
        np.float32(1.5),
    ]
    file.write_bytes(pickle.dumps(arrays, protocol=4))
    for found, array in zip(safe_pickle.read_pickle(file), arrays, strict=True):
        assert np.array_equal(found.value, array)


def test_raw_observations_need_no_statistics(normalizer: VecNormalize, tmp_path: Path) -> None:
    normalizer.norm_obs = False
    normalizer.save(str(tmp_path / "vecnormalize.pkl"))
    assert read_vecnormalize(tmp_path / "vecnormalize.pkl") is None


@pytest.mark.parametrize("protocol", range(0, pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_nothing_runs(
    normalizer: VecNormalize, tmp_path: Path, protocol: int
) -> None:
    marker, file = tmp_path / "marker", tmp_path / "vecnormalize.pkl"
    normalizer.gamma = Malicious(marker)
    file.write_bytes(pickle.dumps(normalizer, protocol=protocol))
    with pytest.raises(QuarlError, match="refused") as caught:
        read_vecnormalize(file)
    assert "\n" not in str(caught.value) and not marker.exists()
    # The trap works: the ordinary unpickler does run it.
    pickle.loads(file.read_bytes())
    assert marker.exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nfromfile\n(S'x'\ntR.",
        b"cstable_baselines3_evil\nrun\n(tR.",
        b"(S'id'\nios\nsystem\n.",
    ],
)
def test_only_named_classes_are_admitted(tmp_path: Path, payload: bytes) -> None:
    (tmp_path / "p.pkl").write_bytes(payload)
    with pytest.raises(QuarlError, match="could run code: refused"):
        read_vecnormalize(tmp_path / "p.pkl")


def test_functions_of_admitted_packages_do_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    payload = b"cstable_baselines3.common.save_util\nopen_path\n(S'%s'\nS'w'\ntR."
    (tmp_path / "p.pkl").write_bytes(payload % str(marker).encode())
    with pytest.raises(QuarlError, match="holds no observation statistics"):
        read_vecnormalize(tmp_path / "p.pkl")
    assert not marker.exists()


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x80\x04", b"nonsense", b"\x80\x04r\xff\xff\xff\xff.", b"\x80\x04]q\x00(" * 50, b"N.",
     b"\x80\x04G\x00\x00", b"\x80\x04\x8c\x03o\ns\x8c\x01x\x93."],
    ids=["empty", "cut", "text", "bad memo", "unfinished", "none", "cut number", "line break"],
)
def test_damaged_pickles_are_one_line(tmp_path: Path, payload: bytes) -> None:
    (tmp_path / "p.pkl").write_bytes(payload)
    with pytest.raises(QuarlError, match="p.pkl") as caught:
        read_vecnormalize(tmp_path / "p.pkl")
    assert "\n" not in str(caught.value)


def test_a_length_that_the_file_does_not_have_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "p.pkl").write_bytes(b"\x80\x05\x96" + struct.pack("<Q", 1 << 28))
    tracemalloc.start()
    try:
        with pytest.raises(QuarlError, match="p.pkl"):
            safe_pickle.read_pickle(tmp_path / "p.pkl")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pickle_that_is_too_large_is_not_read(
    normalizer: VecNormalize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    normalizer.save(str(tmp_path / "v.pkl"))
    size = (tmp_path / "v.pkl").stat().st_size
    monkeypatch.setattr(safe_pickle, "MAX_PICKLE_BYTES", size)
    assert read_vecnormalize(tmp_path / "v.pkl") is not None
    monkeypatch.setattr(safe_pickle, "MAX_PICKLE_BYTES", size - 1)
    with pytest.raises(QuarlError, match="v.pkl': larger than "):
        read_vecnormalize(tmp_path / "v.pkl")


@pytest.mark.parametrize(
    ("name", "bad"),
    [("var", np.nan), ("var", np.inf), ("var", -1.0), ("mean", np.nan), ("mean", -np.inf)],
)
def test_statistics_must_be_usable(
    normalizer: VecNormalize, tmp_path: Path, name: str, bad: float
) -> None:
    setattr(normalizer.obs_rms, name, np.array([1.0, bad, 1.0]))
    normalizer.save(str(tmp_path / "v.pkl"))
    with pytest.raises(QuarlError, match="not finite"):
        read_vecnormalize(tmp_path / "v.pkl")


def test_what_never_varied_is_divided_by_epsilon_alone(
    normalizer: VecNormalize, tmp_path: Path
) -> None:
    normalizer.obs_rms.var = np.zeros(3)
    normalizer.save(str(tmp_path / "v.pkl"))
    found = read_vecnormalize(tmp_path / "v.pkl")
    assert found is not None and found.var.tolist() == [0, 0, 0]


def test_means_and_variances_are_of_the_same_observation(
    normalizer: VecNormalize, tmp_path: Path
) -> None:
    normalizer.obs_rms.var = np.ones(1)
    normalizer.save(str(tmp_path / "v.pkl"))
    with pytest.raises(QuarlError, match="v.pkl' holds no observation statistics"):
        read_vecnormalize(tmp_path / "v.pkl")


@pytest.mark.parametrize(
    ("name", "bad"),
    [("epsilon", np.zeros(5)), ("clip_obs", 10**400), ("clip_obs", np.ones(2))],
    ids=["epsilon", "clip", "clips"],
)
def test_what_is_no_single_number_is_one_line(
    normalizer: VecNormalize, tmp_path: Path, name: str, bad: Any
) -> None:
    setattr(normalizer, name, bad)
    normalizer.save(str(tmp_path / "v.pkl"))
    with pytest.raises(QuarlError, match="v.pkl"):
        read_vecnormalize(tmp_path / "v.pkl")


def saved(value: Any, **options: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def test_tensors_are_read_and_pickles_among_them_refused(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(3.0)}
    assert torch.equal(read_tensors(saved(tensors), "x")["w"], tensors["w"])
    marker = tmp_path / "marker"
    payload = saved({"w": torch.zeros(1), "x": Malicious(marker)})
    with pytest.raises(QuarlError, match="policy.pth refused") as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        read_tensors(payload, "policy.pth")
    assert "\n" not in str(caught.value) and not marker.exists()
    torch.load(io.BytesIO(payload), weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize("value", [[torch.zeros(1)], {"w": 1.0}, {1: torch.zeros(1)}])
def test_only_named_tensors_are_admitted(value: Any) -> None:
    with pytest.raises(QuarlError, match="not a dictionary of named, plain tensors"):
        read_tensors(saved(value), "x")


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of prototypes
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device="meta"),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    ],
    ids=["meta", "coo", "csr", "nested", "quantized"],
)
def test_tensors_that_are_not_plain_numbers_are_refused(make: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(QuarlError, match="not a dictionary of named, plain tensors"):
        read_tensors(saved({"w": make()}), "x")


def test_damaged_and_swollen_tensors_are_refused() -> None:
    payload = saved({"w": torch.zeros(1000)})
    disk = payload.index(b"PK\x06\x07") + 4  # its number, of an archive on several
    several = payload[:disk] + b"\1" + payload[disk + 1 :]
    for bad in (b"", payload[:200], payload[:-40], b"text", several):
        with pytest.raises(QuarlError, match="^x ") as caught:
            read_tensors(bad, "x")
        assert "\n" not in str(caught.value)
    # One stored number, viewed as 2**40 of them.
    with pytest.raises(QuarlError, match="more than 1024 MiB"):
        read_tensors(saved({"w": torch.zeros(1).expand(2**20, 2**20)}), "x")
    # Elements of four bytes: 1024 MiB of them, and one more in a tensor of its own.
    most, one = torch.zeros(1).expand(2**28), torch.zeros(1)
    assert read_tensors(saved({"w": most}), "x")["w"].shape == (2**28,)
    with pytest.raises(QuarlError, match="more than 1024 MiB"):
        read_tensors(saved({"w": most, "b": one}), "x")


def test_damaged_tensors_of_the_old_format_are_one_line() -> None:
    payload = saved({"w": torch.zeros(3)}, _use_new_zipfile_serialization=False)
    cut = [payload[:end] for end in range(len(payload))]
    key = list(re.finditer(rb"\d{8,}", payload))[-1]  # of a storage that is then not announced
    for bad in (*cut, payload[: key.start()] + b"x" + payload[key.start() + 1 :]):
        with pytest.raises(QuarlError, match="^x ") as caught:
            read_tensors(bad, "x")
        assert "\n" not in str(caught.value)


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_pickle, "MAX_ZIP_BYTES", 1 << 20)
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(2 << 20))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(QuarlError, match="unpacks to more than 1 MiB"):
        open_zip(bomb, "bomb")
    with pytest.raises(QuarlError, match="unpacks to more than 1 MiB"):
        read_tensors(bomb.read_bytes(), "policy.pth")


def test_members_of_a_zip_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_pickle, "MAX_ZIP_BYTES", 1 << 20)
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("data", "policy.pth"):
            archive.writestr(name, bytes(1 << 19))
    open_zip(file, "x").close()
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("one more", b"!")
    with pytest.raises(QuarlError, match="unpacks to more than 1 MiB"):
        open_zip(file, "x")


def test_a_zip_that_lies_about_its_size_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(10_000))
    lie = file.read_bytes().replace((10_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    file.write_bytes(lie)
    with open_zip(file, "x") as archive, pytest.raises(QuarlError, match="'data' in x is damaged"):
        read_member(archive, "data", "x")


def test_truncated_and_missing_zips_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(QuarlError, match="cannot read x"):
        open_zip(tmp_path / "none.zip", "x")
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data", "{}")
    payload = file.read_bytes()
    file.write_bytes(payload[:-10])
    with pytest.raises(QuarlError, match="damaged or truncated"):
        open_zip(file, "x")
    file.write_bytes(payload.replace(b"{}", b"[]"))
    with open_zip(file, "x") as archive:
        with pytest.raises(QuarlError, match="'data' in x is damaged"):
            read_member(archive, "data", "x")
        with pytest.raises(QuarlError, match="not a stable-baselines3 model"):
            read_member(archive, "policy.pth", "x")
