"""Actors on a Ray cluster: the same meaning as processes, nothing hangs, nothing is left."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from contextlib import nullcontext
from multiprocessing import resource_tracker
from types import SimpleNamespace

import cloudpickle
import numpy as np
import psutil
import pytest

from quarl_nb.actorq import ActorQ
from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.member import HELLO
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.settings import ActorTask, Orders, Settings
from quarl_nb.actorq.variables import Variables
from quarl_nb.errors import QuarlError
from quarl_nb.testing import numbered_payload

TAG = "QUARL_NB_TEST"  # in the environment of all that a test starts, however it is reparented
GONE_S = 60.0
SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)  # as a process of ray"]

pytestmark = pytest.mark.timeout(600)  # Ray needs half a minute to start on a busy machine


def tagged():
    """Processes that this test started, itself apart."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TAG) == os.environ[TAG] and process.pid != os.getpid():
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def workers(title):
    """Worker processes of Ray whose title begins so."""
    return [p for p in tagged() if "".join(p.cmdline()).startswith(f"ray::{title}")]


@pytest.fixture(autouse=True)
def nothing_is_left_running(monkeypatch, request):
    resource_tracker.ensure_running()  # multiprocessing's own, once for all tests
    monkeypatch.setenv(TAG, f"{os.getpid()} {request.node.name}")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield
    assert not psutil.wait_procs(tagged(), timeout=GONE_S)[1]


