"""The QAT study: what it trains, when it looks, what it keeps, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.record import to_json
from quarl_nb.rl.evaluate import Evaluation, evaluate
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.ptq import quantize_policy
from quarl_nb.rl.recipes import get_recipe
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies import qat, watched
from quarl_nb.studies.qat import QAT, float32_recipe
from quarl_nb.studies.watched import Schedule, spread_of_actions, train_watched

PPO = "ppo-CartPole-v1"
TINY = dict(QAT.profiles["smoke"], max_timesteps=768, evaluations=2, eval_episodes=2, episodes=3)


def cells(**parameters: Any) -> list[tuple[dict, dict]]:
    return list(QAT.cells(TINY | parameters))


def test_all_layers_train_in_float32_also_where_the_recipe_has_half_precision():
    assert get_recipe("dqn-AirNavigation-III").half_precision
    assert not float32_recipe("dqn-AirNavigation-III").half_precision
    policy = float32_recipe("dqn-PongNoFrameskip-v4").hyperparameters["policy_kwargs"]
    assert policy["features_extractor_kwargs"]["precision"] == "fp32"


def test_a_cell_is_trained_and_run_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fp32, four = (QAT.measure(*cell) for cell in cells())
    assert not list(tmp_path.iterdir())
    for found in (fp32, four):
        assert len(found.measured["returns"]) == 3
        assert found.measured["lengths"] == found.measured["returns"]  # reward 1 a step
        assert found.measured["timesteps"] == 768
        curves = found.arrays
        assert curves["eval_returns"].shape == (2, 2)
        # Half the run, and after the last update; steps of eight environments at once.
        assert curves["eval_steps"].tolist() == [576, 768]
        assert len(curves["probe_steps"]) == len(curves["entropy"]) == watched.PROBES
        assert (curves["entropy"] <= np.log(2) + 1e-6).all()
        assert len(curves["training_returns"]) > 5
        assert to_json(found.measured)
    assert set(fp32.measured["ptq_returns"]) == {"affine8"}
    assert "ptq_returns" not in four.measured
    # The delay: the same run until then.
    before = fp32.arrays["probe_steps"] < 384
    assert (fp32.arrays["entropy"][before] == four.arrays["entropy"][before]).all()
    assert (fp32.arrays["entropy"][-5:] != four.arrays["entropy"][-5:]).any()


def test_eight_bits_after_training_are_those_of_the_policy_that_was_trained(monkeypatch):
    played = []

    def watched_evaluate(policy, env_id, seeds):
        played.append((policy, seeds))
        return evaluate(policy, env_id, seeds)

    monkeypatch.setattr("quarl_nb.studies.qat.evaluate", watched_evaluate)
    QAT.measure(*cells()[0])
    (trained, seeds), (copy, same_seeds) = played
    assert seeds == same_seeds
    ours = quantize_policy(trained, "affine8", trained.spec.env_id).state_dict()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in copy.state_dict().items())
    weights = [name for name in ours if name.endswith("weight")]
    assert weights
    assert not any(torch.equal(trained.state_dict()[name], ours[name]) for name in weights)


@pytest.mark.parametrize(("n", "at", "means"), [
    (7, [20, 40, 60], [1.0, 3.5, 5.5]), (2, [0, 10], [0.0, 1.0]), (0, [], []),
])  # fmt: skip
def test_a_training_keeps_a_curve_of_few_points(n, at, means, monkeypatch):
    monkeypatch.setattr(watched, "POINTS", 3)
    steps, returns = watched.thinned(10 * np.arange(n), np.arange(n, dtype=float))
    assert (steps.tolist(), returns.tolist()) == (at, means)


def test_the_same_cell_gives_the_same_record():
    one, two = (QAT.measure(*cells(precisions=["affine3"])[0]) for _ in range(2))
    assert one.measured["returns"] == two.measured["returns"]
    assert all(np.array_equal(one.arrays[name], two.arrays[name]) for name in one.arrays)


@pytest.mark.parametrize("way", ["minmax", "lsq"])
def test_the_kept_policy_is_the_quantized_one(way):
    (cell, budget), *_ = cells(precisions=["affine2"], lsq=["affine2"])
    recipe = get_recipe(PPO)
    model = make_model(recipe, seed=0)
    callbacks, export = qat.prepare(model, recipe, dict(cell, method=way), 300)
    assert export(model) is None
    net = train_watched(model, recipe.env_id, Schedule(600, 300, 1, 2), export, callbacks).net
    kinds = [layer.kind for layer in net.spec.layers]
    assert kinds.count("fixed_quantize") == kinds.count("linear") - 1
    for layer in net.layers:
        if isinstance(layer, nn.Linear):
            assert len(layer.weight.unique()) <= 4


def test_cells_are_every_way_of_training_once():
    found = cells(
        policies=[PPO, "a2c-CartPole-v1"], precisions=["fp32", "affine4"], lsq=["affine4"],
        regularizers=["layer_norm", "noise4"], regularized=[PPO], seeds=[0, 1],
    )  # fmt: skip
    ways = [(c["precision"], c["method"], c["regularizer"], c["seed"]) for c, _ in found
            if c["policy"] == PPO]  # fmt: skip
    kinds = [("fp32", "none", "none"), ("affine4", "minmax", "none"), ("affine4", "lsq", "none"),
             ("fp32", "none", "layer_norm"), ("fp32", "none", "noise4")]  # fmt: skip
    assert ways == [(*kind, seed) for kind in kinds for seed in (0, 1)]
    assert len(found) == 10 + 6
    assert [("ptq" in budget) for _, budget in found[:6]] == [True, True] + 4 * [False]


def test_cheap_policies_have_more_seeds_of_what_is_compared():
    found = cells(
        policies=[PPO, "a2c-CartPole-v1"], precisions=["fp32", "affine4"], lsq=["affine4"],
        regularizers=["noise4"], regularized=[PPO], seeds=[0], replicated=[PPO], more_seeds=[3, 4],
    )  # fmt: skip
    seeds = [(c["precision"], c["method"], c["regularizer"], c["seed"]) for c, _ in found
             if c["policy"] == PPO]  # fmt: skip
    assert seeds == [*(("fp32", "none", "none", s) for s in (0, 3, 4)),
                     *(("affine4", "minmax", "none", s) for s in (0, 3, 4)),
                     ("affine4", "lsq", "none", 0), ("fp32", "none", "noise4", 0)]  # fmt: skip
    assert {c["seed"] for c, _ in found if c["policy"] != PPO} == {0}


def test_dear_policies_have_more_seeds_at_8_bits_alone():
    found = cells(
        policies=[PPO], precisions=["fp32", "affine4", "affine8"], lsq=["affine8"],
        regularizers=["noise8"], regularized=[PPO], seeds=[0], replicated_at_8_bits=[PPO],
        more_seeds=[3, 4],
    )  # fmt: skip
    more = {(c["precision"], c["method"], c["regularizer"], c["seed"]) for c, _ in found
            if c["seed"] != 0}  # fmt: skip
    assert more == {(*way, seed) for seed in (3, 4) for way in
                    (("fp32", "none", "none"), ("affine8", "minmax", "none"))}  # fmt: skip
    assert sum(c["seed"] == 0 for c, _ in found) == 5


def test_a_run_is_no_longer_than_its_recipe_and_atari_has_thirty_episodes():
    (_, long), *_ = cells(max_timesteps=10**9)
    assert long["timesteps"] == get_recipe(PPO).timesteps == 2 * long["quant_delay"]
    ddpg = "ddpg-HalfCheetah-v5"
    for most, ran in ((10**9, get_recipe(ddpg).timesteps), (5_000, 5_000)):
        (_, budget), *_ = cells(policies=[ddpg], max_timesteps=10**9, ddpg_timesteps=most)
        assert budget["timesteps"] == ran == 2 * budget["quant_delay"]
    pong = cells(policies=["dqn-PongNoFrameskip-v4"], episodes=100,
                 max_timesteps=10**9, atari_timesteps=4_000)  # fmt: skip
    assert {budget["timesteps"] for _, budget in pong} == {4_000}
    assert {budget["episodes"] for _, budget in pong} == {30}


def test_costly_policies_are_trained_once():
    found = cells(policies=[PPO, "a2c-CartPole-v1"], seeds=[1, 2], single=[PPO])
    seeds = [(c["algo"], c["seed"]) for c, _ in found if c["precision"] == "fp32"]
    assert seeds == [("ppo", 1), ("a2c", 1), ("a2c", 2)]


def test_the_full_profile_has_the_three_kinds_of_environments_and_every_width():
    found = QAT.cells(QAT.profiles["full"])
    widths = {c["precision"] for c, _ in found}
    assert widths == {"fp32", *(f"affine{b}" for b in range(2, 9))}
    kinds = {env_id: {c["algo"] for c, _ in found if c["env_id"] == env_id}
             for env_id in ("CartPole-v1", "HalfCheetah-v5", "MsPacmanNoFrameskip-v4")}  # fmt: skip
    assert set.union(*kinds.values()) == {"ppo", "a2c", "ddpg", "dqn"}
    for env_id in kinds:
        assert len({c["seed"] for c, _ in found if c["env_id"] == env_id}) >= 3
    atari = {(c["algo"], c["seed"], c["precision"] in ("fp32", "affine8"))
             for c, _ in found if c["env_id"].startswith("MsPacman")}  # fmt: skip
    thrice = {("a2c", seed, eight) for seed in range(3) for eight in (False, True)}
    once = {(algo, 0, eight) for algo in ("ppo", "dqn") for eight in (False, True)}
    assert atari == thrice | once | {("a2c", seed, True) for seed in range(3, 8)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": ["ppo-CartPole-v2"]}, "unknown policy 'ppo-CartPole-v2'; did you mean"),
        ({"precisions": ["affine17"]}, "unknown precision 'affine17'"),
        ({"precisions": ["int8"]}, "no QAT in precision 'int8': only in affine2..affine16"),
        ({"lsq": ["fp32"]}, "no QAT in precision 'fp32'"),
        ({"lsq": [4]}, "parameter 'lsq'[0] must be str, not 4"),
        ({"more_seeds": ["x"], "replicated": [PPO]}, "'more_seeds'[0] must be int, not 'x'"),
        ({"regularizers": [4]}, "parameter 'regularizers'[0] must be str, not 4"),
        ({"ptq": ["affine1"]}, "unknown precision 'affine1'"),
        ({"regularizers": ["noise1"], "regularized": [PPO]}, "unknown regularizer 'noise1'"),
        ({"regularizers": ["dropout"], "regularized": []}, "unknown regularizer 'dropout'"),
        ({"regularizers": ["..."], "regularized": [PPO]}, "unknown regularizer '...'"),
        ({"regularized": ["ppo"]}, "unknown policy 'ppo'"),
        ({"single": ["a2c"]}, "unknown policy 'a2c'"),
        ({"policies": ["ppo-PongNoFrameskip-v4"], "regularized": ["ppo-PongNoFrameskip-v4"],
          "regularizers": ["layer_norm"]}, "layer_norm is for policies without convolutions"),
        ({"policies": ["dqn-AirNavigation-III"]}, "dqn-AirNavigation-III needs a curriculum, which "
         "the study qat has not; the study navigation trains"),
        ({"quant_delay": 1.0}, "quant_delay 1.0 is no fraction of the run"),
        ({"evaluations": 0}, "evaluations must be at least 1, not 0"),
        ({"seeds": [0, -1]}, "seed must be from 0 to 2147483647, not -1"),
        ({"first_seed": 2**31 - 1, "episodes": 2}, "seed must be from 0 to 2147483647, not 21"),
        ({"first_seed": 10**20}, "seed must be from 0 to 2147483647, not 1000"),
    ],
)  # fmt: skip
def test_bad_parameters_are_one_clear_line(change, message):
    with pytest.raises(QuarlError) as caught:
        plan(QAT, "smoke", change)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_policy_that_is_judged_elsewhere_is_refused(monkeypatch):
    judged = replace(get_recipe(PPO), judged_in="CartPole-v0")
    monkeypatch.setattr(qat, "get_recipe", lambda name: judged)
    with pytest.raises(QuarlError, match="^ppo-CartPole-v1 needs evaluations in CartPole-v0, whi"):
        cells()


# Action values, Box2D, and a distribution whose scale is infinite.
@pytest.mark.parametrize(
    "policy", [PPO, "dqn-CartPole-v1", "ddpg-BipedalWalker-v3", "ppo-BipedalWalker-v3"]
)
def test_a_diverging_run_is_one_clear_line(policy, monkeypatch):
    recipe = get_recipe(policy)
    recipe.hyperparameters.update(learning_rate=1e30)
    small = {"learning_starts": 50, "n_steps": 8}.items()
    recipe.hyperparameters.update({k: v for k, v in small if k in recipe.hyperparameters})
    monkeypatch.setattr(qat, "get_recipe", lambda name: recipe)
    for cell, budget in cells(policies=[policy], max_timesteps=1_600):
        with pytest.raises(QuarlError, match="diverged|not finite|NaN") as caught:
            QAT.measure(cell, budget)
        assert "\n" not in str(caught.value)


def test_a_run_that_never_quantizes_says_so():
    (cell, budget), *_ = cells(precisions=["affine4"], policies=["dqn-CartPole-v1"])
    # Shorter than the warm-up of 1000 steps: no batch of training, no ranges.
    with pytest.raises(QuarlError, match="quantization never began"):
        QAT.measure(cell, budget)


def small(algo: type, env: str = "CartPole-v1", **options: Any) -> Any:
    return algo("MlpPolicy", env, seed=0, device="cpu", policy_kwargs={"net_arch": [8]}, **options)


def test_evaluations_are_evenly_spaced_after_the_delay_and_the_last_of_the_best_is_kept(
    monkeypatch,
):
    seen: list[PolicyNet] = []
    scores = iter([[1.0, 3.0], [5.0, 7.0], [6.0, 6.0], [0.0, 2.0]])

    def fake(net: PolicyNet, env_id: str, seeds: range) -> Evaluation:
        seen.append(net)
        assert list(seeds) == [10_000, 10_001]
        return Evaluation(next(scores), [1, 1], list(seeds), 0.0)

    monkeypatch.setattr(watched, "evaluate", fake)
    model = small(sb3.A2C)
    done = train_watched(model, "CartPole-v1", Schedule(200, 100, 4, 2), policy_from_model, [])
    assert done.curves["eval_steps"].tolist() == [125, 150, 175, 200]
    assert done.best_timesteps == 175 and done.net is seen[2]
    assert done.curves["eval_returns"].tolist() == [[1, 3], [5, 7], [6, 6], [0, 2]]


class Counting(BaseCallback):
    """A second passes at each step, as the clock of `watched` has it."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = self.steps = 0

    def _on_step(self) -> bool:
        self.seconds += 1
        self.steps += 1
        return True


