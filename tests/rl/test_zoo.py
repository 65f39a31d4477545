"""The zoo: what is missing and in which order, and one failure that stops no other policy."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.report.paper import published_ptq
from quarl_nb.rl import train as training
from quarl_nb.rl import zoo
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import load_policy, save_policy
from quarl_nb.rl.prioritized import PrioritizedDQN
from quarl_nb.rl.recipes import get_recipe, recipes
from quarl_nb.rl.recipes.atari import FIGURE_7, OTHER_GAMES
from quarl_nb.rl.train import train

SHORT = dict(timesteps=320, eval_every=160, eval_episodes=1, target_return=None)
PPO, A2C = "ppo-CartPole-v1", "a2c-CartPole-v1"
BREAKOUT = "BreakoutNoFrameskip-v4"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project, whose recipes are short."""
    (tmp_path / "data" / "policies").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    short = {name: replace(recipe, **SHORT) for name, recipe in recipes().items()}
    monkeypatch.setattr(zoo, "get_recipe", short.__getitem__)
    return short


@pytest.fixture
def clock(monkeypatch):
    """For `train` a second passes at each step of the environments."""
    seconds = itertools.count()
    times = SimpleNamespace(time=lambda: next(seconds), perf_counter=time.perf_counter)
    monkeypatch.setattr(training, "time", times)


def test_there_is_a_recipe_for_every_policy_of_table_4():
    table = published_ptq()
    names = {f"{row.algo}-{row.env_id}" for row in table.itertuples()}
    assert len(names) == 36 and names <= set(recipes())


def test_every_game_is_trained_for_at_least_a_million_steps_and_says_what_is_cut():
    games = [recipe for recipe in recipes().values() if recipe.env_id.endswith("NoFrameskip-v4")]
    assert len(games) == 21
    for recipe in games:
        assert recipe.timesteps >= 1_000_000
        if "Pong" not in recipe.name or recipe.algo == "dqn":
            assert f"{recipe.timesteps // 1_000_000} of its 10 million steps" in recipe.source


@pytest.mark.parametrize("game", ["Pong", *FIGURE_7, *OTHER_GAMES])
def test_dqn_on_a_game_has_the_settings_of_table_5_as_its_policy_had(game):
    published = dict(
        buffer_size=10_000, learning_rate=1e-4, learning_starts=10_000,
        target_update_interval=1000, exploration_final_eps=0.01,
    )  # fmt: skip
    recipe = get_recipe(f"dqn-{game}NoFrameskip-v4")
    model = make_model(recipe, seed=0)
    assert isinstance(model, PrioritizedDQN)
    assert {name: getattr(model, name) for name in published} == published
    assert model.replay_buffer.alpha == 0.6
    assert recipe.timesteps == (3_000_000 if game == "Pong" else 1_000_000)
    assert model.exploration_fraction * recipe.timesteps == pytest.approx(100_000)
    model.env.close()
    provenance = load_policy(f"data/policies/{recipe.name}").spec.provenance
    assert recipe.hyperparameters == provenance["hyperparameters"]


def test_large_updates_alone_share_the_cores(project, monkeypatch):
    found = {}

    def observed(recipe, run_dir, n_threads, **_):
        found[recipe.name] = (n_threads, torch.get_num_threads())
        return SimpleNamespace(done=False)

    monkeypatch.setattr(zoo, "train", observed)
    before = torch.get_num_threads()
    try:
        for _ in zoo.train_policies(recipes(), cores=2):
            pass
    finally:
        torch.set_num_threads(before)
    assert set(found.values()) == {(1, 1), (2, 2)}
    shared = {name for name, threads in found.items() if threads == (2, 2)}
    assert {name for name in shared if "NoFrameskip" not in name} == {
        *(f"ddpg-{env}" for env in ("MountainCarContinuous-v0", "HalfCheetah-v5", "Walker2d-v5",
                                    "BipedalWalker-v3")),
        *(f"dqn-AirNavigation-{policy}" for policy in ("II", "II-early", "III")),
    }  # fmt: skip
    assert sum("NoFrameskip" in name for name in shared) == 21


def test_a2c_on_a_game_has_the_settings_of_the_rl_zoo_and_the_optimizer_of_sb3():
    model = make_model(get_recipe(f"a2c-{BREAKOUT}"), seed=0)
    optimizer = model.policy.optimizer
    assert isinstance(optimizer, torch.optim.RMSprop)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["alpha"], group["eps"]) == (7e-4, 0.99, 1e-5)
    assert (group["momentum"], group["centered"], group["weight_decay"]) == (0, False, 0)
    assert (model.n_steps, model.gae_lambda, model.max_grad_norm) == (5, 1.0, 0.5)
    assert (model.ent_coef, model.vf_coef, model.env.num_envs) == (0.01, 0.25, 16)
    model.env.close()