@pytest.fixture
def two_nodes(nothing_is_left_running, monkeypatch):
    """A cluster of two nodes with two CPUs each; ActorQ finds it by RAY_ADDRESS."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
    except Exception:  # Ray gives a node half a minute to start, and leaves its processes
        for process in tagged():
            process.kill()
        raise
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def slow_counter(counter):
    class Slow(counter):
        def step(self, action):
            time.sleep(0.001)
            return super().step(action)

    return Slow


def ray_actorq(model, env=None, **options):
    return ActorQ(model, env, engine="ray", **options)


def test_int8_actors_train_a_dqn_on_a_cluster_of_its_own(small_dqn):
    ray = pytest.importorskip("ray")
    actorq = ray_actorq(small_dqn(), n_actors=2, pull_period=50, samples_per_insert=8)
    seen = []

    def watch(result):
        seen.append(len(workers("RemoteActor")))

    result = actorq.learn(4000, progress_bar=False, on_message=watch)
    assert 4000 <= result.steps <= 4000 + 2 * 50 and result.stopped == "done"
    # As in processes: 8 samples an insert, batches of 8, two messages of tolerance an actor.
    assert abs(result.updates - (4000 - 20)) <= 3 * 2 * 50
    assert result.restarts == 0 and result.published > 2 and result.pulls >= 2 * 8
    assert {e.actor for e in result.episodes} == {0, 1}
    assert all(age >= 0 for age in result.ages)
    assert set(seen) == {2} and not ray.is_initialized()


def learn_while_workers_are_killed(small_dqn, slow_counter, at):
    """2000 steps with one actor, without whose successor the run would never end.

    Args:
        at: title of a worker -> the steps after which it is killed, once.
    """
    killed = []

    def kill(result):
        for victim, steps in at.items():
            if result.steps >= steps and victim not in killed:
                (process,) = workers(victim)
                process.kill()
                killed.append(victim)

    model = small_dqn(slow_counter())
    actorq = ray_actorq(model, slow_counter, n_actors=1, pull_period=50)
    return killed, actorq.learn(2000, progress_bar=False, on_message=kill)


def test_an_actor_and_a_quantizer_that_are_killed_are_started_again(small_dqn, slow_counter):
    """The two in one run, to start one cluster; on two nodes each alone is tried below."""
    pytest.importorskip("ray")
    at = {"RemoteActor": 500, "RemoteQuantizer": 1000}
    killed, result = learn_while_workers_are_killed(small_dqn, slow_counter, at)
    assert len(killed) == 2 and result.steps >= 2000 and result.restarts == 2
    assert result.stopped == "done" and result.pulls > 10


def test_environments_are_closed_amid_a_message_that_takes_long(small_dqn, counter, tmp_path):
    pytest.importorskip("ray")
    closed = tmp_path / "closed"

    class Simulated(counter):
        steps = 0

        def step(self, action):
            self.steps += 1
            if self.steps > 50:  # those of the first message
                time.sleep(0.3)
            return super().step(action)

        def close(self):
            closed.touch()

    actorq = ray_actorq(small_dqn(counter()), Simulated, n_actors=1)
    result = actorq.learn(50, progress_bar=False)
    assert closed.exists() and result.stopped == "done" and result.steps == 50


def test_without_ray_the_extra_is_named(small_dqn, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "quarl_nb.actorq.ray", raising=False)
    with pytest.raises(QuarlError, match=r"^engine 'ray' needs pip install 'quarl_nb\[ray\]'$"):
        ray_actorq(small_dqn()).learn(100, progress_bar=False)


def test_an_unreachable_address_or_a_port_in_use_is_one_line_and_no_hang(small_dqn, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr("quarl_nb.actorq.ray_cluster.CONNECT_S", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        messages = {
            f"127.0.0.1:{port}": f"what is at RAY_ADDRESS 127.0.0.1:{port} is no Ray cluster",
            "127.0.0.1:1": "no Ray cluster at RAY_ADDRESS 127.0.0.1:1: .*refused",
            "ray://head:10001": "RAY_ADDRESS is 'ray://head:10001'; allowed: host:port, auto",
            "head": "RAY_ADDRESS is 'head'",
        }
        for address, message in messages.items():
            monkeypatch.setenv("RAY_ADDRESS", address)
            started = time.monotonic()
            with pytest.raises(QuarlError, match=message) as error:
                ray_actorq(small_dqn(), n_actors=1).learn(100, progress_bar=False)
            assert "\n" not in str(error.value) and time.monotonic() - started < 30


def test_what_the_cluster_says_is_told(monkeypatch):
    pytest.importorskip("ray")
    from quarl_nb.actorq import ray_cluster

    def status(told):
        def run(command, **_):
            raise subprocess.CalledProcessError(1, command, stderr=told)

        monkeypatch.setattr(subprocess, "run", run)
        with pytest.raises(QuarlError) as error:
            ray_cluster._check_reachable("auto")
        return str(error.value)

    assert status(b"Traceback\n  x\nAuthenticationError: RAY_AUTH_MODE is currently 'disabled'\n") \
        == "the Ray cluster at RAY_ADDRESS auto asks for a token: set RAY_AUTH_MODE=token"
    assert status(b"Traceback\nRayError: too old\n") == (
        "what is at RAY_ADDRESS auto is no Ray cluster (RayError: too old)"
    )
    assert status(b"") == "what is at RAY_ADDRESS auto is no Ray cluster"


@pytest.mark.parametrize(("missing", "message"), [
    (True,
     r"^actor 0: ModuleNotFoundError: No module named 'quarl_nb' \(on a node of the Ray cluster,"),
    (False, "^actor 0 was killed while it started$"),
])  # fmt: skip
def test_a_node_that_cannot_make_an_actor_killed_none(monkeypatch, missing, message):
    ray = pytest.importorskip("ray")
    from quarl_nb.actorq.ray import Remote

    class Handle:
        class start:
            remote = staticmethod(lambda: "call")

    def get(call, timeout):
        lines = "ray::X\nModuleNotFoundError: No module named 'quarl_nb'"
        cause = ray.exceptions.RayTaskError("X", lines, ModuleNotFoundError(lines), actor_id="1")
        raise ray.exceptions.ActorDiedError(cause if missing else None)

    monkeypatch.setattr("ray.wait", lambda calls, timeout: (calls, []))
    monkeypatch.setattr("ray.get", get)
    with pytest.raises(QuarlError, match=message):
        Remote("actor 0", Handle, 0).await_hello()


def test_an_actors_waiting_for_the_run_to_begin_is_none_of_its_seconds(
    counter, mlp_policy, monkeypatch
):
    pytest.importorskip("ray")
    from quarl_nb.actorq.ray_workers import RemoteActor

    monkeypatch.setattr("ray.get", lambda payload: payload)
    net = mlp_policy(2, (8,), 3)
    task = ActorTask(0, counter, net.spec, Settings(n_actors=1))
    actor = RemoteActor(cloudpickle.dumps(task), (0, make_variables(net, 0, task)))
    assert actor.start() == HELLO
    waits = []
    for _ in range(2):
        time.sleep(0.2)
        waits.append(pickle.loads(actor.work(Orders(random=True))).seconds["wait"])
    assert waits[0] == 0 and waits[1] >= 0.2


def test_what_is_offered_late_is_not_pulled(counter, mlp_policy, monkeypatch):
    pytest.importorskip("ray")
    from quarl_nb.actorq.ray_workers import RemoteActor

    monkeypatch.setattr("ray.get", lambda payload: payload)
    net = mlp_policy(2, (8,), 3)
    task = ActorTask(0, counter, net.spec, Settings(n_actors=1))
    first, older, newer = ((n, make_variables(net, n, task)) for n in (0, 4, 5))
    actor = RemoteActor(cloudpickle.dumps(task), first)
    assert actor.start() == HELLO
    for offered in (newer, older):
        actor.offer(offered)
    assert pickle.loads(actor.work(Orders(random=True))).version == 5


def start_of_ray(monkeypatch, error):
    """Have the start of Ray fail and leave two processes: one that has ended, one that runs."""
    started = []

    def fail(*arguments, **options):
        for command in ([sys.executable, "-c", ""], SLEEP):
            started.append(psutil.Popen(command))
        ended, sleeping = started
        while ended.status() != psutil.STATUS_ZOMBIE:  # nobody has asked for its exit code
            time.sleep(0.01)
        while not sleeping.cmdline():  # it is there a moment after the start
            time.sleep(0.01)
        raise error

    monkeypatch.setattr("ray.init", fail)
    return started


def test_a_cluster_that_fails_to_start_is_one_line_and_leaves_nothing(small_dqn, monkeypatch):
    pytest.importorskip("ray")
    error = Exception("The current node timed out during startup.\nMore.")
    started = start_of_ray(monkeypatch, error)
    with pytest.raises(QuarlError, match="^Ray at local: The current node timed out .*startup.$"):
        ray_actorq(small_dqn(), n_actors=1).learn(100, progress_bar=False)
    assert started and not psutil.pid_exists(started[-1].pid)


def test_ctrl_c_while_a_cluster_is_started_leaves_nothing(small_dqn, monkeypatch):
    pytest.importorskip("ray")
    started = start_of_ray(monkeypatch, KeyboardInterrupt())
    result = ray_actorq(small_dqn(), n_actors=1).learn(100, progress_bar=False)
    assert result.stopped == "interrupted"
    assert started and not psutil.pid_exists(started[-1].pid)


@pytest.mark.slow
def test_versions_never_go_backwards_and_large_messages_cross_nodes(
    small_dqn, counter, two_nodes, monkeypatch
):
    class Wide(counter):  # a message of 50 steps is 0.8 MB: it passes through the object store
        import gymnasium

        observation_space = gymnasium.spaces.Box(0, 1000, (2000,), np.float32)

        def _obs(self):
            return np.full(2000, self.t, np.float32)

    versions = defaultdict(list)
    insert = Learner.insert

    def record(self, transitions):
        versions[transitions.actor].append(transitions.version)
        insert(self, transitions)

    monkeypatch.setattr(Learner, "insert", record)
    actorq = ray_actorq(small_dqn(Wide()), Wide, n_actors=2, pull_period=10, publish_period=1)
    result = actorq.learn(3000, progress_bar=False)
    assert result.stopped == "done" and result.restarts == 0
    assert set(versions) == {0, 1}
    for seen in versions.values():
        assert seen == sorted(seen) and len(set(seen)) > 10


@pytest.mark.slow
def test_a_thousand_versions_under_random_delays_are_never_torn_never_backwards(two_nodes):
    import ray

    from quarl_nb.actorq.ray import RayCrew
    from quarl_nb.actorq.ray_workers import RemoteActor

    class Opener(SimpleNamespace):  # an `Actor` that pulls for every message, and tells what
        pull_due, message_steps, seconds = True, 1, defaultdict(float)

        def timed(self, part):
            return nullcontext()

        def open(self, variables):
            self.variables = variables

        def collect(self, steps, orders):
            time.sleep(self.rng.exponential(0.002) * (self.rng.random() < 0.5))
            whole = numbered_payload(self.variables.version, 1_000_000)
            return self.variables.version, self.variables.payload == whole

        def report(self, transitions, cpu_s):
            return transitions

    class Reader(RemoteActor):
        def start(self, seed):
            self._actor = Opener(rng=np.random.default_rng(seed))
            self._cpu = SimpleNamespace(lap=float)

    ray.init(address=two_nodes.address)
    try:
        remote = ray.remote(concurrency_groups={"variables": 1}, num_cpus=1,
                            scheduling_strategy="SPREAD")(Reader)  # fmt: skip
        first = 0, ray.put(Variables(0, numbered_payload(0, 1_000_000)))
        readers = [SimpleNamespace(handle=remote.remote(b"", first)) for _ in range(2)]
        ray.get([reader.handle.start.remote(seed) for seed, reader in enumerate(readers)])
        crew = SimpleNamespace(learner=SimpleNamespace(timed=nullcontext), actors=readers)
        rng = np.random.default_rng(2)
        orders, calls, seen = Orders(random=True), {}, {0: [(0, True)], 1: [(0, True)]}

        def receive():
            for number, reader in enumerate(readers):
                if number not in calls:
                    calls[number] = reader.handle.work.remote(orders)
                elif ray.wait([calls[number]], timeout=0.001)[0]:
                    seen[number].append(pickle.loads(ray.get(calls.pop(number))))

        for version in range(1, 1000):
            RayCrew.announce(crew, Variables(version, numbered_payload(version, 1_000_000)))
            time.sleep(rng.exponential(0.002) * (rng.random() < 0.5))
            receive()
        deadline = time.monotonic() + GONE_S
        while min(pulled[-1][0] for pulled in seen.values()) < 999:
            assert time.monotonic() < deadline, "the last version never came"
            receive()
    finally:
        ray.shutdown()
    for pulled in seen.values():
        versions = [version for version, whole in pulled]
        assert all(whole for version, whole in pulled)
        assert versions == sorted(versions) and len(set(versions)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["RemoteActor", "RemoteQuantizer"])
def test_a_killed_worker_is_started_again_and_the_run_goes_on(
    small_dqn, slow_counter, two_nodes, victim
):
    killed, result = learn_while_workers_are_killed(small_dqn, slow_counter, {victim: 500})
    assert killed and result.steps >= 2000 and result.restarts == 1


@pytest.mark.slow
def test_a_removed_node_takes_its_actor_with_it_and_the_run_goes_on(
    small_dqn, slow_counter, two_nodes
):
    lost = []
    lost_at = 0

    def remove_once(result):
        nonlocal lost_at
        if result.steps >= 500 and not lost:
            (node,) = two_nodes.worker_nodes
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            lost.extend(set(raylet.children()) & set(workers("RemoteActor")))
            two_nodes.remove_node(node, allow_graceful=False)
            lost_at = result.steps
        # Beyond what was under way from the lost actor: it acts again, on the other node.
        late = {e.actor for e in result.episodes if e.steps > lost_at + 500}
        if lost and late == {0, 1}:
            raise KeyboardInterrupt

    model = small_dqn(slow_counter())
    actorq = ray_actorq(model, slow_counter, n_actors=2, pull_period=50)
    result = actorq.learn(10**6, progress_bar=False, on_message=remove_once)
    assert len(lost) == 1 and result.stopped == "interrupted"
    # The quantizer may have been there too; and as long as Ray has not noticed that the node is
    # gone, which takes seconds, it starts the successor of either there once more.
    assert 1 <= result.restarts <= 2 * 2


@pytest.mark.slow
def test_errors_are_named_and_a_cluster_that_was_there_goes_on(small_dqn, counter, two_nodes):
    class Broken(counter):
        def step(self, action):
            if self.episode == 30:
                raise ZeroDivisionError("no such wind")
            return super().step(action)

    actorq = ray_actorq(small_dqn(counter()), Broken, n_actors=1, transitions_per_message=10)
    with pytest.raises(QuarlError, match="^actor 0: environment raised ZeroDivisionError"):
        actorq.learn(10_000, progress_bar=False)
    assert actorq.result.steps >= 150 and "ZeroDivisionError" in actorq.result.stopped

    class Deadly(counter):
        def reset(self, seed=None, options=None):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(QuarlError, match="^actor 0 was killed while it started$"):
        ray_actorq(small_dqn(counter()), Deadly, n_actors=1).learn(100, progress_bar=False)
    with pytest.raises(QuarlError, match="5 actors need 5 CPUs; the Ray cluster has 4"):
        ray_actorq(small_dqn(), n_actors=5).learn(100, progress_bar=False)

    def interrupt(result):
        if result.steps >= 500:
            raise KeyboardInterrupt

    actorq = ray_actorq(small_dqn(), n_actors=2)
    result = actorq.learn(10**6, progress_bar=False, on_message=interrupt)
    assert result.stopped == "interrupted" and 500 <= result.steps < 1000
    assert not psutil.wait_procs(workers("Remote"), timeout=GONE_S)[1]


SCRIPT = """
    import signal, sys
    from pathlib import Path
    from stable_baselines3 import DQN
    from quarl_nb.actorq import ActorQ, Saving

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
        model = DQN("MlpPolicy", "CartPole-v1", learning_starts=20, batch_size=8, seed=0,
                    buffer_size=5000, policy_kwargs=dict(net_arch=[8]), device="cpu")
        saving = Saving(checkpoint=Path(sys.argv[1]), checkpoint_every_s=0.2)
        result = ActorQ(model, n_actors=2, engine="ray", saving=saving).learn(
            int(sys.argv[2]), progress_bar=False,
            on_message=lambda result: print(result.steps, flush=True))
        print(result.stopped, len(result.episodes) > 0)
