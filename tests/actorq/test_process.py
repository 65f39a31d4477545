"""Actors in processes of their own: nothing hangs, nothing is left, whoever is killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest
import torch

from quarl_nb.actorq import ActorQ, Saving
from quarl_nb.actorq.children import Child
from quarl_nb.errors import QuarlError
from quarl_nb.processes import CONTEXT
from quarl_nb.processor import usable_cores


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    yield
    assert not multiprocessing.active_children()


def child(name):
    """The process id of a child of this process, by its name in ActorQ."""
    return next(c.pid for c in multiprocessing.active_children() if c.name == name)


def test_int8_actors_train_a_dqn(small_dqn):
    model = small_dqn()
    actorq, seen = ActorQ(model, n_actors=2, pull_period=50, samples_per_insert=8), []
    result = actorq.learn(
        1000, progress_bar=False,
        on_message=lambda so_far: seen.append(so_far.learner_s | so_far.cpu_s),
    )  # fmt: skip
    assert 1000 <= result.steps <= 1000 + 2 * 50 and result.stopped == "done"
    # 8 samples an insert in batches of 8; the limiter tolerates 2 messages of each actor, and
    # takes both actors' messages at once.
    assert abs(result.updates - (1000 - 20)) <= 3 * 2 * 50
    assert result.restarts == 0 and result.published > 2 and result.pulls >= 2 * 8
    assert {e.actor for e in result.episodes} == {0, 1}
    assert all(age >= 0 for age in result.ages)
    # What a watcher sees is whole at any moment, the learner's own time included.
    assert 0 < seen[0]["learner"] < seen[-1]["learner"] < result.cpu_s["learner"]
    assert 0 < seen[0]["insert"] and 0 < seen[-1]["train"] <= result.learner_s["train"]


def test_the_first_pull_is_counted_and_timed_as_any_other(small_dqn):
    result = ActorQ(small_dqn(), n_actors=1, pull_period=120, transitions_per_message=60,
                    reopen=True).learn(120, progress_bar=False)  # fmt: skip
    assert result.pulls == 1 and result.pulled_bytes == result.payload_bytes
    assert result.actor_s["pull"] > 0 and result.actor_s["load"] > 0


def test_cpu_seconds_of_actors_are_theirs_alone(small_dqn, counter):
    class Busy(counter):
        def step(self, action):
            until = time.process_time() + 0.002
            while time.process_time() < until:
                pass
            return super().step(action)

    started = time.process_time()
    actorq = ActorQ(small_dqn(counter()), Busy, n_actors=2, pull_period=50, samples_per_insert=1)
    result = actorq.learn(1000, progress_bar=False)
    here = time.process_time() - started
    assert 0.002 * result.steps < result.cpu_s["actors"] < 2 * 0.002 * result.steps
    assert 0 < result.cpu_s["learner"] < here and result.cpu_s["quantizer"] > 0


def test_the_learner_leaves_busy_actors_their_cores(small_dqn, counter, monkeypatch):
    class Slow(counter):
        def step(self, action):
            time.sleep(0.005)  # far above the learner's share, also on a loaded machine
            return super().step(action)

    model, threads = small_dqn(counter()), []
    train = model.train

    def watched(**arguments):
        threads.append(torch.get_num_threads())
        train(**arguments)

    before = torch.get_num_threads()
    monkeypatch.setattr(model, "train", watched)
    try:
        torch.set_num_threads(3)
        ActorQ(model, Slow, n_actors=2, pull_period=50, samples_per_insert=1).learn(600)
        assert threads and set(threads) == {1}  # neither waits for so small a learner
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("victim", ["actor 0", "quantizer"])
def test_a_killed_child_is_started_again_and_the_run_goes_on(small_dqn, counter, victim):
    killed = []

    def kill_once(result):
        if result.steps >= 500 and not killed:
            killed.append(child(victim))
            os.kill(killed[0], signal.SIGKILL)

    class Slow(counter):
        def step(self, action):
            time.sleep(0.001)
            return super().step(action)

    # The only actor: without its successor the run would never end.
    actorq = ActorQ(small_dqn(counter()), Slow, n_actors=1, pull_period=50)
    result = actorq.learn(2000, progress_bar=False, on_message=kill_once)
    assert result.steps >= 2000 and result.restarts == 1


# A step that would outlast the run, and a simulator that takes longer to end than any step.
@pytest.mark.parametrize("step_s, close_s", [(60.0, 0.0), (0.0, 1.5)])
def test_environments_are_closed_however_long_they_take(
    small_dqn, counter, tmp_path, step_s, close_s
):
    closed = tmp_path / "closed"

    class Simulated(counter):
        steps = 0

        def step(self, action):
            self.steps += 1
            if self.steps > 50:  # those of the first message
                time.sleep(step_s)
            return super().step(action)

        def close(self):
            time.sleep(close_s)
            closed.touch()

    started = time.monotonic()
    result = ActorQ(small_dqn(counter()), Simulated, n_actors=1).learn(50, progress_bar=False)
    assert closed.exists() and result.stopped == "done" and result.steps == 50
    assert time.monotonic() - started < 60


@pytest.mark.timeout(60)  # the learner waited for as long as the sleeper slept
def test_a_dead_actor_is_noticed_although_a_process_of_its_own_holds_its_pipe(
    small_dqn, counter, tmp_path
):
    pid = tmp_path / "pid"

    class Abandons(counter):
        def step(self, action):
            if self.episode == 30 and not pid.exists():
                pid.write_text(str(subprocess.Popen(["sleep", "1d"], close_fds=False).pid))
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)

    try:
        actorq = ActorQ(small_dqn(counter()), Abandons, n_actors=1)
        result = actorq.learn(600, progress_bar=False)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert result.steps >= 600 and result.restarts == 1


def test_n_step_returns_end_where_a_killed_actor_was_replaced(small_dqn, counter):
    class Endless(counter):
        def __init__(self):
            super().__init__(length=10**6)

        def step(self, action):
            time.sleep(0.001)
            return super().step(action)

    killed = []

    def kill_once(result):
        if result.steps >= 200 and not killed:
            killed.append(child("actor 0"))
            os.kill(killed[0], signal.SIGKILL)

    model = small_dqn(counter(), n_steps=3)
    actorq = ActorQ(model, Endless, n_actors=1)
    result = actorq.learn(600, progress_bar=False, on_message=kill_once)
    assert result.restarts == 1
    times = model.replay_buffer.observations[: result.steps, 0, 0]
    cuts = np.flatnonzero(model.replay_buffer.timeouts[: result.steps, 0])
    (replaced,) = np.flatnonzero(np.diff(times) < 0)
    assert cuts.tolist() == [replaced, result.steps - 1]  # and where the run ended


def test_ctrl_c_ends_the_run_and_keeps_what_was_done(small_dqn):
    def interrupt(result):
        if result.steps >= 500:
            raise KeyboardInterrupt

    actorq = ActorQ(small_dqn(), n_actors=2)
    result = actorq.learn(10**6, progress_bar=False, on_message=interrupt)
    assert result.stopped == "interrupted" and 500 <= result.steps < 1000
    assert result.episodes and result.wall_s > 0


def test_ctrl_c_while_a_child_is_started_leaves_none_running(small_dqn, monkeypatch, ctrl_c):
    begin, begun = CONTEXT.Process.start, []

    def interrupted(self):
        begin(self)
        begun.append(self.name)
        ctrl_c()
        time.sleep(0.2)  # tqdm's thread takes the signal, then this one is interrupted

    monkeypatch.setattr(CONTEXT.Process, "start", interrupted)
    result = ActorQ(small_dqn(), n_actors=2).learn(100, progress_bar=False)
    assert begun == ["quantizer"] and (result.stopped, result.steps) == ("interrupted", 0)


def test_a_second_ctrl_c_leaves_no_child_unended(small_dqn, monkeypatch, ctrl_c):
    end, ended = Child.end, []

    def interrupted(self):
        ctrl_c()
        end(self)
        ended.append(self.name)

    def interrupt(result):
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "end", interrupted)
    result = ActorQ(small_dqn(), n_actors=2).learn(100, progress_bar=False, on_message=interrupt)
    assert ended == ["quantizer", "actor 0", "actor 1"] and result.stopped == "interrupted"


SCRIPT = """
    import sys
    from stable_baselines3 import DQN
    from quarl_nb.actorq import ActorQ, Saving
    from pathlib import Path

    if __name__ == "__main__":
        model = DQN("MlpPolicy", "CartPole-v1", learning_starts=20, batch_size=8, seed=0,
                    buffer_size=5000, policy_kwargs=dict(net_arch=[8]), device="cpu")
        saving = Saving(checkpoint=Path(sys.argv[1]), checkpoint_every_s=0.2)
        actorq = ActorQ(model, n_actors=2, saving=saving)
        actorq.learn(int(sys.argv[2]), progress_bar=False,
                     on_message=lambda result: print(result.steps, flush=True))