def test_what_is_watched_costs_no_time_and_comes_after_what_the_callbacks_did(monkeypatch):
    counting, seen = Counting(), []

    def probe(model, observations):
        counting.seconds += 10
        assert counting.steps == model.num_timesteps
        seen.append(observations)
        return 0.5, 0.125

    def play(net, env_id, seeds):
        counting.seconds += 1000
        return Evaluation([1.0], [1], list(seeds), 0.0)

    clock = SimpleNamespace(perf_counter=lambda: counting.seconds)
    monkeypatch.setattr(watched, "time", clock)
    monkeypatch.setattr(watched, "evaluate", play)
    monkeypatch.setattr(watched, "spread_of_actions", probe)
    done = train_watched(
        small(sb3.A2C), "CartPole-v1", Schedule(300, 0, 2, 1), policy_from_model, [counting]
    )
    assert done.training_s == 300
    assert done.curves["probe_steps"].tolist() == list(range(6, 301, 6))
    assert set(done.curves["entropy"]) == {0.5} and set(done.curves["action_variance"]) == {0.125}
    # All observations so far, then the newest 256.
    assert [len(observations) for observations in seen] == [*range(6, 253, 6), *[256] * 8]
    assert np.array_equal(seen[1][:6], seen[0])
    assert np.array_equal(seen[-1][:-6], seen[-2][6:])


