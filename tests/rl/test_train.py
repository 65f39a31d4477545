from __future__ import annotations

import itertools
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

from quarl_nb.errors import QuarlError
from quarl_nb.rl import train as training
from quarl_nb.rl.air.navigation import ENV_ID
from quarl_nb.rl.checkpoint import Progress, load_checkpoint, read_progress, save_checkpoint
from quarl_nb.rl.evaluate import Evaluation
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import load_policy
from quarl_nb.rl.recipes import get_recipe, linear, recipes
from quarl_nb.rl.sb3.vec_env import ArenaVecEnv, AtariVecEnv
from quarl_nb.rl.zoo import publish

SHORT = dict(timesteps=600, eval_every=300, eval_episodes=2, target_return=None)


def short(name: str, **changes):
    recipe = get_recipe(name)
    small = {"buffer_size": 500} if "buffer_size" in recipe.hyperparameters else {}
    return replace(
        recipe, **{**SHORT, **changes}, hyperparameters=recipe.hyperparameters | small
    )


def test_a_run_ends_with_its_best_policy_and_its_progress(tmp_path):
    recipe = short("ppo-CartPole-v1")
    progress = training.train(recipe, tmp_path / "run")
    assert progress.done
    assert progress.timesteps >= 600
    net = load_policy(publish(tmp_path / "run", tmp_path / "policy"))
    assert (net.spec.algo, net.spec.env_id) == ("ppo", "CartPole-v1")
    assert net.spec.provenance["timesteps"] == progress.best_timesteps
    assert net.spec.provenance["timesteps_run"] == progress.timesteps
    assert net.spec.provenance["selection"]["mean"] == progress.best_return
    assert net.spec.provenance["selection"]["first_seed"] == 10_000  # none of the studies'
    assert net.spec.provenance["selection"]["episodes"] == 2
    assert net.spec.provenance["hyperparameters"]["learning_rate"] == "linear from 0.001"
    lines = (tmp_path / "run" / "progress.csv").read_text().splitlines()
    assert lines[0].startswith("timesteps,wall_s")
    best = max(float(line.split(",")[3]) for line in lines[1:])
    assert best == progress.best_return


@pytest.fixture
def stop_after(monkeypatch):
    """`train` whose deadline is a number of calls of the environments."""

    def train_until(calls: int, *arguments) -> Progress:
        ticks = itertools.count(1)
        clock = SimpleNamespace(time=lambda: next(ticks), perf_counter=time.perf_counter)
        with monkeypatch.context() as patch:
            patch.setattr(training, "time", clock)
            return training.train(*arguments, deadline=calls)

    return train_until


def test_a_stopped_run_continues_where_it_was(tmp_path, stop_after):
    recipe = short("ppo-CartPole-v1")
    stopped = stop_after(40, recipe, tmp_path)
    assert not stopped.done
    assert stopped.timesteps == 256  # of 320: its second rollout was cut short
    resumed = training.train(recipe, tmp_path)
    assert resumed.done
    assert 600 <= resumed.timesteps < 600 + 256  # whole rollouts of 8 x 32 steps
    assert resumed.wall_s > stopped.wall_s
    assert training.train(recipe, tmp_path).timesteps == resumed.timesteps


@pytest.mark.parametrize(
    ("name", "hyperparameters", "counted"),
    [
        # 20 epochs of each of 4 rollouts.
        ("ppo-CartPole-v1", {"n_steps": 256}, {"_n_updates": 80}),
        # 128 updates after each of 4 rollouts, but for that within the warm-up.
        ("dqn-CartPole-v1", {"learning_starts": 300}, {"_n_updates": 384, "_n_calls": 1024}),
    ],
)
def test_every_step_that_counts_was_learned_from_however_often_a_run_is_stopped(
    tmp_path, stop_after, name, hyperparameters, counted
):
    recipe = short(name, timesteps=1024, eval_every=10**9, n_envs=1)
    recipe.hyperparameters.update(hyperparameters)
    steps = []
    while not steps or steps[-1] < 1024:
        steps.append(stop_after(400, recipe, tmp_path).timesteps)
    assert steps == [256, 512, 768, 1024]
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["counters"] == counted
    if "replay" in state:  # of 500 rows: what was collected twice is there once
        assert (state["replay"]["pos"], state["replay"]["full"]) == (1024 - 2 * 500, True)