def test_missing_policies_are_in_the_order_to_train_them(project):
    wanted = zoo.wanted_policies([f"dqn-{BREAKOUT}"], missing=True)
    assert wanted[0] == f"dqn-{BREAKOUT}" and len(wanted) == len(recipes())
    assert wanted.index(PPO) < wanted.index(f"a2c-{BREAKOUT}") < wanted.index(f"ppo-{BREAKOUT}")
    assert wanted.index("dqn-SeaquestNoFrameskip-v4") < wanted.index("a2c-QbertNoFrameskip-v4")
    assert zoo.wanted_policies([A2C, PPO, A2C], missing=False) == [A2C, PPO]


def test_a_half_published_policy_is_missing(project):
    folder = zoo.policy_folder(PPO)
    folder.mkdir()
    (folder / "policy.safetensors").write_bytes(b"published until here")
    assert zoo.state_of(PPO) == "missing"
    assert PPO in zoo.wanted_policies([], missing=True)
    (folder / "policy.json").write_text("{}")
    assert PPO not in zoo.wanted_policies([], missing=True)
    with pytest.raises(QuarlError, match="format version None"):
        zoo.state_of(PPO)


def test_a_policy_that_is_half_published_over_an_older_one_is_missing(
    project, make_policy, monkeypatch
):
    def killed(path, target):
        if target.endswith("policy.json"):
            raise KeyboardInterrupt
        os.replace(path, target)

    folder, linear = zoo.policy_folder(PPO), ("linear", {"in_features": 2, "out_features": 2})
    save_policy(make_policy((2,), linear, seed=0), folder)
    assert zoo.is_published(PPO)
    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_policy(make_policy((2,), linear, seed=1), folder)
    assert zoo.state_of(PPO) == "missing"
    assert zoo.wanted_policies([PPO], missing=False) == [PPO]


def test_a_published_policy_is_left_alone_unless_asked_for_or_its_run_goes_on(project, caplog):
    caplog.set_level(logging.INFO, "quarl_nb")
    zoo.policy_folder(PPO).mkdir()
    (zoo.policy_folder(PPO) / "policy.json").write_text("{}")
    assert zoo.wanted_policies([PPO, A2C], missing=False) == [A2C]
    assert caplog.messages == [f"{PPO} is already trained; --retrain trains it anew"]
    assert zoo.wanted_policies([PPO, A2C], missing=False, retrain=True) == [PPO, A2C]
    train(project[PPO], zoo.run_folder(PPO), deadline=0.0)  # of --retrain, cut short
    assert zoo.wanted_policies([PPO], missing=False) == [PPO] and not zoo.is_settled(PPO)
    train(project[PPO], zoo.run_folder(PPO))
    assert zoo.wanted_policies([PPO], missing=False) == []
    run = zoo.run_folder(PPO)
    told = f"{PPO} is already trained; with '{run}' deleted, --retrain trains it anew"
    assert zoo.wanted_policies([PPO], missing=False, retrain=True) == [PPO]
    assert caplog.messages[-2:] == [told, told]


def test_nothing_to_train_says_why(project, monkeypatch, caplog):
    caplog.set_level("INFO")
    with pytest.raises(QuarlError, match="^nothing to train: name policies, or --missing$"):
        zoo.wanted_policies([], missing=False)
    monkeypatch.setattr(zoo, "is_published", lambda name: True)
    assert zoo.wanted_policies([], missing=True) == []
    assert caplog.messages == ["no policy is missing"]


def test_policies_are_trained_published_and_listed(project):
    assert zoo.state_of(PPO) == "missing"
    results = dict(zoo.train_policies([PPO, A2C]))
    assert results == {name: zoo.policy_folder(name) for name in (PPO, A2C)}
    assert load_policy(zoo.policy_folder(PPO)).spec.algo == "ppo"
    made = [load_policy(results[name]).spec.provenance["timesteps_run"] for name in (PPO, A2C)]
    assert made == [512, 320]  # in whole rollouts, more than planned and just as many
    assert zoo.state_of(PPO) == zoo.state_of(A2C) == "trained"
    save_policy(load_policy(zoo.run_folder(PPO) / "best"), zoo.policy_folder(PPO))  # as before
    assert zoo.state_of(PPO) == "trained"  # by a run that is done