"""


@pytest.fixture
def driver(tmp_path):
    """Starts `SCRIPT` until so many steps, with the checkpoint of the one before if there is."""
    script, checkpoint = tmp_path / "script.py", tmp_path / "run.pt"
    script.write_text(textwrap.dedent(SCRIPT))

    def start(steps):
        command = [sys.executable, str(script), str(checkpoint), str(steps)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    started = []
    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until_resumable(driver, tmp_path):
    while not (tmp_path / "run.pt").exists() or int(driver.stdout.readline()) < 1000:
        assert driver.poll() is None


def assert_resumes(driver):
    first, *_, last = driver.communicate(timeout=120)[0].split("\n")[:-2]
    assert driver.returncode == 0 and int(first) > 500 and int(last) >= 3000


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_or_killed_driver_leaves_no_cluster_and_resumes(driver, tmp_path, ending):
    first = driver(10**6)
    wait_until_resumable(first, tmp_path)
    started = tagged()
    assert len(started) > 5
    if ending == signal.SIGINT:
        os.killpg(first.pid, ending)  # as a terminal does: to everybody in the foreground
        out = first.communicate(timeout=60)[0]
        assert first.returncode == 0 and out.splitlines()[-1] == "interrupted True"
    else:
        first.kill()
    assert not psutil.wait_procs(started, timeout=GONE_S)[1]
    assert_resumes(driver(3000))


@pytest.mark.slow
def test_a_killed_driver_leaves_no_actor_on_a_cluster_that_goes_on(driver, tmp_path, two_nodes):
    first = driver(10**6)
    wait_until_resumable(first, tmp_path)
    started = workers("Remote")
    assert len(started) == 3  # the quantizer, too
    first.kill()
    assert not psutil.wait_procs(started, timeout=GONE_S)[1]
    assert_resumes(driver(3000))