def test_a_run_killed_within_a_rollout_loses_that_rollout_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_EVERY_S", 0.0)
    monkeypatch.setattr(training, "CHECKPOINT_SHARE", 1e9)  # at every step
    monkeypatch.setattr(training, "evaluate", lambda *_: exit())
    recipe = short("ppo-CartPole-v1", eval_every=400)
    with pytest.raises(SystemExit):
        training.train(recipe, tmp_path)
    saved = read_progress(tmp_path / "checkpoint.pt")
    assert (saved.timesteps, saved.updates) == (256, 20)


def test_a_time_too_short_for_a_rollout_is_kept_and_told(tmp_path, stop_after, caplog):
    recipe = short("ppo-CartPole-v1")
    progress = stop_after(5, recipe, tmp_path)
    assert (progress.timesteps, progress.updates, progress.done) == (0, 0, False)
    assert caplog.messages == [
        "ppo-CartPole-v1 learned nothing: the time was over before its first rollout was whole"
    ]
    caplog.clear()
    stop_after(40, recipe, tmp_path)
    assert not caplog.messages


def test_a_resumed_policy_fills_its_lost_replay_buffer_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("quarl_nb.rl.replay_state.MAX_SAVED_BUFFER_BYTES", 0)
    recipe = short("dqn-CartPole-v1", timesteps=512)
    recipe.hyperparameters["learning_starts"] = 100
    first, model = make_model(recipe, 0), make_model(recipe, 0)
    first.learn(256)
    save_checkpoint(tmp_path / "checkpoint.pt", first, Progress(timesteps=256))
    monkeypatch.setattr(model, "predict", lambda obs, **_: (np.ones(len(obs), int), None))
    monkeypatch.setattr(training, "make_model", lambda *_: model)
    assert training.train(recipe, tmp_path).timesteps == 512
    assert model.replay_buffer.actions[:256].all()


@pytest.mark.parametrize("content", [None, b"damaged"])
def test_environments_are_closed_where_nothing_is_trained(tmp_path, monkeypatch, content):
    recipe, closed = short("ppo-CartPole-v1"), []
    model = make_model(recipe, 0)
    checkpoint = tmp_path / "checkpoint.pt"
    save_checkpoint(checkpoint, model, Progress(timesteps=600, done=True))
    monkeypatch.setattr(model.env, "close", lambda: closed.append(True))
    monkeypatch.setattr(training, "make_model", lambda *_: model)
    with pytest.raises(QuarlError) if content else nullcontext():
        checkpoint.write_bytes(content or checkpoint.read_bytes())
        training.train(recipe, tmp_path)
    assert closed == [True]


def test_a_run_killed_while_it_wrote_its_best_policy_ends_with_another(tmp_path):
    recipe = short("ppo-CartPole-v1")
    training.train(recipe, tmp_path)
    model = make_model(recipe, seed=0)
    save_checkpoint(tmp_path / "checkpoint.pt", model, Progress(timesteps=300, best_return=501.0))
    (tmp_path / "best" / "policy.safetensors").write_bytes(b"of another policy")
    resumed = training.train(recipe, tmp_path)
    assert load_policy(tmp_path / "best").spec.provenance["timesteps"] == resumed.best_timesteps


def test_a_run_that_is_done_and_has_lost_its_best_policy_gets_one(tmp_path):
    recipe = short("ppo-CartPole-v1")
    done = training.train(recipe, tmp_path)
    shutil.rmtree(tmp_path / "best")
    again = training.train(recipe, tmp_path)
    assert again.done and again.timesteps == done.timesteps
    best = load_policy(publish(tmp_path, tmp_path / "policy")).spec.provenance
    assert best["timesteps"] == again.best_timesteps == done.timesteps