def test_a_run_that_ended_and_was_not_published_is_told_and_published(
    project, make_policy, caplog
):
    caplog.set_level(logging.INFO, "quarl_nb")
    linear = ("linear", {"in_features": 4, "out_features": 2})
    save_policy(make_policy((4,), linear), zoo.policy_folder(PPO))
    train(project[PPO], zoo.run_folder(PPO))  # of --retrain, killed before it was published
    assert zoo.state_of(PPO) == "trained; another run of it is done, not published"
    told = f"{PPO} is already trained; what '{zoo.run_folder(PPO)}' ended with, --retrain publishes"
    assert zoo.wanted_policies([PPO], missing=False) == [] and caplog.messages == [told]
    assert dict(zoo.train_policies(zoo.wanted_policies([PPO], False, retrain=True)))
    assert zoo.state_of(PPO) == "trained"


def test_a_run_whose_checkpoint_does_not_tell_its_updates_is_published(project):
    train(project[A2C], zoo.run_folder(A2C))
    checkpoint = zoo.run_folder(A2C) / "checkpoint.pt"
    state = torch.load(checkpoint, weights_only=True)
    state["progress"]["updates"] = None  # as in older ones
    torch.save(state, checkpoint)
    assert zoo.publish(zoo.run_folder(A2C), zoo.policy_folder(A2C)) == zoo.policy_folder(A2C)


def test_a_run_out_of_time_publishes_nothing_and_goes_on(project, monkeypatch, clock):
    monkeypatch.setattr(zoo, "time", SimpleNamespace(time=lambda: -1.0))
    assert list(zoo.train_policies([PPO], deadline=35.0)) == []
    assert not zoo.policy_folder(PPO).exists()
    assert zoo.state_of(PPO) == "at step 256 of 320"  # a rollout of 8 x 32 steps
    assert list(zoo.train_policies([PPO])) == [(PPO, zoo.policy_folder(PPO))]
    assert list(zoo.train_policies([A2C], deadline=-2.0)) == []
    assert zoo.state_of(A2C) == "missing"


def test_a_run_that_learned_nothing_is_not_published(project):
    name = "dqn-CartPole-v1"  # whose warm-up takes 1000 steps
    for _ in range(2):
        assert [(n, str(error)) for n, error in zoo.train_policies([name])] == [
            (name, f"{name} is as it began: no update in 512 steps; its recipe needs more, or a "
                   "higher target return")
        ]  # fmt: skip
        assert not zoo.policy_folder(name).exists()


@pytest.mark.parametrize("bad", ["ppo-MountainCarContinuous-v0", "dqn-CartPole-v1"])
def test_a_diverging_run_leaves_no_policy_and_stops_no_other(project, monkeypatch, bad):
    project[bad].hyperparameters["learning_rate"] = 1e30
    project[bad] = replace(project[bad], timesteps=1200, eval_every=10**9)
    results = dict(zoo.train_policies([bad, A2C]))
    assert isinstance(results[bad], QuarlError) and results[A2C] == zoo.policy_folder(A2C)
    assert f"{bad} diverged at step" in str(results[bad]) and "\n" not in str(results[bad])
    assert not zoo.policy_folder(bad).exists() and not (zoo.run_folder(bad) / "best").exists()


def test_an_unexpected_error_is_one_line_and_stops_no_other(project, monkeypatch):
    def failing(recipe, run_dir, **options):
        if recipe.name == PPO:
            raise AssertionError("r.LengthSquared()\n> 0.0f \udcff")
        return train(recipe, run_dir, **options)

    monkeypatch.setattr(zoo, "train", failing)
    results = dict(zoo.train_policies([PPO, A2C]))
    assert results[A2C] == zoo.policy_folder(A2C)
    log = zoo.run_folder(PPO) / "traceback.txt"
    assert isinstance(results[PPO], QuarlError)
    line = f"{PPO} failed: AssertionError: r.LengthSquared() > 0.0f \udcff; see '{log}'"
    assert str(results[PPO]) == line
    text = log.read_text()
    assert text.startswith("Traceback") and "in failing" in text and r"\udcff" in text