def test_an_error_at_finite_parameters_is_not_called_divergence():
    class Broken(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps < 50 or bool(1 // 0)

    with pytest.raises(ZeroDivisionError):
        train_watched(
            small(sb3.A2C), "CartPole-v1", Schedule(60, 0, 3, 1), policy_from_model, [Broken()]
        )


def test_training_takes_denormal_numbers_for_zero(monkeypatch):
    during, evaluate = [], watched.evaluate

    def is_zero() -> bool:
        return (torch.tensor([1e-30]) * 1e-10).item() == 0

    def spy(*arguments):
        during.append(is_zero())
        return evaluate(*arguments)

    monkeypatch.setattr(watched, "evaluate", spy)
    train_watched(small(sb3.A2C), "CartPole-v1", Schedule(20, 0, 2, 1), policy_from_model, [])
    assert during == [True, True] and not is_zero()


def test_spread_of_discrete_actions():
    model = small(sb3.PPO)
    obs = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    with torch.no_grad():
        model.policy.action_net.weight.zero_()
        model.policy.action_net.bias.copy_(torch.log(torch.tensor([0.8, 0.2])))
    entropy, variance = spread_of_actions(model, obs)
    assert entropy == pytest.approx(-0.8 * np.log(0.8) - 0.2 * np.log(0.2), abs=1e-5)
    assert variance == pytest.approx(0.09, abs=1e-5)  # of 0.8 and 0.2 about 0.5


def test_spread_of_continuous_actions():
    model = small(sb3.A2C, "MountainCarContinuous-v0")
    with torch.no_grad():
        model.policy.log_std.fill_(np.log(0.5))
    entropy, variance = spread_of_actions(model, np.zeros((7, 2), np.float32))
    assert variance == pytest.approx(0.25)
    assert entropy == pytest.approx(0.5 * np.log(2 * np.pi * np.e * 0.25))
    model = small(sb3.A2C, "Swimmer-v5")
    with torch.no_grad():
        model.policy.log_std.copy_(torch.log(torch.tensor([0.5, 2.0])))
    entropy, variance = spread_of_actions(model, np.zeros((7, 8), np.float32))
    assert variance == pytest.approx(2.125)  # the mean of 0.25 and 4
    assert entropy == pytest.approx(np.log(2 * np.pi * np.e))  # log(0.5) + log(2) is 0


def test_spread_of_greedy_actions():
    model = small(sb3.DQN, buffer_size=10)
    output = model.q_net.q_net[-1]
    first = model.q_net.q_net[0]
    with torch.no_grad():
        for layer in (first, output):
            layer.weight.zero_()
            layer.bias.zero_()
        first.weight[0, 0] = 1.0  # relu(cart position)
        output.weight[0, 0] = 1.0
        output.bias[1] = 0.5
    obs = np.zeros((4, 4), np.float32)
    obs[0, 0] = 1.0  # one of four goes left
    entropy, variance = spread_of_actions(model, obs)
    assert entropy == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75), abs=1e-5)
    assert variance == pytest.approx(0.0625)
    obs[:, 0] = 1.0  # and now all do: nobody goes right
    assert spread_of_actions(model, obs) == pytest.approx((0.0, 0.25), abs=1e-5)
    ddpg = small(sb3.DDPG, "MountainCarContinuous-v0", buffer_size=10)
    obs = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    entropy, variance = spread_of_actions(ddpg, obs)
    actions = ddpg.policy.actor(torch.as_tensor(obs))
    assert np.isnan(entropy)
    assert variance == pytest.approx(actions.var(0, correction=0).item(), rel=1e-4)
    ddpg = small(sb3.DDPG, "Swimmer-v5", buffer_size=10)
    with torch.no_grad():
        ddpg.actor.mu[-2].weight.zero_()
        ddpg.actor.mu[-2].bias.copy_(torch.tensor([-0.5, 0.5]))
    obs = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    assert spread_of_actions(ddpg, obs)[1] == pytest.approx(0, abs=1e-12)  # apart, but constant