"""


def test_a_killed_learner_leaves_no_orphan_and_resumes_from_its_checkpoint(tmp_path):
    script, checkpoint = tmp_path / "script.py", tmp_path / "run.pt"
    script.write_text(textwrap.dedent(SCRIPT))

    def start(steps):
        command = [sys.executable, str(script), str(checkpoint), str(steps)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    learner = start(10**6)
    told: dict[int, int] = {}  # by the time at which the newest checkpoint was written
    while len(told) < 4:
        steps = int(learner.stdout.readline())  # of a dead learner there is nothing to read
        if checkpoint.exists():
            told[checkpoint.stat().st_mtime_ns] = steps
    children = psutil.Process(learner.pid).children(recursive=True)
    assert len(children) >= 3
    learner.kill()
    learner.communicate()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    *_, before_the_last, _ = told.values()  # which it holds, being written after that was told
    done = start(4 * before_the_last)
    first, *_, last = map(int, done.communicate()[0].split())
    assert done.returncode == 0 and first > before_the_last > 20
    assert last >= 4 * before_the_last


def test_an_actor_that_only_dies_ends_the_run(small_dqn, counter):
    class Deadly(counter):
        def reset(self, seed=None, options=None):
            os.kill(os.getpid(), signal.SIGKILL)

    actorq = ActorQ(small_dqn(counter()), Deadly, n_actors=1)
    with pytest.raises(QuarlError, match="actor 0 was ended by SIGKILL"):
        actorq.learn(100, progress_bar=False)


def test_an_environment_that_raises_is_named_with_its_actor(small_dqn, counter, tmp_path):
    class Broken(counter):
        def step(self, action):
            if self.episode == 30:
                raise ZeroDivisionError("no such wind")
            return super().step(action)

    saving = Saving(checkpoint=tmp_path / "run.pt")
    options = dict(n_actors=1, transitions_per_message=10)
    actorq = ActorQ(small_dqn(counter()), Broken, saving=saving, **options)
    with pytest.raises(QuarlError, match="actor 0: environment raised ZeroDivisionError"):
        actorq.learn(10_000, progress_bar=False)
    assert actorq.result.steps >= 150 and "ZeroDivisionError" in actorq.result.stopped
    mended = ActorQ(small_dqn(counter()), counter, "serial", saving, **options)
    steps = []
    mended.learn(400, progress_bar=False, on_message=lambda result: steps.append(result.steps))
    assert steps[0] == actorq.result.steps + 10


def test_a_checkpoint_is_never_replaced_by_nan_weights(small_dqn, counter, tmp_path):
    saving = Saving(checkpoint=tmp_path / "run.pt", checkpoint_every_s=0.0)
    model, whole = small_dqn(counter()), []

    def ruin(result):
        if result.steps == 200:
            whole.append(saving.checkpoint.read_bytes())
            torch.nn.init.constant_(model.q_net.q_net[0].weight, torch.nan)

    actorq = ActorQ(model, counter, "serial", saving, n_actors=1, pull_period=50)
    with pytest.raises(QuarlError, match="NaN"):
        actorq.learn(400, progress_bar=False, on_message=ruin)
    assert [saving.checkpoint.read_bytes()] == whole


def test_a_run_that_never_began_leaves_no_checkpoint(small_dqn, counter, tmp_path):
    class Unborn(counter):
        def reset(self, seed=None, options=None):
            return np.zeros(9), {}

    saving = Saving(checkpoint=tmp_path / "run.pt")
    with pytest.raises(QuarlError, match="shape"):
        ActorQ(small_dqn(counter()), Unborn, "serial", saving).learn(400, progress_bar=False)
    assert not list(tmp_path.iterdir())


def test_folders_are_made_before_the_run_or_the_user_is_told(tmp_path):
    saving = Saving(checkpoint=tmp_path / "a" / "b" / "run.pt", snapshots=tmp_path / "c")
    saving.prepare()
    assert not list(saving.checkpoint.parent.iterdir()) and saving.snapshots.is_dir()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(QuarlError, match=r"cannot write to '.*file/d': Not a directory"):
        Saving(snapshots=tmp_path / "file" / "d").prepare()


def test_more_actors_than_cores_are_warned_of(small_dqn, caplog):
    cores = usable_cores()
    ActorQ(small_dqn(), engine="serial", n_actors=cores + 1)  # takes turns on one core anyway
    ActorQ(small_dqn(), n_actors=cores)
    assert not caplog.messages
    ActorQ(small_dqn(), n_actors=cores + 1)
    assert caplog.messages == [f"{cores + 1} actors share {cores} cores"]


def test_a_script_without_its_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        from stable_baselines3 import DQN
        from quarl_nb.actorq import ActorQ
        model = DQN("MlpPolicy", "CartPole-v1", policy_kwargs=dict(net_arch=[8]), device="cpu")
        ActorQ(model, n_actors=1).learn(100, progress_bar=False)
    """))  # fmt: skip
    done = subprocess.run([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    error = done.stderr.strip().splitlines()[-1]
    assert done.returncode and error.endswith('must start ActorQ under if __name__ == "__main__":')


def test_the_learners_activities_fill_the_run(small_dqn, tmp_path):
    saving = Saving(checkpoint=tmp_path / "run.pt", checkpoint_every_s=0)
    result = ActorQ(small_dqn(), engine="process", saving=saving, n_actors=1).learn(
        2000, progress_bar=False
    )
    assert 0 < result.learner_s["save"] and set(result.learner_s) > {"insert", "wait"}
    assert sum(result.learner_s.values()) > 0.8 * result.wall_s