def test_a_model_is_gone_when_the_next_one_is_made(project, monkeypatch):
    made: list[weakref.ref] = []

    def watched(*arguments):
        model = make_model(*arguments)
        assert [ref() for ref in made] == [None] * len(made)
        made.append(weakref.ref(model))
        return model

    monkeypatch.setattr(training, "make_model", watched)
    bad = "ppo-MountainCarContinuous-v0"
    project[bad].hyperparameters["learning_rate"] = 1e30
    failed = [isinstance(result, QuarlError) for _, result in zoo.train_policies([PPO, bad, A2C])]
    assert failed == [False, True, False] and len(made) == 3


def test_a_published_policy_says_that_its_run_was_cut_short(project, clock):
    run, folder = zoo.run_folder(A2C), zoo.policy_folder(A2C)
    at = train(project[A2C], run, deadline=25).timesteps
    assert 160 < at < 320
    zoo.publish(run, folder)
    assert zoo.state_of(A2C) == f"trained, stopped early at step {at} of 320"
    assert A2C not in zoo.wanted_policies([], missing=True)
    project[A2C] = replace(project[A2C], target_return=1.0)
    assert zoo.state_of(A2C) == "trained"
    mean = load_policy(folder).spec.provenance["selection"]["mean"]
    project[A2C] = replace(project[A2C], target_return=mean)
    assert zoo.state_of(A2C) == "trained"
    project[A2C] = replace(project[A2C], target_return=501.0)
    assert zoo.state_of(A2C) == f"trained, stopped early at step {at} of 320"
    save_policy(load_policy(run / "best"), folder)  # as it was done before
    assert zoo.state_of(A2C) == f"trained; again at step {at} of 320"
    (run / "checkpoint.pt").unlink()
    assert zoo.state_of(A2C) == "trained"


def test_a_run_that_diverges_later_keeps_its_last_good_checkpoint(tmp_path):
    recipe = replace(get_recipe("dqn-CartPole-v1"), **SHORT | {"timesteps": 1500})
    first = train(recipe, tmp_path)
    recipe.hyperparameters["learning_rate"] = 1e30
    with pytest.raises(QuarlError, match="dqn-CartPole-v1 diverged at step"):
        train(replace(recipe, timesteps=4000), tmp_path)
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert all(tensor.isfinite().all() for tensor in kept["parameters"]["policy"].values())
    assert first.timesteps <= kept["progress"]["timesteps"] < 4000
    load_policy(tmp_path / "best")


def test_a_recipe_that_got_longer_goes_on(tmp_path):
    recipe = replace(get_recipe(A2C), **SHORT)
    assert train(recipe, tmp_path).timesteps == 320
    assert train(recipe, tmp_path).timesteps == 320
    longer = train(replace(recipe, timesteps=640), tmp_path)
    assert longer.done and longer.timesteps == 640


def test_two_processes_never_train_the_same_policy(project):
    code = """
import sys
from quarl_nb.rl.zoo import held, run_folder
with held(run_folder(sys.argv[1]), sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, PPO], stdin=pipe, stdout=pipe) as other:
        assert other.stdout.readline() == b"held\n"
        ((name, error),) = zoo.train_policies([PPO])
        assert str(error) == f"{PPO} is being trained by another process"
        other.kill()
    with zoo.held(zoo.run_folder(PPO), PPO):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "ppo", "dqn"])
def test_a_new_game_starts_checkpoints_and_resumes(tmp_path, algo, clock):
    recipe = get_recipe(f"{algo}-MsPacmanNoFrameskip-v4")
    changed = recipe.hyperparameters
    if algo == "dqn":
        changed = changed | dict(buffer_size=200, learning_starts=100)
    if algo == "ppo":
        changed = changed | dict(n_steps=16)
    recipe = replace(
        recipe, hyperparameters=changed, timesteps=800, eval_every=320, eval_episodes=1
    )
    begun = train(recipe, tmp_path, deadline=18)
    # Whole rollouts of 18 steps of 16, 8 and 1 environments.
    assert not begun.done and begun.timesteps == dict(a2c=15 * 16, ppo=16 * 8, dqn=16)[algo]
    half = train(replace(recipe, timesteps=400), tmp_path)
    assert half.done and half.timesteps >= 400
    whole = train(recipe, tmp_path)
    assert whole.done and 800 <= whole.timesteps < 1000
    net = load_policy(tmp_path / "best")
    assert (net.spec.algo, net.spec.env_id) == (algo, recipe.env_id)
    assert sum(t.nbytes for t in net.state_dict().values()) < 2_000_000
    rows = (tmp_path / "progress.csv").read_text().splitlines()[1:]
    assert len(rows) >= 3