def test_an_empty_log_gets_its_header(tmp_path):
    (tmp_path / "progress.csv").touch()  # by a kill before the first row
    training.train(short("ppo-CartPole-v1"), tmp_path)
    assert (tmp_path / "progress.csv").read_text().startswith("timesteps,wall_s")


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_run_killed_between_its_best_policy_and_its_checkpoint(tmp_path, monkeypatch, goes_on):
    recipe = short("ppo-CartPole-v1", timesteps=1024, eval_every=256)
    means, save = iter([10, 400, 20, 50, 60, 30]), training.save_checkpoint
    monkeypatch.setattr(training, "evaluate", lambda *_: Evaluation([next(means)], [1], [0], 0.1))

    def die(path, model, progress, mark):
        if progress.best_return == 400:
            exit()
        save(path, model, progress, mark)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(training, "save_checkpoint", die)
        training.train(recipe, tmp_path)
    if not goes_on:  # but begins anew, beside the best of another
        (tmp_path / "checkpoint.pt").unlink()
    progress = training.train(recipe, tmp_path)
    best = load_policy(tmp_path / "best").spec.provenance
    assert best["selection"]["mean"] == progress.best_return
    assert best["timesteps"] == progress.best_timesteps
    assert progress.best_return == (400 if goes_on else 60)
    _, *rows = (tmp_path / "progress.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["256", "512", "768", "1024"]


def test_training_takes_denormal_numbers_for_zero(tmp_path, monkeypatch):
    during, evaluate = [], training.evaluate

    def watched(*arguments, **options):
        during.append(is_zero())
        return evaluate(*arguments, **options)

    def is_zero() -> bool:
        return (torch.tensor([1e-30]) * 1e-10).item() == 0

    monkeypatch.setattr(training, "evaluate", watched)
    training.train(short("dqn-CartPole-v1"), tmp_path)
    assert during[0]
    assert not is_zero()


@pytest.mark.parametrize("recipe_steps", [600, 300], ids=["at its last step", "past a new recipe"])
def test_a_run_without_steps_left_still_gets_its_last_evaluation(tmp_path, recipe_steps):
    model = make_model(short("ppo-CartPole-v1"), seed=0)
    save_checkpoint(tmp_path / "checkpoint.pt", model, Progress(timesteps=600))
    progress = training.train(short("ppo-CartPole-v1", timesteps=recipe_steps), tmp_path)
    assert progress.done and progress.timesteps == progress.best_timesteps == 600
    (_, row) = (tmp_path / "progress.csv").read_text().splitlines()
    assert row.startswith("600,")
    assert load_policy(tmp_path / "best").spec.provenance["timesteps"] == 600


def test_no_step_is_evaluated_twice(tmp_path):
    training.train(short("dqn-CartPole-v1", timesteps=512, eval_every=256), tmp_path)
    _, *rows = (tmp_path / "progress.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["256", "512"]


def test_a_policy_is_evaluated_and_kept_with_the_head_of_its_recipe(tmp_path, monkeypatch):
    heads, evaluate = [], training.evaluate

    def watched(net, *arguments, **options):
        heads.append(net.spec.head.kind)
        return evaluate(net, *arguments, **options)

    monkeypatch.setattr(training, "evaluate", watched)
    training.train(short("ppo-CartPole-v1", head="sample"), tmp_path)
    assert set(heads) == {"sample"}
    assert load_policy(tmp_path / "best").spec.head.kind == "sample"


def test_only_policies_that_learn_probabilities_draw_their_actions():
    """A softmax of action values means nothing."""
    drawn = {recipe.algo for recipe in recipes().values() if recipe.head == "sample"}
    assert drawn == {"ppo", "a2c"}


def test_training_stops_at_its_target_return(tmp_path):
    recipe = short("ppo-CartPole-v1", target_return=-1.0)
    progress = training.train(recipe, tmp_path)
    assert progress.done
    assert progress.timesteps == 304  # all that were made until its first evaluation
    assert training.train(recipe, tmp_path) == progress
    assert training.train(replace(recipe, target_return=501.0), tmp_path).timesteps >= 600


def test_a_return_that_is_the_target_reaches_it_and_the_first_of_equal_policies_is_kept(
    tmp_path, monkeypatch
):
    means = iter([50.0, 50.0, 60.0])
    monkeypatch.setattr(training, "evaluate", lambda *_: Evaluation([next(means)], [1], [0], 0.1))
    recipe = short("a2c-CartPole-v1", timesteps=800, eval_every=80, target_return=60.0)
    progress = training.train(recipe, tmp_path)
    assert progress.done and progress.timesteps == 240
    (tmp_path / "progress.csv").unlink()
    means = iter([50.0, 50.0, 40.0])
    progress = training.train(replace(recipe, timesteps=240), tmp_path / "anew")
    assert (progress.best_return, progress.best_timesteps) == (50.0, 80)


def test_a_resumed_run_draws_other_random_numbers_and_is_evaluated_as_planned(
    tmp_path, stop_after, monkeypatch
):
    seeds = []

    def spied(*arguments):
        model = make_model(*arguments)
        model.set_random_seed = seeds.append
        return model

    monkeypatch.setattr(training, "make_model", spied)
    recipe = short("ppo-CartPole-v1")
    stop_after(35, recipe, tmp_path, 3)
    training.train(recipe, tmp_path, 3)
    assert seeds == [3, 3 + 256]
    _, *rows = (tmp_path / "progress.csv").read_text().splitlines()
    # The first steps of eight environments past 300 and 600, and the end of the last rollout.
    assert [row.split(",")[0] for row in rows] == ["304", "600", "768"]


def test_time_counts_on_and_saves_that_take_long_come_seldom(tmp_path, monkeypatch):
    now, begun = [0.0], []

    def tick() -> float:
        now[0] += 10
        return now[0]

    def save(path, model, progress, mark):
        begun.append(now[0])
        now[0] += 60

    monkeypatch.setattr(training, "save_checkpoint", save)
    clock = SimpleNamespace(time=tick, perf_counter=lambda: now[0])
    monkeypatch.setattr(training, "time", clock)
    recipe = short("a2c-CartPole-v1", timesteps=8 * 160, eval_every=10**9)
    save_checkpoint(tmp_path / "checkpoint.pt", make_model(recipe, 0), Progress(wall_s=1000.0))
    progress = training.train(recipe, tmp_path, deadline=10**9)
    # 160 steps of 10 s. After two minutes; 60 s / 0.05 after that; at the end.
    assert begun == [120, 180 + 1200, 160 * 10 + 2 * 60]
    assert progress.wall_s == 1000 + begun[-1]


def test_the_training_return_is_of_the_last_hundred_episodes(tmp_path, monkeypatch):
    class Older(training._Monitor):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.episode_returns = [1e9] + [0.0] * 99

    monkeypatch.setattr(training, "_Monitor", Older)
    training.train(short("a2c-CartPole-v1", eval_every=10**9), tmp_path)
    _, row = (tmp_path / "progress.csv").read_text().splitlines()
    assert 0 < float(row.split(",")[2]) < 500


@pytest.mark.parametrize("name", ["dqn-CartPole-v1", "ppo-MountainCarContinuous-v0"])
def test_a_checkpoint_restores_the_model(tmp_path, name):
    recipe = short(name)
    model = make_model(recipe, seed=0)
    model.learn(300)
    save_checkpoint(tmp_path / "c.pt", model, Progress(timesteps=300, best_return=1.5))
    other = make_model(recipe, seed=1)
    progress = load_checkpoint(tmp_path / "c.pt", other)
    assert progress == Progress(timesteps=300, best_return=1.5)
    assert other.num_timesteps == 300
    for key, value in model.policy.state_dict().items():
        assert torch.equal(value, other.policy.state_dict()[key]), key
    if recipe.normalize:
        ours, theirs = (m.get_vec_normalize_env().obs_rms for m in (model, other))
        np.testing.assert_array_equal(ours.mean, theirs.mean)
        assert ours.count == theirs.count
    else:
        ours, theirs = model.replay_buffer, other.replay_buffer
        assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
        np.testing.assert_array_equal(ours.observations, theirs.observations)


def test_a_damaged_checkpoint_is_named(tmp_path):
    recipe = short("ppo-CartPole-v1")
    training.train(recipe, tmp_path, deadline=0.0)
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:2000])
    with pytest.raises(QuarlError, match="checkpoint.pt' cannot be read"):
        training.train(recipe, tmp_path)


