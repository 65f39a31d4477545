"""Value distributions: by hand, against algorithm 1 as loops, and what must always hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from quarl_nb.rl.distributional import bellman_target, mean_value, project_distribution


def loops(values: np.ndarray, probabilities: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """Bellemare et al. 2017, algorithm 1, line by line (and the atom's own mass where l = u)."""
    v_min, v_max, m = atoms[0], atoms[-1], len(atoms)
    delta = (v_max - v_min) / (m - 1)
    projected = np.zeros((len(values), m))
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            b = (min(max(value, v_min), v_max) - v_min) / delta
            lower, upper = math.floor(b), math.ceil(b)
            if lower == upper:
                projected[i, lower] += probabilities[i, j]
                continue
            projected[i, lower] += probabilities[i, j] * (upper - b)
            projected[i, upper] += probabilities[i, j] * (b - lower)
    return projected


def random_case(seed: int, n: int, k: int, m: int, spread: float) -> tuple[torch.Tensor, ...]:
    """Values ``[n, k]`` around the `m` atoms from -3 to 5, beyond them where `spread` > 4."""
    generator = torch.Generator().manual_seed(seed)
    values = 1 + spread * (2 * torch.rand(n, k, generator=generator, dtype=torch.float64) - 1)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64)
    atoms = torch.linspace(-3, 5, m, dtype=torch.float64)
    return values, torch.softmax(logits, dim=1), atoms


def test_projection_by_hand() -> None:
    atoms = torch.tensor([0.0, 1.0, 2.0])
    # Below, a quarter of the way, beyond; then: on atoms; then: all between the last two.
    values = torch.tensor([[-1.0, 0.25, 2.5], [0.0, 1.0, 2.0], [1.5, 1.5, 1.75]])
    probabilities = torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.2, 0.3], [0.25, 0.25, 0.5]])
    expected = [[0.5, 0.1, 0.4], [0.5, 0.2, 0.3], [0.0, 0.375, 0.625]]
    projected = project_distribution(values, probabilities, atoms)
    torch.testing.assert_close(projected, torch.tensor(expected))


@pytest.mark.parametrize(("n", "k", "m"), [(1, 1, 2), (3, 51, 51), (7, 5, 11), (4, 20, 2)])
@pytest.mark.parametrize("spread", [3.0, 20.0])
def test_projection_equals_loops(n: int, k: int, m: int, spread: float) -> None:
    case = random_case(n + k + m, n, k, m, spread)
    expected = loops(*(x.numpy() for x in case))
    np.testing.assert_allclose(project_distribution(*case).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_projection_keeps_mass_and_the_mean_inside(seed: int) -> None:
    values, probabilities, atoms = random_case(seed, n=6, k=51, m=21, spread=4.0)
    projected = project_distribution(values, probabilities, atoms)
    assert (projected >= 0).all()
    torch.testing.assert_close(projected.sum(dim=1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(projected @ atoms, (probabilities * values).sum(dim=1))
    again = project_distribution(atoms.expand(6, -1), projected, atoms)
    torch.testing.assert_close(again, projected)


def test_mass_outside_goes_to_the_ends() -> None:
    atoms = torch.linspace(-150, 150, 51)
    values = torch.tensor([[-1e6, 1e6], [-151.0, -150.0]])
    projected = project_distribution(values, torch.tensor([[0.25, 0.75], [0.5, 0.5]]), atoms)
    expected = torch.zeros(2, 51)
    expected[0, 0], expected[0, -1], expected[1, 0] = 0.25, 0.75, 1.0
    torch.testing.assert_close(projected, expected)


def test_shapes_are_asserted() -> None:
    values, probabilities, atoms = random_case(0, n=3, k=4, m=5, spread=1.0)
    for wrong in (probabilities[:1], probabilities[:, :1]):
        with pytest.raises(AssertionError):
            project_distribution(values, wrong, atoms)
    # [n] in place of [n, 1] would broadcast to wrong targets.
    with pytest.raises(AssertionError):
        bellman_target(torch.ones(5), torch.ones(5, 1), torch.full((5, 5), 0.2), atoms)


def test_bellman_target_by_hand() -> None:
    atoms = torch.tensor([0.0, 1.0, 2.0])
    next_probabilities = torch.tensor([[0.0, 0.5, 0.5]] * 3)
    rewards = torch.tensor([[0.5], [1.5], [0.0]])
    discounts = torch.tensor([[0.5], [0.0], [1.0]])
    # 0.5 + 0.5 * {1, 2} = {1, 1.5}; the episode's end: 1.5; unchanged.
    expected = [[0.0, 0.75, 0.25], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]]
    target = bellman_target(rewards, discounts, next_probabilities, atoms)
    torch.testing.assert_close(target, torch.tensor(expected))


def test_mean_value_by_hand() -> None:
    logits = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.5, 0.0]]).log()
    means = mean_value(logits, torch.tensor([-1.0, 0.0, 4.0]))
    torch.testing.assert_close(means, torch.tensor([1.75, -0.5]))
