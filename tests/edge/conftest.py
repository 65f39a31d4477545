from __future__ import annotations

import shutil

import numpy as np
import pytest

from quarl_nb.edge.build import Target, board, this_machine
from quarl_nb.errors import UnavailableError
from quarl_nb.rl.policies import PolicyNet


@pytest.fixture
def small_policy(make_policy) -> PolicyNet:
    first = ("linear", {"in_features": 6, "out_features": 40})
    return make_policy((6,), first, "relu", ("linear", {"in_features": 40, "out_features": 5}))


@pytest.fixture
def obs() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((50, 6), dtype=np.float32)


@pytest.fixture(scope="session")
def here() -> Target:
    try:
        return this_machine()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def pi() -> Target:
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("no qemu-aarch64: apt-get install qemu-user")
    try:
        return board("cortex_a53")
    except UnavailableError as error:
        pytest.skip(str(error))