def test_a_run_goes_on_with_its_own_seed_alone(tmp_path):
    recipe = short("ppo-CartPole-v1")
    training.train(recipe, tmp_path, seed=3, deadline=0.0)
    with pytest.raises(QuarlError, match="' is a run of seed 3, not of 0; to start anew, delete"):
        training.train(recipe, tmp_path)
    training.train(recipe, tmp_path, seed=3, deadline=0.0)
    save_checkpoint(tmp_path / "checkpoint.pt", make_model(recipe, 0), Progress())
    training.train(recipe, tmp_path, deadline=0.0)  # an older one does not tell


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"format": 1, "parameters": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(QuarlError, match="cannot be read"):
        training.train(short("ppo-CartPole-v1"), tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_diverged_run_is_one_clear_line(tmp_path, monkeypatch):
    recipe = short("ppo-MountainCarContinuous-v0", eval_every=10**9)
    recipe.hyperparameters["learning_rate"] = 1e30
    with pytest.raises(QuarlError, match="ppo-MountainCarContinuous-v0 diverged"):
        training.train(recipe, tmp_path)
    assert not (tmp_path / "best").exists()


def test_a_diverged_run_is_one_clear_line_whatever_its_environment_raises(tmp_path):
    recipe = short("ddpg-BipedalWalker-v3", eval_every=10**9)
    recipe.hyperparameters.update(learning_rate=1e30, learning_starts=50)
    with pytest.raises(QuarlError, match="^ddpg-BipedalWalker-v3 diverged at step .*$") as raised:
        training.train(recipe, tmp_path)
    assert isinstance(raised.value.__cause__, AssertionError)  # of Box2D, at an action of NaN


def test_an_error_at_finite_parameters_is_not_called_divergence(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise AssertionError("the environment is broken")

    monkeypatch.setattr(training, "evaluate", broken)
    with pytest.raises(AssertionError, match="the environment is broken"):
        training.train(short("ppo-CartPole-v1"), tmp_path)


def test_linear_schedule():
    assert [linear(0.2)(p) for p in (1.0, 0.5, 0.0)] == [0.2, 0.1, 0.0]


@pytest.mark.parametrize(("kind", "noise"), [
    ("normal", NormalActionNoise), ("ornstein-uhlenbeck", OrnsteinUhlenbeckActionNoise),
])  # fmt: skip
def test_actions_have_the_noise_of_the_recipe(kind, noise):
    recipe = short("ddpg-MountainCarContinuous-v0", action_noise=(kind, 0.3))
    found = make_model(recipe, 0).action_noise
    assert type(found) is noise
    assert (found._mu.tolist(), found._sigma.tolist()) == ([0.0], [0.3])


@pytest.mark.parametrize(("algo", "gamma"), [("ppo", 0.9999), ("a2c", 0.99)])
def test_rewards_are_normalized_by_the_discount_of_the_recipe(algo, gamma):
    model = make_model(short(f"{algo}-MountainCarContinuous-v0"), 0)
    env = model.get_vec_normalize_env()
    assert env.gamma == model.gamma == gamma
    assert env.norm_obs and env.norm_reward


@pytest.mark.parametrize(
    ("kind", "env_id"), [(AtariVecEnv, "PongNoFrameskip-v4"), (ArenaVecEnv, ENV_ID)]
)
def test_a_resumed_run_meets_other_episodes_than_it_began_with(kind, env_id):
    def film(env) -> np.ndarray:
        begun = env.reset()
        return np.stack([begun, *(env.step(np.zeros(2, int))[0] for _ in range(60))])

    def begin(*seeds: int) -> np.ndarray:
        env = kind(env_id, 2, seed=0)
        for seed in seeds:
            env.seed(seed)
        first, second = film(env), film(env)
        env.close()
        assert (first != second).any()
        return first

    assert (begin() == begin(5, 0)).all()  # the last one set counts
    assert any((begin() != begin(seed)).any() for seed in (1000, 2000))


def test_a_folder_that_cannot_be_written_is_told_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(QuarlError, match="cannot write to '.*run'"):
        training.train(short("ppo-CartPole-v1"), tmp_path / "file" / "run")


def test_atari_training_env_reports_whole_games_and_ends_episodes_at_lost_lives():
    env = AtariVecEnv("BreakoutNoFrameskip-v4", 2, seed=0)
    env.reset()
    generator = np.random.default_rng(0)
    lost, games, rewards_seen = 0, [], set()
    for _ in range(600):
        _, rewards, dones, infos = env.step(generator.integers(4, size=2))
        rewards_seen |= set(rewards.tolist())
        lost += int(dones.sum())
        games += [info["episode"] for info in infos if "episode" in info]
        for done, info in zip(dones, infos, strict=True):
            assert done == ("terminal_observation" in info)
    assert rewards_seen <= {-1.0, 0.0, 1.0}
    assert games
    # Five lives a game in Breakout: at most that many endings for each finished or running game.
    assert 5 * len(games) <= lost < 5 * (len(games) + 2)
    env.close()
