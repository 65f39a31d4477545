"""The whole loop in one process."""

import re
import time
from dataclasses import replace
from time import process_time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sb3_contrib import TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise

from quarl_nb.actorq import ActorQ
from quarl_nb.actorq.actorq import ENGINES
from quarl_nb.actorq.algorithms import make_algorithm
from quarl_nb.actorq.result import Episode, Result
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.saving import Saving
from quarl_nb.errors import QuarlError
from quarl_nb.quant import parse_precision, quantize_module
from quarl_nb.rl.checkpoint import load_checkpoint, read_progress, save_checkpoint
from quarl_nb.rl.d4pg import D4PG
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import PolicyNet, load_policy


def run(model, steps=400, env=None, saving=None, **options):
    settings = dict(n_actors=2, pull_period=30) | options
    return ActorQ(model, env, "serial", saving, **settings).learn(steps, progress_bar=False)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_run_is_repeated_bit_for_bit(small_dqn, precision):
    models = [small_dqn(), small_dqn()]
    first, second = (run(model, precision=precision) for model in models)
    pairs = zip(*(model.policy.parameters() for model in models), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    strip = [[(e.steps, e.actor, e.episode_return) for e in r.episodes] for r in (first, second)]
    assert strip[0] == strip[1] and first.ages == second.ages
    assert first.updates == second.updates > 0


def test_steps_updates_pulls_and_bytes_add_up(small_dqn, counter):
    model = small_dqn(counter(), learning_starts=60)
    result = run(model, 420, counter, samples_per_insert=2.0, transitions_per_message=10)
    assert result.steps == model.num_timesteps == 420
    # 2 samples for each of 360 steps in batches of 8, within the limiter's tolerance.
    assert abs(result.updates * 8 - 720) <= 2 * 2 * 10 * 2 + 8
    assert result.pulls == 2 * 210 / 30
    assert result.pulled_bytes == result.pulls * result.payload_bytes
    assert max(result.ages) > min(result.ages) == 0
    assert result.stopped == "done" and set(result.learner_s) >= {"train", "sample", "publish"}
    assert 0 < sum(result.actor_s.values()) + sum(result.learner_s.values()) <= result.wall_s


def test_cpu_seconds_of_all_roles_are_those_of_the_process(small_dqn, tmp_path):
    started = process_time()
    result = run(small_dqn(), 480, saving=Saving(snapshots=tmp_path, snapshot_every=240))
    spent = process_time() - started
    assert 0.5 * spent < sum(result.cpu_s.values()) < spent
    costs = [[snapshot.cpu_s[role] for role in ("learner", "actors", "quantizer")]
             for snapshot in result.snapshots]  # fmt: skip
    assert len(costs) == 3 and (np.diff(costs, axis=0) > 0).all()
    assert result.snapshots[-1].cpu_s == result.cpu_s


def test_every_episode_is_reported_once(small_dqn, counter):
    result = run(small_dqn(counter()), 420, counter)
    assert all(e.episode_return == e.length == 7 for e in result.episodes)
    assert len(result.episodes) == 2 * (210 // 7)
    assert [e.actor for e in result.episodes].count(1) == 210 // 7


def test_the_progress_bar_tells_returns_both_speeds_policy_age_and_bytes(
    small_dqn, counter, monkeypatch, capsys
):
    monkeypatch.setattr("quarl_nb.actorq.run._is_watched", lambda: True)
    show, shown_at = Run._show, []

    def noted(self, steps):
        show(self, steps)
        shown_at.append((self.result.updates, self.wall_s))

    monkeypatch.setattr(Run, "_show", noted)
    actorq = ActorQ(small_dqn(counter()), counter, "serial", transitions_per_message=10)
    result = actorq.learn(420)
    last = capsys.readouterr().err.split("\r")[-1]
    assert "420/420" in last and "step/s" in last
    shown = re.search(
        r"return 7\.0, ([\d.]+) updates/s, policy age (\d+) updates, (\d+) MB pulled", last
    )
    assert shown is not None
    speed, age, megabytes = map(float, shown.groups())
    updates, wall_s = shown_at[-1]
    assert 0.99 <= speed / (updates / wall_s) < 3  # noted a little later
    assert 0 < updates <= result.updates
    assert (age, megabytes) == (result.ages[-1], round(result.pulled_bytes / 1e6))


def test_the_bar_of_a_resumed_run_begins_where_that_does_with_its_own_speed(
    small_dqn, tmp_path, monkeypatch, capsys
):
    saving = Saving(checkpoint=tmp_path / "run.pt")
    run(small_dqn(), 240, saving=saving)
    model = small_dqn()
    progress = load_checkpoint(saving.checkpoint, model)
    save_checkpoint(saving.checkpoint, model, replace(progress, updates=10**9))
    monkeypatch.setattr("quarl_nb.actorq.run._is_watched", lambda: True)
    ActorQ(small_dqn(), None, "serial", saving, n_actors=2, pull_period=30).learn(480)
    last = capsys.readouterr().err.split("\r")[-1]
    speed = float(re.search(r"([\d.]+) updates/s", last).group(1))
    assert "480/480" in last and speed < 10**6


def test_the_bar_counts_the_seconds_of_the_run_not_of_its_start(
    small_dqn, counter, monkeypatch, capsys
):
    monkeypatch.setattr("quarl_nb.actorq.run._is_watched", lambda: True)
    start_clock = Run.start_clock

    def an_hour_later(self):
        if hasattr(self, "_started"):  # processes are up
            self._bar.start_t -= 3600
            self._bar.last_print_t -= 3600
        start_clock(self)

    monkeypatch.setattr(Run, "start_clock", an_hour_later)
    ActorQ(small_dqn(counter()), counter, "serial", transitions_per_message=10).learn(420)
    last = capsys.readouterr().err.split("\r")[-1]
    assert re.search(r"420/420 \[00:\d\d<", last)


def test_an_episode_has_the_runs_steps_and_seconds_when_its_message_came(small_dqn, counter):
    seen = {}
    ActorQ(small_dqn(counter()), counter, "serial", n_actors=2, transitions_per_message=10).learn(
        60, progress_bar=False,
        on_message=lambda result: seen.update({e.steps: e.wall_s for e in result.episodes}),
    )  # fmt: skip
    # Each actor's episodes end after 7, 14, 21 and 28 steps, of which it sends 10 by turns.
    assert list(seen) == [10, 20, 30, 40, 50, 60] and sorted(seen.values()) == [*seen.values()]
    returns = Result()
    assert np.isnan(returns.recent_return())
    returns.episodes = [Episode(0, 0.0, 0, float(i), 1) for i in range(15)]
    assert returns.recent_return() == 9.5 and returns.recent_return(2) == 13.5


@pytest.mark.parametrize("algorithm", [DDPG, TD3, SAC, CrossQ])
def test_continuous_algorithms_learn_with_int8_actors(algorithm):
    model = algorithm("MlpPolicy", "Pendulum-v1", learning_starts=50, batch_size=16, device="cpu",
                      policy_kwargs=dict(net_arch=[16, 16]))  # fmt: skip
    before = [p.clone() for p in model.policy.parameters()]
    result = run(model, 300, precision="int8")
    assert result.updates > 100
    pairs = zip(before, model.policy.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    assert np.abs(model.replay_buffer.actions[:300]).max() <= 1
    with pytest.raises(QuarlError, match=r"ez_greedy is of discrete actions, not of Box\(-2.0"):
        run(model, 300, ez_greedy=True)


def test_what_the_algorithm_would_explore_by_is_warned_of(small_dqn, caplog):
    def warned(kind, **options):
        caplog.clear()
        ActorQ(kind("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu", **options),
               engine="serial")  # fmt: skip
        return caplog.messages

    told = "ActorQ's actors bring their own noise (noise_max), not "
    noise = NormalActionNoise(np.zeros(1), np.ones(1))
    assert warned(TD3) == warned(D4PG) == []
    assert warned(TD3, action_noise=noise) == [told + "action_noise"]
    assert warned(SAC) == warned(TQC) == warned(CrossQ) == [told + "samples of the policy"]
    assert warned(SAC, use_sde=True) == [told + "samples of the policy or use_sde"]
    ActorQ(small_dqn(), engine="serial")
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "hook", ["collect_rollouts", "predict", "_sample_action", "_store_transition"]
)
def test_a_hook_that_is_not_called_is_told(caplog, hook):
    class Scaled(DQN): ...

    setattr(Scaled, hook, lambda self, *arguments: getattr(super(Scaled, self), hook)(*arguments))
    model = Scaled("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu")
    ActorQ(model, engine="serial")
    told = f"ActorQ feeds and samples by itself: it does not call Scaled.{hook}"
    assert caplog.messages == [told]


def test_a_users_own_quantizer_makes_what_actors_run(small_dqn, counter):
    seen = []

    def always_the_last_action(net):
        seen.append(net)
        tensors = {name: torch.zeros_like(t) for name, t in net.state_dict().items()}
        tensors["layers.3.bias"][-1] = 1.0
        return PolicyNet(net.spec, tensors)

    model = small_dqn(counter(), exploration_initial_eps=0.0, exploration_final_eps=0.0)
    actorq = ActorQ(model, counter, "serial", quantizer=always_the_last_action, n_actors=1,
                    precision="fp32", pull_period=30)  # fmt: skip
    result = actorq.learn(200, progress_bar=False)
    assert len(seen) == result.published > 2
    acted = model.replay_buffer.actions[30:200]  # the first message is random
    assert len(acted) and (acted == 2).all()
    assert model.policy.state_dict()["q_net.q_net.0.weight"].abs().min() > 0  # the learner's own


def test_a_quantizer_that_works_in_place_leaves_the_learners_weights(small_dqn):
    def zeroed(net):
        for parameter in net.parameters():
            parameter.zero_()
        return net

    model = small_dqn(learning_starts=10**6)
    weight = model.q_net.q_net[0].weight
    before = weight.clone()
    run(model, 60, quantizer=zeroed)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("precision, communication", [("fp32", "int8"), ("int8", "affine4")])
def test_weights_can_travel_in_another_precision(small_dqn, precision, communication):
    result = run(small_dqn(), precision=precision, communication=communication)
    assert result.updates > 0 and result.pulled_bytes == result.pulls * result.payload_bytes


def with_tanh(net):
    layers = tuple(Layer("tanh") if layer.kind == "relu" else layer for layer in net.spec.layers)
    return PolicyNet(replace(net.spec, layers=layers), net.state_dict())


@pytest.mark.parametrize("quantizer, refused", [
    (with_tanh, "the quantizer returned other layers than the policy's: weights sent in fp32 are"),
    (lambda net: quantize_module(net, parse_precision("fp16")),
     "layer .* rounds its activations in simulation"),
])  # fmt: skip
def test_what_weights_alone_do_not_tell_cannot_travel_in_another_precision(
    small_dqn, quantizer, refused
):
    with pytest.raises(QuarlError, match=f"^{refused}"):
        run(small_dqn(), quantizer=quantizer, precision="int8", communication="fp32")


def test_a_quantizer_may_return_other_layers_where_payloads_travel(small_dqn):
    assert run(small_dqn(), quantizer=with_tanh).updates > 0


def test_a_policy_is_published_after_as_many_updates_as_asked(small_dqn):
    def versions(**options):
        model, seen = small_dqn(), []

        def note(net):
            seen.append(model._n_updates)
            return PolicyNet(net.spec, net.state_dict())

        ActorQ(model, engine="serial", quantizer=note, pull_period=10, **options).learn(400)
        return seen

    # In messages of ten steps, ten updates each once the tolerance is used up.
    at_once = versions(publish_period=10, n_actors=1, samples_per_insert=8)
    assert set(np.diff(at_once)[3:]) == {10}
    often, seldom = versions(), versions(publish_period=50)
    assert 2 < len(seldom) < len(often) and np.diff(seldom).min() >= 50 > np.diff(often).min() > 0


def test_several_environments_an_actor(small_dqn, counter):
    model = small_dqn(counter())
    result = run(model, 420, counter, envs_per_actor=5, pull_period=50, n_actors=1)
    assert result.steps == 450 and len(result.episodes) == 5 * (90 // 7)
    assert result.pulls == 450 / 50


def test_snapshots_are_the_learners_policy_in_full_precision(small_dqn, tmp_path):
    model = small_dqn()
    saving = Saving(snapshots=tmp_path, snapshot_every=240)
    result = run(model, 480, saving=saving)
    assert [s.steps for s in result.snapshots] == [0, 240, 480]
    last = load_policy(result.snapshots[-1].folder)
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert (last.act(obs)[0] == model.predict(obs, deterministic=True)[0]).all()


def test_a_messages_length_does_not_add_up_in_when_snapshots_are_made(small_dqn, tmp_path):
    saving = Saving(snapshots=tmp_path, snapshot_every=100)
    result = run(small_dqn(), 480, saving=saving, transitions_per_message=40, pull_period=40)
    assert [s.steps for s in result.snapshots] == [0, 120, 200, 320, 400, 480]


def test_snapshots_without_a_period_are_the_first_and_the_last(small_dqn, tmp_path):
    result = run(small_dqn(), 480, saving=Saving(snapshots=tmp_path))
    assert [s.steps for s in result.snapshots] == [0, 480]
    for wrong in (dict(snapshot_every=-5), dict(checkpoint_every_s="5")):
        with pytest.raises(QuarlError, match="must be at least 0, not (-5|'5')"):
            Saving(**wrong)
    with pytest.raises(QuarlError, match="snapshot_every must be a whole number, not 0.5"):
        Saving(snapshot_every=0.5)


def test_a_resumed_run_removes_the_snapshots_of_the_branch_that_was_given_up(small_dqn, tmp_path):
    saving = Saving(tmp_path / "run.pt", snapshots=tmp_path / "snapshots", snapshot_every=60)
    run(small_dqn(), 120, saving=saving)
    of_120 = saving.checkpoint.read_bytes()
    run(small_dqn(), 270, saving=saving)
    theirs = [saving.snapshots / name for name in ("notes", "999", "000000999")]
    for folder in theirs:
        folder.mkdir()
        (folder / "notes.txt").touch()
    saving.checkpoint.write_bytes(of_120)  # as if killed before the next

    def left():
        return {folder for folder in saving.snapshots.iterdir() if folder not in theirs}

    assert len(left()) > 4
    actorq = ActorQ(small_dqn(), engine="serial", saving=saving, n_actors=2, pull_period=30)
    actorq.learn(121, progress_bar=False)
    assert {int(folder.name) for folder in left()} == {0, 60, 120, 150}
    assert all(folder.exists() for folder in theirs)


def test_a_resumed_run_has_its_first_snapshot(small_dqn, tmp_path):
    saving = Saving(tmp_path / "run.pt", snapshots=tmp_path / "snapshots")
    run(small_dqn(), 240, saving=saving)
    result = run(small_dqn(), 480, saving=saving)
    assert [snapshot.steps for snapshot in result.snapshots] == [480]


def test_a_resumed_run_goes_on_with_its_periods_snapshots(small_dqn, tmp_path):
    saving = Saving(tmp_path / "run.pt", snapshots=tmp_path / "snapshots", snapshot_every=60)
    run(small_dqn(), 120, saving=saving)
    result = run(small_dqn(), 300, saving=saving)
    assert [snapshot.steps for snapshot in result.snapshots] == [120, 180, 240, 300]


def test_a_finished_run_leaves_its_snapshots_alone(small_dqn, tmp_path):
    saving = Saving(tmp_path / "run.pt", snapshots=tmp_path / "snapshots")

    def written():
        run(small_dqn(), 240, saving=saving)
        return {path: path.stat().st_mtime_ns for path in saving.snapshots.rglob("*")}

    assert written() == written() and len(written()) == 2 * 3  # folders of two files


def test_a_policy_beside_what_is_not_ours_is_no_lost_snapshot(tmp_path):
    saving = Saving(snapshots=tmp_path)
    for steps, names in enumerate([
        ["policy.json", "policy.safetensors"],
        ["policy.json", "notes.txt"],
        [".policy.safetensors.part"],  # of a writer that was killed
    ]):  # fmt: skip
        saving.snapshot(100 + steps).mkdir()
        for name in names:
            (saving.snapshot(100 + steps) / name).touch()
    saving.snapshot(200).touch()  # no folder
    saving.forget_lost(99)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000101", "000000200"]


@pytest.fixture
def clock(monkeypatch):
    """The clock of runs: a list of its only reading."""
    reading = [0.0]
    fake = SimpleNamespace(perf_counter=lambda: reading[0])
    monkeypatch.setattr("quarl_nb.actorq.run.time", fake)
    return reading


def test_a_runs_clock_starts_when_its_actors_are_there(small_dqn, counter, clock):
    class Slow(counter):
        def __init__(self):
            super().__init__()
            clock[0] += 100

    assert run(small_dqn(counter()), 60, Slow).wall_s == 0 < clock[0]


def test_a_checkpoint_is_written_once_in_a_period_and_tells_whether_the_run_is_done(
    small_dqn, tmp_path, clock, monkeypatch
):
    saved = []

    def noted(path, model, progress):
        saved.append((progress.timesteps, progress.wall_s, progress.done))

    def later(result):  # a second for each step
        clock[0] = float(result.steps)

    monkeypatch.setattr("quarl_nb.actorq.run.save_checkpoint", noted)
    saving = Saving(checkpoint=tmp_path / "run.pt", checkpoint_every_s=100)
    ActorQ(small_dqn(), None, "serial", saving, n_actors=2, pull_period=30).learn(
        400, progress_bar=False, on_message=later
    )
    assert [(steps, done) for steps, _, done in saved] == [
        (120, False), (240, False), (360, False), (420, True)]  # fmt: skip


def test_a_resumed_run_counts_the_seconds_of_its_parts_together(small_dqn, tmp_path, clock):
    saving = Saving(tmp_path / "run.pt", snapshots=tmp_path / "snapshots")
    run(small_dqn(), 120, saving=saving)
    model = small_dqn()
    progress = load_checkpoint(saving.checkpoint, model)
    save_checkpoint(saving.checkpoint, model, replace(progress, wall_s=1000.0))

    def later(result):
        clock[0] = float(result.steps - 120)

    actorq = ActorQ(small_dqn(), None, "serial", saving, n_actors=2, pull_period=30)
    result = actorq.learn(240, progress_bar=False, on_message=later)
    assert result.wall_s == result.snapshots[-1].wall_s == 1120
    assert read_progress(saving.checkpoint).wall_s == 1120


def test_an_interrupted_run_has_its_last_snapshot_and_checkpoint(small_dqn, tmp_path):
    def interrupt(result):
        if result.steps == 60:
            raise KeyboardInterrupt

    saving = Saving(tmp_path / "run.pt", snapshots=tmp_path / "snapshots")
    actorq = ActorQ(small_dqn(), None, "serial", saving, n_actors=1, pull_period=30)
    result = actorq.learn(400, progress_bar=False, on_message=interrupt)
    assert result.stopped == "interrupted"
    assert [snapshot.steps for snapshot in result.snapshots] == [0, 60]
    progress = read_progress(saving.checkpoint)
    assert (progress.timesteps, progress.done) == (60, False)


def test_a_run_that_a_users_function_ended_saves_nothing(small_dqn, tmp_path):
    saving = Saving(tmp_path / "run.pt", snapshots=tmp_path / "snapshots")
    actorq = ActorQ(small_dqn(), None, "serial", saving, n_actors=1)
    with pytest.raises(ZeroDivisionError):
        actorq.learn(200, progress_bar=False, on_message=lambda result: 1 / 0)
    assert actorq.result.stopped == "failed" and not saving.checkpoint.exists()
    assert [snapshot.steps for snapshot in actorq.result.snapshots] == [0]


def test_a_last_snapshot_that_cannot_be_written_costs_nothing_else(small_dqn, tmp_path):
    folder, model = tmp_path / "snapshots", small_dqn()
    saving = Saving(checkpoint=tmp_path / "run.pt", snapshots=folder)

    def block(result):
        if result.steps >= 240 and folder.is_dir():
            folder.rename(tmp_path / "away")
            folder.write_text("in the way")

    actorq = ActorQ(model, engine="serial", saving=saving, n_actors=1)
    with pytest.raises(QuarlError, match="cannot write"):
        actorq.learn(240, progress_bar=False, on_message=block)
    assert read_progress(saving.checkpoint).timesteps >= 240
    assert "sample" not in vars(model.replay_buffer) and actorq.result.stopped == "done"
    assert actorq.result.learner_s["train"] > 0


def test_a_run_goes_on_from_its_checkpoint(small_dqn, tmp_path):
    saving = Saving(checkpoint=tmp_path / "run.pt")
    first = small_dqn()
    run(first, 240, saving=saving)
    second = small_dqn()
    result = run(second, 480, saving=saving)
    assert result.steps == second.num_timesteps == 480
    assert second._n_updates == result.updates > first._n_updates
    stored = first.replay_buffer.observations[:240]
    assert np.array_equal(second.replay_buffer.observations[:240], stored)
    again = run(small_dqn(), 480, saving=saving)
    assert again.steps == 480 and not again.episodes


def test_two_runs_do_not_share_a_checkpoint(small_dqn, tmp_path):
    saving, refused = Saving(checkpoint=tmp_path / "run.pt"), []

    def begin_another(result):
        with pytest.raises(QuarlError, match="run.pt' is used by another run$"):
            run(small_dqn(), 480, saving=saving)
        refused.append(result.steps)

    first = ActorQ(small_dqn(), engine="serial", saving=saving, n_actors=1)
    first.learn(240, progress_bar=False, on_message=begin_another)
    assert refused and [*tmp_path.iterdir()] == [saving.checkpoint]
    assert run(small_dqn(), 480, saving=saving).steps >= 480


def test_counts_and_seeds_may_be_numpys(small_dqn, tmp_path):
    saving = Saving(checkpoint=tmp_path / "run.pt")
    run(small_dqn(), np.int64(240), saving=saving, seed=np.int64(1))
    assert read_progress(saving.checkpoint).done
    assert run(small_dqn(), np.int64(480), saving=saving, seed=np.int64(1)).steps == 480
    assert make_algorithm("dqn", "CartPole-v1", 8, seed=np.int64(3)).seed == 3


def test_a_checkpoint_has_the_seconds_of_the_run_without_its_shutdown(
    small_dqn, tmp_path, monkeypatch
):
    def slow_to_end(run, tasks):
        ENGINES["serial"](run, tasks)
        time.sleep(0.3)

    monkeypatch.setattr("quarl_nb.actorq.actorq.ENGINES", {"serial": slow_to_end})
    saving = Saving(checkpoint=tmp_path / "run.pt", snapshots=tmp_path / "snapshots")
    result = run(small_dqn(), 240, saving=saving)
    assert read_progress(saving.checkpoint).wall_s == result.wall_s > 0
    first, last = (snapshot.wall_s for snapshot in result.snapshots)
    assert 0 < first < last == result.wall_s


def test_a_resumed_run_that_cannot_start_leaves_the_algorithm_as_it_was(
    small_dqn, tmp_path, monkeypatch
):
    monkeypatch.setattr("quarl_nb.rl.replay_state.MAX_SAVED_BUFFER_BYTES", 0)
    saving = Saving(checkpoint=tmp_path / "run.pt")
    run(small_dqn(), 240, saving=saving)
    model = small_dqn()
    with monkeypatch.context() as patch:
        patch.setattr("quarl_nb.actorq.actorq.Learner", None)  # to be called: a TypeError
        with pytest.raises(TypeError):
            run(model, 480, saving=saving)
    assert model.learning_starts == 20


def test_exploration_may_end_before_it_begins(small_dqn):
    model = small_dqn(exploration_fraction=0.0, exploration_final_eps=0.07)
    assert run(model, 60).stopped == "done" and model.exploration_rate == 0.07


def test_a_finished_run_starts_nothing_and_makes_the_updates_it_still_owes(
    small_dqn, tmp_path, monkeypatch
):
    saving = Saving(checkpoint=tmp_path / "run.pt")
    updates = run(small_dqn(), 420, saving=saving).updates
    monkeypatch.setattr("quarl_nb.actorq.actorq.ENGINES", dict.fromkeys(ENGINES))

    def again():
        result = run(small_dqn(), 420, saving=saving)
        assert (result.steps, result.stopped, result.published) == (420, "done", 0)
        assert result.went_on == (result.updates > result.resumed_updates)
        return result.updates, result.went_on

    assert again() == (updates, False)
    model = small_dqn()
    progress = load_checkpoint(saving.checkpoint, model)
    # As one that was killed between its last message and its last ten updates, of 8 samples each.
    save_checkpoint(saving.checkpoint, model, replace(progress, ahead=-80))
    assert (again(), again()) == ((updates + 10, True), (updates + 10, False))


def test_ctrl_c_at_the_brink_of_no_grad_leaves_gradients_on(small_dqn):
    def interrupted(result):
        torch.set_grad_enabled(False)  # `no_grad` is entered by this, and its exit not reached
        raise KeyboardInterrupt

    actorq = ActorQ(small_dqn(), engine="serial", n_actors=1)
    assert actorq.learn(200, on_message=interrupted).stopped == "interrupted"
    assert torch.is_grad_enabled() and actorq.learn(200).updates > 0


def test_a_run_ends_within_a_message_and_no_schedule_goes_below_zero(small_dqn):
    rates = []

    def schedule(remaining):
        rates.append(remaining)
        return 1e-3 * remaining**0.5  # of less than zero a complex number

    result = run(small_dqn(learning_rate=schedule), 60, n_actors=4, transitions_per_message=25)
    assert result.steps == 75 and result.updates > 20 and min(rates) == 0


def test_a_second_run_counts_its_own_updates(small_dqn):
    actorq = ActorQ(small_dqn(), engine="serial", n_actors=1)
    first, second = (actorq.learn(200, progress_bar=False) for _ in range(2))
    assert first.updates == second.updates > 20
    assert actorq.algorithm._n_updates == 2 * first.updates


def test_a_second_run_makes_other_transitions_and_the_first_as_ever(small_dqn, counter, tmp_path):
    def actions(actorq, steps=40):
        actorq.learn(steps, progress_bar=False)
        buffer = actorq.algorithm.replay_buffer
        return buffer.actions[buffer.pos - 40 : buffer.pos].ravel().tolist()

    def made(seed=3, **options):
        return ActorQ(small_dqn(counter(), learning_starts=10**6), counter, "serial",
                      n_actors=1, transitions_per_message=40, seed=seed, **options)  # fmt: skip

    twice = made()
    first, second, third = (actions(twice) for _ in range(3))
    assert len({tuple(run) for run in (first, second, third, actions(made(4)))}) == 4
    assert actions(made()) == first
    again = made()
    assert [actions(again) for _ in range(3)] == [first, second, third]  # and they repeat
    # Resumed by the same ActorQ or by another: the same run.
    saving = Saving(checkpoint=tmp_path / "run.pt")
    kept = made(saving=saving)
    actions(kept)
    whole = saving.checkpoint.read_bytes()
    resumed = actions(kept, 80)
    saving.checkpoint.write_bytes(whole)
    assert actions(made(saving=saving), 80) == resumed != first


def test_a_run_that_made_no_step_is_none_of_those_that_seeds_count(small_dqn, counter):
    out_of_order = [True]

    class Broken(counter):
        def reset(self, seed=None, options=None):
            if out_of_order:
                raise OSError("out of order")
            return super().reset(seed=seed)

    def made(env):
        return ActorQ(small_dqn(counter(), learning_starts=10**6), env, "serial", n_actors=1)

    mended, other = made(Broken), made(counter)
    with pytest.raises(QuarlError, match="out of order"):
        mended.learn(40, progress_bar=False)
    out_of_order.clear()
    for actorq in (mended, other):
        actorq.learn(40, progress_bar=False)
    actions = [actorq.algorithm.replay_buffer.actions[:40].tolist() for actorq in (mended, other)]
    assert actions[0] == actions[1]


def test_a_resumed_runs_learner_draws_other_numbers_than_at_first(
    small_dqn, tmp_path, monkeypatch
):
    seeds = []
    models = [small_dqn(seed=3), small_dqn(seed=3)]
    monkeypatch.setattr(DQN, "set_random_seed", lambda self, seed: seeds.append(seed))
    for model, steps in zip(models, (120, 240), strict=True):
        run(model, steps, saving=Saving(checkpoint=tmp_path / "run.pt"))
    assert seeds == [3, 3 + 120]


def test_a_resumed_run_counts_no_updates_of_before_it_began(small_dqn, tmp_path):
    saving, first = Saving(checkpoint=tmp_path / "run.pt"), small_dqn()
    first.learn(100)
    before = first._n_updates
    updates = run(first, 240, saving=saving).updates
    second = small_dqn()
    result = run(second, 480, saving=saving)
    assert before > 0 and second._n_updates - before == result.updates > updates


def test_a_checkpoint_of_before_updates_were_counted_is_gone_on_from(small_dqn, tmp_path):
    saving, first = Saving(checkpoint=tmp_path / "run.pt"), small_dqn()
    run(first, 240, saving=saving)
    state = torch.load(saving.checkpoint, weights_only=True)
    state["progress"].pop("updates", None)
    torch.save(state, saving.checkpoint)
    second = small_dqn()
    result = run(second, 480, saving=saving)
    assert result.updates == second._n_updates > first._n_updates


def test_a_resumed_runs_actors_do_not_repeat_themselves(small_dqn, counter, tmp_path):
    seeds = []

    class Seeded(counter):
        def reset(self, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    for steps in (100, 200):
        run(small_dqn(counter()), steps, Seeded, saving=Saving(checkpoint=tmp_path / "run.pt"))
    seeds = [seed for seed in seeds if seed is not None]
    assert len(seeds) == len(set(seeds)) > 1


def test_a_run_resumed_without_its_buffer_fills_it_and_goes_on(small_dqn, tmp_path, monkeypatch):
    monkeypatch.setattr("quarl_nb.rl.replay_state.MAX_SAVED_BUFFER_BYTES", 0)
    saving, options = Saving(checkpoint=tmp_path / "run.pt"), dict(n_actors=1)
    before = run(small_dqn(), 2000, saving=saving, **options).updates
    model = small_dqn()  # which begins to learn after 20 steps
    seen = []
    ActorQ(model, engine="serial", saving=saving, **options).learn(
        2300, progress_bar=False, on_message=lambda r: seen.append((r.steps, r.updates))
    )
    assert seen[0][1] == before
    gained = np.diff([updates for _, updates in seen])
    # 100 a message; at first as many more as two messages, what the rate limiter leaves room for.
    assert before < seen[-1][1] and gained.max() <= 300
    assert model.learning_starts == 20


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_observations_have_the_spaces_type_whatever_the_environment_returns(
    small_dqn, counter, dtype
):
    class Loose(counter):
        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, dtype), {}

        def _obs(self):
            return np.array([self.t / 2, 0.25])

    model = small_dqn(counter())
    run(model, 30, Loose, n_actors=1)
    stored = model.replay_buffer.observations[:4, 0]
    assert stored.tolist() == [[0, 0], [0.5, 0.25], [1, 0.25], [1.5, 0.25]]


def test_outputs_too_large_for_the_precision_are_told(small_dqn, counter):
    class Far(counter):
        def _obs(self):
            return np.full(2, 1e5, np.float32)

    with pytest.raises(QuarlError, match="the policy's outputs in fp16 are NaN or infinite"):
        run(small_dqn(counter()), 200, Far, precision="fp16", runtime="torch", n_actors=1)


def test_an_environment_that_raises_ends_the_run_with_its_name(small_dqn, counter):
    class Broken(counter):
        def step(self, action):
            if self.episode == 4:
                raise ZeroDivisionError("no such wind")
            return super().step(action)

    actorq = ActorQ(small_dqn(counter()), Broken, "serial", n_actors=1)
    with pytest.raises(QuarlError, match="environment raised ZeroDivisionError: no such wind"):
        actorq.learn(400, progress_bar=False)


def test_environments_that_were_made_are_closed_where_one_more_cannot_be(small_dqn, counter):
    made = []

    class Few(counter):
        def __init__(self):
            if len(made) == 3:
                raise MemoryError("no room for a fourth")
            super().__init__()
            self.is_open = True
            made.append(self)

        def close(self):
            self.is_open = False

    model = small_dqn(counter())
    with pytest.raises(QuarlError, match="environment raised MemoryError: no room for a fourth"):
        run(model, 100, Few, n_actors=2, envs_per_actor=2)
    assert [env.is_open for env in made] == [False] * 3


def test_a_broken_environment_leaves_what_was_done(small_dqn, counter):
    class Misshapen(counter):
        def step(self, action):
            obs, *rest = super().step(action)
            return (obs[:1] if self.episode == 40 else obs, *rest)

    actorq = ActorQ(small_dqn(counter()), Misshapen, "serial", n_actors=1)
    with pytest.raises(QuarlError, match=r"observation of shape \[1\], the policy takes \[2\]"):
        actorq.learn(400, progress_bar=False)
    assert actorq.result.steps == 250 and "shape [1]" in actorq.result.stopped


@pytest.mark.parametrize("options, message", [
    (dict(precision="int9"), "unknown precision 'int9'"),
    (dict(precision=8), "unknown precision 8"),
    (dict(communication="int9"), "unknown precision 'int9'"),
    (dict(n_actors=0), "n_actors must be at least 1, not 0"),
    (dict(pull_period=-1), "pull_period must be at least 1, not -1"),
    (dict(runtime="tflite"), "unknown runtime 'tflite'"),
    (dict(n_actor=3), "unknown setting of ActorQ 'n_actor'; did you mean 'n_actors'"),
    (dict(env="CartPoel-v1"), "did you mean 'CartPole-v"),
    (dict(engine="proces"), "did you mean 'process'"),
    (dict(n_actors=1.5), "n_actors must be a whole number, not 1.5"),
    (dict(n_actors="2"), "n_actors must be a whole number, not '2'"),
    (dict(reopen=1), "reopen is 1; True or False"),
    (dict(ez_greedy="yes"), "ez_greedy is 'yes'; True or False"),
    (dict(publish_period=0.5), "publish_period must be a whole number, not 0.5"),
    (dict(samples_per_insert=float("nan")), "samples_per_insert is nan; a finite number"),
    (dict(samples_per_insert=float("inf")), "samples_per_insert is inf; a finite number"),
    (dict(samples_per_insert=0), "samples_per_insert is 0; more than 0"),
    (dict(noise_max=float("nan")), "noise_max is nan; a finite number"),
    (dict(noise_max=-1), "noise_max is -1; at least 0"),
    (dict(seed=-1), "seed must be from 0 to 2147483647, not -1"),
    (dict(seed=0.5), "seed must be a whole number, not 0.5"),
    (dict(seed=2**31), "seed must be from 0 to 2147483647, not 2147483648"),
    (dict(settings=1), "unknown setting of ActorQ 'settings'"),
    (dict(saving="run.pt"), r"saving is 'run.pt'; Saving\(checkpoint=...\) or None"),
    (dict(saving=Saving(checkpoint=5)), r"Saving\(checkpoint=...\) is 5; a path or None"),
])  # fmt: skip
def test_wrong_settings_are_one_clear_line(small_dqn, options, message):
    with pytest.raises(QuarlError, match=message):
        ActorQ(small_dqn(), **options)


def test_a_run_too_short_to_learn_anything_is_told(small_dqn, caplog, tmp_path):
    saving = Saving(checkpoint=tmp_path / "run.pt")
    assert run(small_dqn(learning_starts=500), 120, saving=saving).updates == 0
    assert "learning starts only after 500 steps, of 120" in caplog.text
    caplog.clear()
    assert run(small_dqn(learning_starts=500), 120, saving=saving).updates == 0  # it is over
    assert run(small_dqn(), 100).updates > 0
    assert run(small_dqn(learning_starts=100), 100).updates > 0  # with the last of its steps
    assert "learning starts" not in caplog.text


@pytest.mark.parametrize("batch_size", [0, 2.5])
def test_a_batch_of_nothing_is_refused(small_dqn, batch_size):
    with pytest.raises(QuarlError, match="^batch_size must be "):
        ActorQ(small_dqn(batch_size=batch_size))


def test_what_is_no_algorithm_quantizer_or_number_is_told_first(small_dqn):
    with pytest.raises(QuarlError, match=r"an algorithm that is made, DQN\(...\), not the class"):
        ActorQ(DQN)
    with pytest.raises(QuarlError, match="quantizer must be a function of a policy, not 'int8'"):
        ActorQ(small_dqn(), quantizer="int8")
    with pytest.raises(QuarlError, match="n_actors must be a whole number, not True"):
        ActorQ(small_dqn(), n_actors=True)
    with pytest.raises(QuarlError, match="ActorQ needs an off-policy algorithm, not object"):
        ActorQ(object(), engine="serial")


def test_paths_may_be_strings(small_dqn, tmp_path):
    saving = Saving(checkpoint=str(tmp_path / "run.pt"), snapshots=str(tmp_path), snapshot_every=90)
    result = run(small_dqn(), 120, saving=saving)
    assert (tmp_path / "run.pt").exists() and len(result.snapshots) >= 2


def test_the_seed_is_the_algorithms_unless_given(small_dqn, counter):
    def random_actions(own, **options):
        model = small_dqn(counter(), seed=own)
        run(model, 20, counter, n_actors=1, transitions_per_message=20, **options)
        return model.replay_buffer.actions[:20].ravel().tolist()

    assert random_actions(1) == random_actions(1) == random_actions(2, seed=1)
    assert random_actions(1) != random_actions(2)
    assert random_actions(None) == random_actions(0) == random_actions(1, seed=0)


@pytest.mark.parametrize("quantizer, message", [
    (lambda net: 1 / 0, "the quantizer raised ZeroDivisionError: division by zero"),
    (lambda net: None, "the quantizer returned NoneType, not a PolicyNet"),
])  # fmt: skip
def test_a_quantizer_that_fails_is_one_clear_line(small_dqn, quantizer, message):
    actorq = ActorQ(small_dqn(), engine="serial", quantizer=quantizer, n_actors=1)
    with pytest.raises(QuarlError, match=message):
        actorq.learn(100, progress_bar=False)


def test_nan_weights_are_never_published(small_dqn):
    model = small_dqn()
    torch.nn.init.constant_(model.q_net.q_net[0].weight, torch.nan)
    with pytest.raises(QuarlError, match="NaN"):
        run(model)


def test_an_environment_that_changes_its_action_leaves_the_stored_one(counter):
    class InPlace(counter):
        def step(self, action):
            action *= 0.0  # as a conversion of units might
            return super().step(action)

    env = InPlace(discrete=False)
    model = TD3("MlpPolicy", env, learning_starts=10, batch_size=8, buffer_size=500, seed=0,
                policy_kwargs=dict(net_arch=[8]))  # fmt: skip
    run(model, 60, lambda: InPlace(discrete=False), n_actors=1)
    assert len(np.unique(model.replay_buffer.actions[:60])) > 60  # not one and the same


@pytest.mark.parametrize("parts", [1, 10])
def test_a_run_in_parts_makes_as_many_updates_as_one(small_dqn, tmp_path, parts):
    saving = Saving(checkpoint=tmp_path / "run.pt")
    for part in range(1, parts + 1):
        result = run(small_dqn(), 1000 * part // parts, saving=saving, samples_per_insert=2.0)
    # 2 samples for each step in batches of 8, and the tolerance: two messages of two actors.
    asked = (result.steps - 20) * 2 / 8
    assert asked <= result.updates <= asked + 2 * 2 * 50 * 2 / 8


def test_weights_that_diverge_after_the_last_publication_end_the_run(small_dqn, tmp_path):
    model = small_dqn()
    train = model.train

    def diverging(gradient_steps, batch_size):
        train(gradient_steps, batch_size)
        if model.num_timesteps > 300:
            with torch.no_grad():
                next(model.policy.parameters()).fill_(torch.nan)

    model.train = diverging
    actorq = ActorQ(model, engine="serial", n_actors=1, pull_period=1000)
    with pytest.raises(QuarlError, match="the learner's weights are NaN"):
        actorq.learn(400, progress_bar=False)
    assert actorq.result.stopped == "the learner's weights are NaN or infinite"
    assert actorq.result.steps == 400