@pytest.mark.parametrize("precision", ["fp32", "affine4"])
def test_atari_runs_quantized_or_not_and_acts_as_its_recipe_says(precision):
    recipe = get_recipe("a2c-MsPacmanNoFrameskip-v4")
    model = make_model(replace(recipe, timesteps=320), seed=0)
    cell = {"precision": precision, "method": "minmax", "regularizer": "none"}
    callbacks, export = qat.prepare(model, recipe, cell, 0)
    model.learn(320, callback=callbacks)
    net = export(model)
    assert net is not None and net.spec.env_id == recipe.env_id
    assert net.spec.head.kind == recipe.head == "sample"
    assert spread_of_actions(model, np.zeros((3, 4, 84, 84), np.uint8))[0] > 0
    model.env.close()


def test_hidden_layers_train_in_float32_where_their_recipe_has_them_in_half(monkeypatch):
    made = []

    def spy(recipe, seed):
        made.append(recipe)
        raise QuarlError("enough")

    half = replace(get_recipe("dqn-CartPole-v1"), half_precision=True)
    monkeypatch.setattr(qat, "get_recipe", lambda name: half)
    monkeypatch.setattr(qat, "make_model", spy)
    for cell, budget in cells(policies=["dqn-CartPole-v1"]):
        with pytest.raises(QuarlError, match="enough"):
            QAT.measure(cell, budget)
    assert [recipe.half_precision for recipe in made] == [False, False]  # float32 and 4 bits


