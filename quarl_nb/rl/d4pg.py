"""D4PG (Barth-Maron et al. 2018, arXiv 1804.08617) as a stable-baselines3 algorithm."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import (
    GymEnv,
    MaybeCallback,
    ReplayBufferSamples,
    Schedule,
)
from stable_baselines3.common.utils import (
    FloatSchedule,
    polyak_update,
    update_learning_rate,
)
from stable_baselines3.td3.policies import Actor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from quarl_nb.errors import QuarlError, check_counts, check_values
from quarl_nb.rl.d4pg_policies import CategoricalCritic, CnnPolicy, D4PGPolicy, MultiInputPolicy
from quarl_nb.rl.distributional import bellman_target, mean_value

FULL_PRECISION = nullcontext()  # in place of autocast; one for all, since it holds nothing


class D4PG(TD3):
    """Distributed Distributional DDPG: deterministic actor, categorical critic, n-step returns.

    This is the learner; distributed acting is `quarl_nb.actorq`'s. Its defaults are those of
    Acme (Hoffman et al. 2020, arXiv 2006.00979; ``acme/agents/jax/d4pg``), which the ActorQ paper
    built on. As in Acme and not as in the paper, replay is uniform, not prioritized. As in the
    paper's algorithm 1 and not as in Acme, the actor improves at the sampled observations (Acme:
    at the next ones), and it acts itself (Acme: its target network). As in SB3's DDPG, it ascends
    the critic just updated, and networks have no layer normalization (Acme's have).

    Args:
        policy: "MlpPolicy", "CnnPolicy" or, with `n_steps` of 1, "MultiInputPolicy".
        learning_rate: of Adam, for actor and critic (Acme: 1e-4).
        actor_learning_rate: in its place for the actor, a schedule too. The wider a layer, the
            more a step of Adam changes what it computes: at 2048 units the actor's tanh saturates
            for good before the critic has learned anything, unless its steps are small.
        learning_starts: environment steps before the first update (Acme's `min_replay_size`).
        n_steps: rewards summed before bootstrapping (Acme: 5).
        target_update_period: updates from one change of the target networks to the next
            (Acme: 100).
        tau: how far they then move to the learned ones; 1 copies them (Acme).
        n_atoms: atoms of the value distribution (Acme: 51).
        v_min, v_max: the least and the greatest discounted return that it can tell (Acme:
            -150 and 150); those beyond are counted as at these bounds.
        max_grad_norm: global norm that each network's gradient is clipped to (Acme: 40).
        max_dqda_norm: norm that each sample's dQ/da is clipped to, actions being in [-1, 1]
            (Acme: 1); None does not clip.
        autocast: `torch.bfloat16` runs the networks in it while training; the losses, the
            weights and acting stay in fp32. ``policy_kwargs={"optimizer_kwargs": {"fused":
            True}}`` makes Adam faster.
        options: the others of SB3's `TD3` (`gamma`, `batch_size`, `action_noise`, `device`, ...).

    Raises:
        QuarlError: an impossible range or number of atoms; `n_steps` or a period that is no integer
            of at least 1; `tau` or `gamma` outside of [0, 1]; a rate of the actor or a norm that is
            not above 0; an `autocast` that needs its losses scaled; n-step returns of observations
            that are dictionaries.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": D4PGPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: D4PGPolicy
    critic: CategoricalCritic
    critic_target: CategoricalCritic

    def __init__(
        self,
        policy: str | type[D4PGPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        *,
        actor_learning_rate: float | Schedule | None = None,
        learning_starts: int = 1000,
        n_steps: int = 5,
        target_update_period: int = 100,
        tau: float = 1.0,
        n_atoms: int = 51,
        v_min: float = -150.0,
        v_max: float = 150.0,
        max_grad_norm: float = 40.0,
        max_dqda_norm: float | None = 1.0,
        autocast: torch.dtype | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **options: Any,
    ) -> None:
        if autocast not in (None, torch.bfloat16):
            raise QuarlError(f"D4PG's autocast is None or torch.bfloat16, got {autocast}")
        check_counts(1, n_steps=n_steps, target_update_period=target_update_period)
        shares = {"tau": tau, "gamma": options.get("gamma", 1)}
        check_values(Real, lambda x: 0 <= x <= 1, "from 0 to 1", **shares)
        # Clipping to a negative norm would turn the gradient around.
        check_values(Real, lambda x: x > 0, "above 0", max_grad_norm=max_grad_norm)
        optional = {"max_dqda_norm": max_dqda_norm}
        if not callable(actor_learning_rate):
            optional["actor_learning_rate"] = actor_learning_rate
        check_values(Real | None, lambda x: x is None or x > 0, "above 0 or None", **optional)
        distribution = {"n_atoms": n_atoms, "v_min": v_min, "v_max": v_max}
        super().__init__(
            policy,
            env,
            learning_rate,
            learning_starts=learning_starts,
            n_steps=n_steps,
            tau=tau,
            # TD3 without its own additions; `train` is ours.
            policy_delay=1,
            target_policy_noise=0.0,
            target_noise_clip=0.0,
            policy_kwargs={**distribution, **(policy_kwargs or {})},
            _init_setup_model=False,
            **options,
        )
        self.actor_learning_rate = actor_learning_rate
        self.target_update_period = target_update_period
        self.max_grad_norm = max_grad_norm
        self.max_dqda_norm = max_dqda_norm
        self.autocast = autocast
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        # numpy's would make the replay buffer's discounts and returns double.
        self.gamma = float(self.gamma)
        if self.n_steps > 1 and isinstance(self.observation_space, spaces.Dict):
            raise QuarlError("SB3 has no n-step returns of dictionaries: give D4PG n_steps=1")
        for name in ("n_atoms", "v_min", "v_max"):
            # Beside the policy's only where `load` was given it; the saved atoms would stay.
            if name in vars(self) and vars(self)[name] != self.policy_kwargs[name]:
                raise QuarlError(f"D4PG was saved with {name} {self.policy_kwargs[name]}, which "
                                 f"cannot become {vars(self)[name]}")  # fmt: skip
        # SB3 keeps the buffer that it chooses with `n_steps` and `gamma`, and on loading, where
        # they may be others, would take it for a user's own.
        given = self.replay_buffer_class, dict(self.replay_buffer_kwargs)
        super()._setup_model()
        self.replay_buffer_class, self.replay_buffer_kwargs = given

    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """`gradient_steps` updates of critic and actor, each on a batch from the replay buffer."""
        assert self.replay_buffer is not None
        # Asked first: setting it walks over every module, which takes as long as a small layer.
        if not all(module.training for module in (self.policy, self.actor, self.critic)):
            self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        losses = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            losses.append(torch.stack([self._update_critic(batch), self._update_actor(batch)]))
            self._n_updates += 1
            if self._n_updates % self.target_update_period == 0:
                self._update_targets()
        # Read once for all updates: on a GPU every reading waits for it.
        critic_loss, actor_loss = torch.stack(losses).mean(dim=0).tolist()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/critic_loss", critic_loss)
        self.logger.record("train/actor_loss", actor_loss)

    def _update_learning_rate(
        self, optimizers: list[torch.optim.Optimizer] | torch.optim.Optimizer
    ) -> None:
        """SB3's, then the actor's own."""
        super()._update_learning_rate(optimizers)
        if self.actor_learning_rate is not None:
            rate = FloatSchedule(self.actor_learning_rate)
            update_learning_rate(self.actor.optimizer, rate(self._current_progress_remaining))

    def _update_critic(self, batch: ReplayBufferSamples) -> torch.Tensor:
        """Descend the cross-entropy to the projected target (paper: section 3, algorithm 1)."""
        with torch.no_grad(), self._autocast():
            next_actions = self.actor_target(batch.next_observations)
            (next_logits,) = self.critic_target(batch.next_observations, next_actions)
        with self._autocast():
            (logits,) = self.critic(batch.observations, batch.actions)
        discounts = self.gamma if batch.discounts is None else batch.discounts
        target = bellman_target(
            batch.rewards,
            (1 - batch.dones) * discounts,
            torch.softmax(next_logits.float(), dim=1),
            self.critic.atoms,
        )
        loss = F.cross_entropy(logits.float(), target)
        self._step(self.critic, loss)
        return loss.detach()

    def _update_actor(self, batch: ReplayBufferSamples) -> torch.Tensor:
        """Ascend the mean Q of the actor's actions, by dQ/da times da/dtheta; returns -Q."""
        with self._autocast():
            actions = self.actor(batch.observations)
        chosen = actions.detach().float().requires_grad_()
        with self._autocast():
            logits = self.critic.q1_forward(batch.observations, chosen)
        values = mean_value(logits.float(), self.critic.atoms)
        # Of the actions alone: the critic's weights need no gradient here.
        (dqda,) = torch.autograd.grad(values.sum(), chosen)
        if self.max_dqda_norm is not None:
            dqda = torch.renorm(dqda, p=2, dim=0, maxnorm=self.max_dqda_norm)
        self._step(self.actor, actions, -dqda.to(actions.dtype) / len(actions))
        return -values.detach().mean()

    def _step(
        self,
        network: Actor | CategoricalCritic,
        output: torch.Tensor,
        gradient: torch.Tensor | None = None,
    ) -> None:
        """Descend `output`, or by the `gradient` of it where it is no scalar."""
        # The optimizer's list, since `zero_grad` and `parameters` take as long as a small layer.
        weights = [w for group in network.optimizer.param_groups for w in group["params"]]
        for weight in weights:
            weight.grad = None
        output.backward(gradient)
        clip_grad_norm_(weights, self.max_grad_norm)
        network.optimizer.step()

    def _update_targets(self) -> None:
        for network, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
            polyak_update(network.parameters(), target.parameters(), self.tau)
        # Batch normalization's statistics, which are no parameters, as TD3 does.
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return FULL_PRECISION
        return torch.autocast(self.device.type, dtype=self.autocast)

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "D4PG",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> D4PG:
        return super().learn(
            total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
        )
