"""ActorQ itself: what a user makes around an algorithm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import gymnasium as gym
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.actorq.environments import env_factory, random_observations
from quarl_nb.actorq.exploration import left_out
from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.process import run_process
from quarl_nb.actorq.quantizer import sent_ready_to_open
from quarl_nb.actorq.replay import check_algorithm, unused_hooks
from quarl_nb.actorq.result import Result
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.saving import Saving, with_paths
from quarl_nb.actorq.serial import run_serial
from quarl_nb.actorq.settings import ActorTask, Settings
from quarl_nb.actorq.wire import wire_format
from quarl_nb.errors import QuarlError, UnavailableError, check_choice, check_counts, one_line
from quarl_nb.inference.export import check_computes
from quarl_nb.processes import holding_interrupts
from quarl_nb.processor import usable_cores
from quarl_nb.quant import parse_precision
from quarl_nb.rl.checkpoint import Progress, has_finite_weights, load_checkpoint
from quarl_nb.rl.denormals import denormals_as_zero
from quarl_nb.rl.envs import close
from quarl_nb.rl.fits import check_spaces
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.sb3.convert import policy_from_model

logger = logging.getLogger(__name__)

CALIBRATION_STEPS = 512


def _run_ray(run: Run, tasks: Sequence[ActorTask]) -> None:
    try:
        from quarl_nb.actorq.ray import run_ray
    except ImportError as error:
        raise UnavailableError("engine 'ray' needs pip install 'quarl_nb[ray]'") from error
    run_ray(run, tasks)


ENGINES = {"serial": run_serial, "process": run_process, "ray": _run_ray}


class ActorQ:
    """Trains an off-policy algorithm with quantized actors (paper, section 2).

    >>> model = DQN("MlpPolicy", "CartPole-v1")
    >>> result = ActorQ(model, precision="int8", n_actors=4).learn(40_000)

    The learner is the algorithm itself, in full precision, trained in place: afterwards save it,
    evaluate it, or go on with it as with any stable-baselines3 model.

    Actors act with the policy's mean or best action and explore by noise of their own, `noise_max`
    or the algorithm's epsilon: of a stochastic policy (SAC, TQC) they draw no samples, and neither
    `use_sde` nor `action_noise` has an effect on them. How often the learner learns is
    `samples_per_insert`'s to say, not `train_freq`'s and `gradient_steps`' (see `Settings`).

    Args:
        algorithm: DQN, DDPG, TD3, SAC, D4PG or another off-policy algorithm with one environment.
        env: where actors act: a name (see `quarl_nb.rl.envs`) or a function that makes one
            gymnasium environment; by default one like the algorithm's own, built anew from its
            gymnasium spec: id, arguments and wrappers.
        engine: `process` (default), `serial`, or `ray`: on the cluster that Ray is connected to or
            finds at ``RAY_ADDRESS``, else on one of this machine's own.
        saving: checkpoint to resume from, and snapshots of the policy.
        quantizer: another way to quantize what actors run: called with a copy of each policy
            that is published, it returns one of the same layers, whose weights hold only its own
            values. Those are then sent as `precision` says; fp32 leaves them as they are.
        settings: fields of `Settings`: precision, n_actors, pull_period, samples_per_insert, ...

    Raises:
        QuarlError: the algorithm cannot be fed, actors cannot run its policy (`policy_from_model`;
            the precision) or not in that environment, which is unknown, or cannot be built anew; a
            setting is wrong, what actors need cannot be pickled.
    """

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        env: str | Callable[[], gym.Env] | None = None,
        engine: str = "process",
        saving: Saving | None = None,
        quantizer: Callable[[PolicyNet], PolicyNet] | None = None,
        **settings: Any,
    ) -> None:
        check_algorithm(algorithm)
        if own := left_out(algorithm):
            logger.warning("ActorQ's actors bring their own noise (noise_max), not %s",
                           " or ".join(own))
        for hook in unused_hooks(algorithm):
            logger.warning("ActorQ feeds and samples by itself: it does not call %s.%s",
                           type(algorithm).__name__, hook)
        check_choice("engine", engine, ENGINES)
        if quantizer is not None and not callable(quantizer):
            raise QuarlError(f"quantizer must be a function of a policy, not {quantizer!r}; "
                             "formats are precisions")  # fmt: skip
        for name in settings:
            check_choice("setting of ActorQ", name, [
                *Settings.__dataclass_fields__, "env", "engine", "saving", "quantizer"])
        self.algorithm, self.engine = algorithm, engine
        self.saving, self.quantizer = with_paths(saving or Saving()), quantizer
        self.settings = Settings(**settings)
        if self.settings.ez_greedy and not isinstance(algorithm.action_space, gym.spaces.Discrete):
            raise QuarlError(f"ez_greedy is of discrete actions, not of {algorithm.action_space}")
        if self.settings.seed is None:
            self.settings = replace(self.settings, seed=algorithm.seed or 0)
        self.make_env = env_factory(algorithm, env)
        self.result, self._runs, self._learning = Result(), 0, False
        self._check_actors(env if isinstance(env, str) else None)
        if engine != "serial":
            _check_pickles("the function that makes environments", self.make_env)
            _check_pickles("the quantizer", quantizer)
        cores = usable_cores()
        if engine == "process" and self.settings.n_actors > cores:
            logger.warning("%d actors share %d cores", self.settings.n_actors, cores)

    def learn(
        self,
        total_steps: int,
        progress_bar: bool = True,
        on_message: Callable[[Result], None] | None = None,
    ) -> Result:
        """Train until the actors have made `total_steps` environment steps in all.

        (The last message may reach beyond it by less than its length.) Continues from the
        checkpoint where there is one, else each call is a run of its own, with other random
        numbers. Ctrl-C ends the run cleanly; what was done is in the result, as it is in
        `self.result` after an error.

        Args:
            on_message: called with the result so far, after every message of an actor.

        Raises:
            QuarlError: an actor, the quantizer or the learner failed; `total_steps` is below 1;
                another run uses the checkpoint.
        """
        check_counts(1, total_steps=total_steps)
        total_steps = int(total_steps)  # numpy's would make a checkpoint that torch will not load
        if self._learning:
            raise QuarlError("this ActorQ is learning: it cannot begin another run meanwhile")
        self._learning = True
        try:
            self.saving.prepare()
            with self.saving.held():
                return self._learn(total_steps, progress_bar, on_message)
        finally:
            self._learning = False

    def _check_actors(self, env_id: str | None) -> None:
        """Refuse a policy that actors cannot run, or not where they act: before `learn` begins the
        algorithm's counts and schedules anew."""
        settings, state = self.settings, self.algorithm.policy.state_dict()
        check_computes(settings.runtime, settings.precision)
        if not sent_ready_to_open(settings):
            wire_format(str(settings.communication))
        tensors = {name: tensor.cpu() for name, tensor in state.items()}
        spec = policy_from_model(self.algorithm, tensors=tensors).spec
        if env_id is not None:
            env = self.make_env()  # or an actor would report that it is unknown
            try:
                check_spaces(spec, env.observation_space, env.action_space, f"'{env_id}'")
            finally:
                close(env)

    def _learn(
        self, total_steps: int, progress_bar: bool, on_message: Callable[[Result], None] | None
    ) -> Result:
        learner, progress = self._begin(total_steps)
        run = Run(learner, total_steps, self.saving, progress, progress_bar, on_message)
        self.result, stopped = run.result, "failed"
        gradients = torch.is_grad_enabled()
        try:
            with denormals_as_zero():
                if run.finished:
                    run.catch_up()  # it may have been killed before its last updates
                else:
                    ENGINES[self.engine](run, self._tasks(learner))
            if not has_finite_weights(self.algorithm):  # since what was published last
                raise QuarlError("the learner's weights are NaN or infinite")
            stopped = "done"
        except KeyboardInterrupt:
            stopped = "interrupted"
        except QuarlError as error:
            stopped = str(error)
            raise
        finally:
            torch.set_grad_enabled(gradients)  # Ctrl-C at the brink of a `no_grad` leaves them off
            self._runs += run.result.steps > 0
            _close(run, stopped)
        return self.result

    def _begin(self, total_steps: int) -> tuple[Learner, Progress]:
        learning_starts = self.algorithm.learning_starts
        try:
            progress = self._resume()
            settings = self.settings if progress.timesteps else self.settings.of_run(self._runs)
            # The replay buffer draws from numpy's global generator. A resumed run goes on with
            # other numbers than the ones it began with.
            self.algorithm.set_random_seed(int(settings.seed or 0) + progress.timesteps)
            learner = Learner(
                self.algorithm, settings, total_steps, resumed=progress.timesteps > 0,
                updates=progress.updates or 0, ahead=progress.ahead,
                put_off=self.algorithm.learning_starts - learning_starts,
            )  # fmt: skip
        except BaseException:
            self.algorithm.learning_starts = learning_starts  # which resuming may have put off
            raise
        if progress.timesteps < total_steps < self.algorithm.learning_starts:
            logger.warning("learning starts only after %d steps, of %d",
                           self.algorithm.learning_starts, total_steps)  # fmt: skip
        return learner, progress

    def _resume(self) -> Progress:
        path = self.saving.checkpoint
        if path is None or not path.exists():
            return Progress()
        progress = load_checkpoint(path, self.algorithm)
        self.saving.forget_lost(progress.timesteps)
        if progress.updates is None:  # older checkpoints do not tell; most algorithms began anew
            progress.updates = self.algorithm._n_updates
        return progress

    def _tasks(self, learner: Learner) -> list[ActorTask]:
        spec, settings = learner.policy().spec, learner.settings
        calibration = None
        convolves = any(layer.kind == "conv2d" for layer in spec.layers)
        if convolves and parse_precision(settings.precision).activation is not None:
            calibration = random_observations(
                self.make_env, spec, settings.seed or 0, CALIBRATION_STEPS)
        return [
            ActorTask(i, self.make_env, spec, settings, calibration, self.quantizer,
                      begun_at=learner.steps)
            for i in range(settings.n_actors)
        ]


def _close(run: Run, stopped: str) -> None:
    """Save what was done. Ctrl-C meanwhile is told by the result, as one before it."""
    try:
        with holding_interrupts():
            run.close(stopped)
    except KeyboardInterrupt:  # would hide the result, or the error that ended the run
        if stopped == "done":
            run.result.stopped = "interrupted"


def _check_pickles(what: str, value: Any) -> None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # pickling calls into whatever it meets
        raise QuarlError(
            f"{what} cannot be sent to actors' processes: {one_line(error)}"
        ) from error