def test_atari_trains_on_the_exact_levels_in_float32_everywhere(monkeypatch):
    monkeypatch.setattr("quarl_nb.rl.fast_cnn.bf16_is_faster", lambda: True)
    made = []

    def spy(recipe, seed):
        made.append(recipe.hyperparameters)
        raise QuarlError("enough")

    monkeypatch.setattr(qat, "make_model", spy)
    name = "a2c-MsPacmanNoFrameskip-v4"
    (cell, budget), *_ = cells(policies=[name], precisions=["affine8"])
    with pytest.raises(QuarlError, match="enough"):
        QAT.measure(cell, budget)
    options = made[0]["policy_kwargs"]["features_extractor_kwargs"]
    assert options == {"features_dim": 128, "precision": "fp32"}
    assert made[0] | {"policy_kwargs": 0} == get_recipe(name).hyperparameters | {"policy_kwargs": 0}


def test_a_cell_that_fails_leaves_no_record_and_the_others_go_on(tmp_path):
    store = ResultStore(tmp_path)
    # DQN's warm-up is longer than this run: quantized it has nothing to train.
    parameters = dict(policies=["dqn-CartPole-v1"], precisions=["affine4", "fp32"],
                      max_timesteps=300, evaluations=1, eval_episodes=1, episodes=2)  # fmt: skip
    summary = run_study(QAT, "smoke", store, parameters=parameters, progress=False)
    assert (summary.done, summary.failed) == (1, 1)
    assert list(store.frame("qat", "smoke")["precision"]) == ["fp32"]
    (error,) = summary.errors
    assert "quantization never began" in error.read_text()
