import numpy as np
import pytest
import torch

from quarl_nb.actorq.algorithms import make_algorithm
from quarl_nb.errors import QuarlError
from quarl_nb.quant import affine_qparams, fake_quantize, weight_matrices
from quarl_nb.report.actorq import variants
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies.variants import (
    ACTORQ_VARIANTS,
    TRAININGS,
    VARIANTS,
    published_as,
    round_after_updates,
)


def levels(weight):
    return len(weight.unique())


def test_a_cell_is_a_run_that_repeats(tmp_path):
    found = []
    for name in "ab":
        store = ResultStore(tmp_path / name)
        done = run_study(ACTORQ_VARIANTS, "smoke", store, progress=False,
                         parameters={"variants": ["int8", "noise8"], "steps": 1300})  # fmt: skip
        assert (done.done, done.failed) == (2, 0)
        frame = store.frame("actorq_variants", "smoke").sort_values("variant")
        found.append([*frame["curve_returns"]])
        assert all(len(curve) == 3 and len(curve[0]) == 2 for curve in frame["curve_returns"])
        assert (frame["updates"] > 50).all()
    assert found[0] == found[1]


@pytest.mark.parametrize("profile", ["smoke", "quick", "full"])
def test_every_profile_is_a_valid_matrix_of_different_cells(profile):
    cells = ACTORQ_VARIANTS.cells(ACTORQ_VARIANTS.profiles[profile])
    assert len(plan(ACTORQ_VARIANTS, profile)) == len(cells) > 0  # `plan` drops equal ones


def test_more_seeds_are_for_the_replicated_variants_alone():
    jobs = plan(ACTORQ_VARIANTS, "smoke", {"replicated": ["int8"], "more_seeds": [5, 6]})
    seeds: dict[str, list[int]] = {}
    for job in jobs:
        seeds.setdefault(job.cell["variant"], []).append(job.cell["seed"])
    assert seeds == {"fp32": [0], "int8": [0, 5, 6], "noise8": [0], "learner8": [0]}


def test_the_report_knows_every_variant():
    assert [*variants.VARIANTS] == [*VARIANTS]


@pytest.mark.parametrize("parameters, message", [
    ({"algos": ["dnq"]}, "did you mean 'dqn'"),
    ({"variants": ["int9"]}, "unknown variant 'int9'"),
    ({"episodes": 0}, "episodes must be at least 1, not 0"),
    ({"steps": -1}, "steps must be at least 0, not -1"),
    ({"seeds": [-1]}, "seed must be from 0 to 2147483647, not -1"),
    ({"more_seeds": [-1]}, "seed must be from 0 to 2147483647, not -1"),
    ({"replicated": ["int9"]}, "unknown variant 'int9'"),
])  # fmt: skip
def test_wrong_parameters_are_one_clear_line(parameters, message):
    with pytest.raises(QuarlError, match=message):
        plan(ACTORQ_VARIANTS, "smoke", parameters)


def test_published_weights_are_rounded_and_the_learners_stay():
    model = make_algorithm("dqn", "CartPole-v1", width=32)
    net = policy_from_model(model, tensors=model.policy.state_dict())
    before = [w.clone() for _, w in weight_matrices(net)]
    generator = torch.Generator().manual_seed(0)
    for name, few in (("float8", True), ("quantile8", True), ("noise8", False)):
        rounded = published_as(VARIANTS[name].published, generator)(net)
        for weight, (_, other) in zip(before, weight_matrices(rounded), strict=True):
            assert not torch.equal(weight, other)
            assert (levels(other) <= 256) == (few or other.numel() <= 256)
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, weight_matrices(net), strict=True))


def test_noise_is_as_large_as_the_error_of_rounding():
    x = torch.randn(200, 200, generator=torch.Generator().manual_seed(1))
    noise = VARIANTS["noise8"].published(x, torch.Generator().manual_seed(0)) - x
    error = fake_quantize(x, affine_qparams(x.min(), x.max(), bits=8)) - x
    assert noise.std().item() == pytest.approx(error.square().mean().sqrt().item(), rel=0.02)


@pytest.mark.parametrize("variant", ["learner8", "learner8_stochastic"])
@pytest.mark.parametrize("algo", TRAININGS)
def test_a_quantized_learner_holds_its_weights_in_8_bits(algo, variant):
    env_id = TRAININGS[algo].env_id
    options = TRAININGS[algo].options | {"learning_starts": 20, "batch_size": 8}
    model = make_algorithm(algo, env_id, width=32, seed=0, **options)
    round_after_updates(model, VARIANTS[variant].learned, torch.Generator().manual_seed(0))
    model.learn(40)
    trained = model.q_net if algo == "dqn" else model.actor
    weights = [w for net in (trained, getattr(model, "critic", trained))
               for name, w in net.named_parameters() if w.ndim > 1]  # fmt: skip
    assert len(weights) >= 4 and all(levels(weight) <= 256 for weight in weights)
    assert all(np.isfinite(weight.detach().numpy()).all() for weight in weights)
