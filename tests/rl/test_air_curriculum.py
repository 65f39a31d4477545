"""The curriculum, and the arenas as stable-baselines3 sees them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.dqn.policies import DQNPolicy

from quarl_nb.report.edge.success import published_success
from quarl_nb.rl import train as training
from quarl_nb.rl.air.curriculum import CurriculumCallback
from quarl_nb.rl.air.navigation import ENV_ID, GOAL_ID
from quarl_nb.rl.air.world import MAX_GOAL_DISTANCE_M
from quarl_nb.rl.checkpoint import read_progress
from quarl_nb.rl.half_dqn import HalfDQNPolicy
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import load_policy
from quarl_nb.rl.recipes import EARLY, PUBLISHED_SUCCESS, Curriculum, get_recipe, recipes
from quarl_nb.rl.sb3.vec_env import ArenaVecEnv
from quarl_nb.rl.train import SELECTION_SEED
from quarl_nb.studies.navigation import fly

POLICY = "dqn-AirNavigation-I"


class Run:
    """A curriculum without an agent: `episodes` says how the next ones end."""

    def __init__(self, curriculum: Curriculum, stages: list[tuple[int, float]]) -> None:
        self.distances: list[float] = []
        self.callback = CurriculumCallback(curriculum, stages)
        env = SimpleNamespace(env_method=lambda name, metres: self.distances.append(metres))
        self.callback.model = SimpleNamespace(get_env=lambda: env, num_timesteps=0)
        self.callback.on_training_start({}, {})

    def episodes(self, outcomes: str) -> None:
        """One step an episode: "+" reaches its goal, "-" does not."""
        for outcome in outcomes:
            self.callback.model.num_timesteps += 10
            info = {"is_success": outcome == "+"}
            self.callback.update_locals({"infos": [{}, info]})
            assert self.callback.on_step()


def test_goals_move_away_when_enough_are_reached_and_then_anew():
    stages: list[tuple[int, float]] = []
    run = Run(Curriculum(start_m=4.0, factor=1.5, success=0.6, window=5), stages)
    run.episodes("++++")  # not five yet
    assert run.distances == [4.0]
    run.episodes("-")
    assert run.distances == [4.0, 6.0]
    run.episodes("++--+")  # those before the move would make it 6 of 7
    assert run.distances == [4.0, 6.0, 9.0]
    run.episodes("--++---++")
    assert run.distances == [4.0, 6.0, 9.0]
    run.episodes("+")  # --+++
    assert run.distances == [4.0, 6.0, 9.0, 13.5]
    assert stages == [(0, 4.0), (50, 6.0), (100, 9.0), (200, 13.5)]


def test_the_last_stage_is_the_whole_arena():
    stages: list[tuple[int, float]] = []
    run = Run(Curriculum(start_m=25.0, factor=1.5, success=1.0, window=1), stages)
    run.episodes("+++")
    assert [distance for _, distance in stages] == [25.0, MAX_GOAL_DISTANCE_M]


def test_a_resumed_curriculum_goes_on_at_its_last_stage():
    stages = [(0, 4.0), (50, 6.0)]
    run = Run(Curriculum(factor=1.5, success=1.0, window=1), stages)
    assert run.distances == [6.0]
    run.episodes("+")
    assert run.distances == [6.0, 9.0]
    assert stages == [(0, 4.0), (50, 6.0), (10, 9.0)]


def short(**changes):
    recipe = get_recipe(POLICY)
    small = dict(buffer_size=500, learning_starts=100, gradient_steps=1)
    curriculum = Curriculum(success=0.0, window=1)  # goals move whenever an episode ends
    return replace(recipe, timesteps=800, eval_every=10**9, eval_episodes=1, curriculum=curriculum,
                   hyperparameters=recipe.hyperparameters | small, **changes)  # fmt: skip


def test_the_policy_says_how_its_curriculum_went_and_a_resumed_run_continues_it(tmp_path):
    free = replace(short(), curriculum=Curriculum())
    stopped = training.train(free, tmp_path, seed=3, deadline=0.0)
    assert stopped.stages == [(0, 4.0)]
    assert not stopped.done
    done = training.train(short(), tmp_path, seed=3)
    assert read_progress(tmp_path / "checkpoint.pt") == done
    assert done.stages[:2] == [(0, 4.0), (done.stages[1][0], 6.0)]
    assert done.stages[-1][1] == MAX_GOAL_DISTANCE_M
    provenance = load_policy(tmp_path / "best").spec.provenance
    assert provenance["seed"] == 3
    assert provenance["reward_scale"] == 0.01
    recorded = provenance["curriculum"]
    assert (recorded["start_m"], recorded["factor"], recorded["window"]) == (4.0, 1.5, 1)
    assert recorded["stages"] == [list(s) for s in done.stages if s[0] <= provenance["timesteps"]]


def test_arenas_step_as_the_single_environment_and_reset_at_once():
    env = ArenaVecEnv(ENV_ID, 3, seed=7, reward_scale=0.01)
    single = gym.make(ENV_ID)
    obs, expected = env.reset(), single.reset(seed=8)[0]
    generator = np.random.default_rng(0)
    total, length, ended = 0.0, 0, 0
    for _ in range(200):
        np.testing.assert_array_equal(obs[1], expected)
        actions = generator.integers(25, size=3)
        obs, rewards, dones, infos = env.step(actions)
        expected, reward, terminated, truncated, info = single.step(actions[1])
        total, length = total + reward, length + 1
        assert rewards[1] == pytest.approx(0.01 * reward, rel=1e-6)
        assert dones[1] == (terminated or truncated) == ("episode" in infos[1])
        if dones[1]:
            np.testing.assert_array_equal(infos[1]["terminal_observation"], expected)
            assert infos[1]["episode"] == {"r": pytest.approx(total), "l": length}
            assert infos[1]["is_success"] == info["is_success"]
            assert infos[1]["TimeLimit.truncated"] == truncated
            expected, total, length, ended = single.reset()[0], 0.0, 0, ended + 1
    assert ended > 3


def test_table_6_has_its_three_networks():
    for policy, net_arch in {"I": [64] * 3, "II": [256] * 3, "III": [4096, 512, 1024]}.items():
        recipe = get_recipe(f"dqn-AirNavigation-{policy}")
        assert recipe.env_id == ENV_ID
        assert recipe.hyperparameters["policy_kwargs"]["net_arch"] == net_arch


@pytest.mark.parametrize(("fast", "large"), [(True, HalfDQNPolicy), (False, DQNPolicy)])
def test_policy_iii_alone_trains_in_half_precision_where_that_is_faster(fast, large, monkeypatch):
    monkeypatch.setattr("quarl_nb.rl.fast_cnn.bf16_is_faster", lambda: fast)
    for policy, kind in {"II": DQNPolicy, "III": large}.items():
        assert type(make_model(get_recipe(f"dqn-AirNavigation-{policy}"), seed=0).policy) is kind


def test_policies_that_stop_early_stop_at_the_published_success():
    table = published_success().set_index(["policy", "precision"])
    early = {name: recipe for name, recipe in recipes().items() if name.endswith(EARLY)}
    assert [*early] == [f"dqn-AirNavigation-{policy}{EARLY}" for policy in PUBLISHED_SUCCESS]
    for policy, (name, recipe) in zip(PUBLISHED_SUCCESS, early.items(), strict=True):
        assert recipe.target_return == table.loc[(f"Policy {policy}", "fp32"), "success"]
        assert recipe.hyperparameters == get_recipe(name.removesuffix(EARLY)).hyperparameters


def test_a_policy_that_stops_early_is_judged_by_its_success_alone(tmp_path):
    changes = dict(judged_in=GOAL_ID, target_return=0.05, eval_every=200, eval_episodes=20)
    recipe = replace(short(), **changes)
    done = training.train(recipe, tmp_path, seed=3)
    net = load_policy(tmp_path / "best")
    selection = net.spec.provenance["selection"]
    assert selection["env_id"] == GOAL_ID
    _, outcomes = fly(net, range(SELECTION_SEED, SELECTION_SEED + 20))
    assert done.best_return == selection["mean"] == outcomes.count("success") / 20
    assert done.timesteps < recipe.timesteps and done.best_return >= 0.05
