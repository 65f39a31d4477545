"""How each policy of Table 4 is trained: algorithm, environment, hyperparameters, their source.

Hyperparameters are the RL Zoo's (github.com/DLR-RM/rl-baselines3-zoo, hyperparams/<algo>.yml)
unless a line says otherwise; `timesteps` and `n_envs` are cut where two cores would need hours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from quarl_nb.errors import check_choice
from quarl_nb.rl.air_navigation import ENV_ID, GOAL_ID
from quarl_nb.rl.envs import ATARI_SUFFIX

# Hidden layers of Table 6's policies.
NAVIGATION_NETWORKS = {"I": [64, 64, 64], "II": [256, 256, 256], "III": [4096, 512, 1024]}
# The share of flights that reach the goal in Table 6, fp32: what its smaller policies had learned.
PUBLISHED_SUCCESS = {"I": 0.60, "II": 0.74}
EARLY = "-early"  # ends the names of policies that stop learning there


@dataclass(frozen=True)
class Curriculum:
    """How far goals lie: from `start_m`, `factor` times as far whenever an agent is good enough.

    Good enough is a share of `success` of the newest `window` episodes. The paper has a curriculum
    on the goal's distance but does not give it.
    """

    start_m: float = 4.0
    factor: float = 1.5
    success: float = 0.6
    window: int = 100


@dataclass(frozen=True)
class Recipe:
    """One policy to train.

    Attributes:
        timesteps: environment steps (Atari: agent steps, four emulator frames each).
        hyperparameters: keyword arguments of the SB3 algorithm.
        normalize: running normalization of observations and rewards (SB3's ``VecNormalize``).
        target_return: training ends early once an evaluation reaches it.
        task: takes the environment's place in the name, where several policies share one.
        curriculum, reward_scale: of the navigation task; see `Curriculum` and `ArenaVecEnv`.
        judged_in: the environment of evaluations, where it is another (with other rewards).
        half_precision: DQN on vectors trains its hidden layers in bfloat16 (`HalfDQNPolicy`).
        source: where the hyperparameters come from, and what differs.
    """

    algo: str
    env_id: str
    timesteps: int
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    n_envs: int = 1
    normalize: bool = False
    action_noise: tuple[str, float] | None = None
    target_return: float | None = None
    eval_every: int = 25_000
    eval_episodes: int = 20
    source: str = "RL Zoo"
    task: str | None = None
    curriculum: Curriculum | None = None
    reward_scale: float = 1.0
    judged_in: str | None = None
    half_precision: bool = False

    @property
    def name(self) -> str:
        """The policy's folder: ``ppo-CartPole-v1``."""
        return f"{self.algo}-{self.task or self.env_id}"


# Figure 7 shows DQN on these three, so they come first.
FIGURE_7 = ("Breakout", "MsPacman", "Seaquest")
OTHER_GAMES = ("SpaceInvaders", "Qbert", "BeamRider")


def linear(initial: float) -> Callable[[float], float]:
    """The RL Zoo's ``lin_x`` schedule: from `initial` to 0 as remaining progress goes 1 to 0."""
    return lambda progress_remaining: progress_remaining * initial


def recipes() -> dict[str, Recipe]:
    """Every recipe by name in the order to train them: the cheapest and most needed first."""
    pong = (_atari(algo, "Pong") for algo in ("ppo", "a2c", "dqn"))
    games = [_game(algo, game) for group in (FIGURE_7, OTHER_GAMES)
             for algo in ("a2c", "ppo", "dqn") for game in group]  # fmt: skip
    found = [*_classic(), *_continuous(), *pong, *_navigation(), *games]
    return {recipe.name: recipe for recipe in found}


def get_recipe(name: str) -> Recipe:
    """The recipe of that name; QuarlError naming the nearest otherwise."""
    known = recipes()
    return known[check_choice("policy", name, known)]


def _classic() -> list[Recipe]:
    cartpole, car = "CartPole-v1", "MountainCarContinuous-v0"
    return [
        Recipe(
            "ppo", cartpole, 100_000,
            dict(n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20, ent_coef=0.0,
                 learning_rate=linear(0.001), clip_range=linear(0.2)),
            n_envs=8, target_return=500, eval_every=10_000,
        ),
        Recipe(
            "a2c", cartpole, 500_000, dict(ent_coef=0.0),
            n_envs=8, target_return=500,
        ),
        Recipe(
            "dqn", cartpole, 100_000,
            dict(learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1000,
                 gamma=0.99, target_update_interval=10, train_freq=256, gradient_steps=128,
                 exploration_fraction=0.16, exploration_final_eps=0.04,
                 policy_kwargs=dict(net_arch=[256, 256])),
            target_return=500, eval_every=5_000,
            source="RL Zoo (config.yml published with its dqn-CartPole-v1 agent); 2x its steps",
        ),
        Recipe(
            "ppo", car, 60_000,
            dict(n_steps=8, batch_size=256, gamma=0.9999, learning_rate=7.77e-5, ent_coef=0.00429,
                 clip_range=0.1, n_epochs=10, gae_lambda=0.9, max_grad_norm=5, vf_coef=0.19,
                 use_sde=True, policy_kwargs=dict(log_std_init=-3.29, ortho_init=False)),
            normalize=True, target_return=93, eval_every=5_000,
            source="RL Zoo; up to 3x its steps",
        ),
        Recipe(
            "a2c", car, 200_000,
            dict(n_steps=100, ent_coef=0.0, use_sde=True, sde_sample_freq=16,
                 policy_kwargs=dict(log_std_init=0.0, ortho_init=False)),
            n_envs=4, normalize=True, target_return=93, eval_every=10_000,
            source="RL Zoo; up to 2x its steps",
        ),
        Recipe(
            "ddpg", car, 300_000,
            dict(batch_size=100, policy_kwargs=dict(optimizer_kwargs=dict(fused=True))),
            action_noise=("ornstein-uhlenbeck", 0.5), target_return=93, eval_every=5_000,
            source="RL Zoo, with the batch of 100 that was SB3's default then",
        ),
    ]  # fmt: skip


def _continuous() -> list[Recipe]:
    walker, cheetah, biped = "Walker2d-v5", "HalfCheetah-v5", "BipedalWalker-v3"
    relu256 = dict(log_std_init=-2, ortho_init=False, activation_fn="relu",
                   net_arch=dict(pi=[256, 256], vf=[256, 256]))  # fmt: skip
    # The Zoo's DDPG settings for PyBullet's walkers (it has none for MuJoCo's), tuned when SB3's
    # default batch was 100.
    ddpg = dict(gamma=0.98, buffer_size=200_000, learning_starts=10_000, gradient_steps=1,
                train_freq=1, learning_rate=1e-3, batch_size=100,
                policy_kwargs=dict(net_arch=[400, 300],
                                   optimizer_kwargs=dict(fused=True)))  # fmt: skip
    sde = dict(n_steps=8, ent_coef=0.0, gae_lambda=0.9, vf_coef=0.4, gamma=0.99, use_sde=True,
               learning_rate=linear(0.00096),
               policy_kwargs=dict(log_std_init=-2, ortho_init=False))  # fmt: skip
    return [
        Recipe(
            "ppo", cheetah, 1_000_000,
            dict(batch_size=64, n_steps=512, gamma=0.98, learning_rate=2.0633e-05,
                 ent_coef=0.000401762, clip_range=0.1, n_epochs=20, gae_lambda=0.92,
                 max_grad_norm=0.8, vf_coef=0.58096, policy_kwargs=relu256),
            normalize=True, eval_every=50_000, eval_episodes=10,
            source="RL Zoo, HalfCheetah-v3",
        ),
        Recipe(
            "a2c", cheetah, 1_000_000, sde, n_envs=4, normalize=True,
            eval_every=50_000, eval_episodes=10,
            source="RL Zoo, HalfCheetahBulletEnv-v0 without the time feature; half its steps",
        ),
        Recipe(
            "ddpg", cheetah, 250_000, ddpg, action_noise=("normal", 0.1),
            eval_every=25_000, eval_episodes=10,
            source="RL Zoo, HalfCheetahBulletEnv-v0; a quarter of its steps",
        ),
        Recipe(
            "ppo", walker, 1_000_000,
            dict(batch_size=32, n_steps=512, gamma=0.99, learning_rate=5.05041e-05,
                 ent_coef=0.000585045, clip_range=0.1, n_epochs=20, gae_lambda=0.95,
                 max_grad_norm=1, vf_coef=0.871923),
            normalize=True, eval_every=50_000, eval_episodes=10,
            source="RL Zoo, Walker2d-v3",
        ),
        Recipe(
            "a2c", walker, 1_000_000, sde, n_envs=4, normalize=True,
            eval_every=50_000, eval_episodes=10,
            source="RL Zoo, Walker2DBulletEnv-v0 without the time feature; half its steps",
        ),
        Recipe(
            "ddpg", walker, 250_000, ddpg | dict(learning_rate=7e-4),
            action_noise=("normal", 0.1), eval_every=25_000, eval_episodes=10,
            source="RL Zoo, Walker2DBulletEnv-v0 with batches of 100; a quarter of its steps",
        ),
        Recipe(
            "ppo", biped, 5_000_000,
            dict(n_steps=2048, batch_size=64, gae_lambda=0.95, gamma=0.999, n_epochs=10,
                 ent_coef=0.0, learning_rate=3e-4, clip_range=0.18),
            n_envs=32, normalize=True, target_return=300, eval_every=131_072,
        ),
        Recipe(
            "a2c", biped, 2_000_000, sde, n_envs=16, normalize=True, target_return=300,
            eval_every=100_000,
            source="RL Zoo; 2 of its 5 million steps",
        ),
        Recipe(
            "ddpg", biped, 250_000, ddpg, action_noise=("normal", 0.1), target_return=300,
            eval_every=20_000,
            source="RL Zoo, updating every step, not every episode; a quarter of its steps",
        ),
    ]  # fmt: skip


def _atari(algo: str, game: str) -> Recipe:
    # 128 units after the convolutions (the paper's "128 FC"), so that a file stays under 2 MB.
    features = dict(features_extractor_kwargs=dict(features_dim=128))
    fused = dict(optimizer_kwargs=dict(eps=1e-5, fused=True))
    target = 20.0 if game == "Pong" else None
    env_id = game + ATARI_SUFFIX
    common: dict[str, Any] = dict(target_return=target, eval_every=50_000, eval_episodes=10)
    if algo == "ppo":
        return Recipe(
            algo, env_id, 3_000_000,
            dict(n_steps=128, n_epochs=4, batch_size=256, learning_rate=linear(2.5e-4),
                 clip_range=linear(0.1), vf_coef=0.5, ent_coef=0.01,
                 policy_kwargs=features | fused),
            n_envs=8, source="RL Zoo, atari; 3 of its 10 million steps", **common,
        )  # fmt: skip
    if algo == "a2c":
        rms = dict(optimizer_class="rmsprop_tf_like", optimizer_kwargs=dict(eps=1e-5))
        return Recipe(
            algo, env_id, 8_000_000,
            dict(ent_coef=0.01, vf_coef=0.25, policy_kwargs=features | rms),
            n_envs=16, source="RL Zoo, atari; 8 of its 10 million steps", **common,
        )  # fmt: skip
    return Recipe(
        algo, env_id, 1_000_000,
        dict(buffer_size=100_000, learning_rate=1e-4, batch_size=32, learning_starts=10_000,
             target_update_interval=1000, train_freq=4, gradient_steps=1,
             exploration_fraction=0.1, exploration_final_eps=0.01,
             policy_kwargs=features | dict(optimizer_kwargs=dict(fused=True))),
        source="RL Zoo, atari; steps, warm-up, target update and final epsilon of the paper's "
        "Table 5; buffer of 100,000", **common,
    )  # fmt: skip


def _game(algo: str, game: str) -> Recipe:
    """As Pong with fewer steps; DQN has the paper's small buffer, with prioritized replay."""
    pong = _atari(algo, "Pong")
    # A policy that never fires plays Breakout for half an hour: evaluate half as often.
    recipe = replace(pong, env_id=game + ATARI_SUFFIX, target_return=None, eval_every=100_000)
    if algo == "ppo":
        source = "RL Zoo, atari; 1 of its 10 million steps"
        return replace(recipe, timesteps=1_000_000, source=source)
    if algo == "a2c":
        source = "RL Zoo, atari; 2 of its 10 million steps"
        return replace(recipe, timesteps=2_000_000, source=source)
    table_5 = dict(buffer_size=10_000, replay_buffer_class="prioritized",
                   replay_buffer_kwargs=dict(alpha=0.6))  # fmt: skip
    source = (
        "the paper's Table 5, which is dqn.yml, atari, of the first RL Zoo (github.com/araffin/"
        "rl-baselines-zoo) with 1 of its 10 million steps; plain DQN, where stable-baselines 2 "
        "added double Q-learning and a dueling network"
    )
    return replace(recipe, hyperparameters=pong.hyperparameters | table_5, source=source)


def _navigation() -> list[Recipe]:
    """Policies I, II and III of Table 6; and those that stop at what the paper's had learned."""
    found = []
    for policy, net_arch in NAVIGATION_NETWORKS.items():
        large = policy == "III"
        source = (
            "ours, the paper gives none: a shorter horizon and smaller rewards than SB3's "
            "defaults, which reach 80 % of the goals where these reach 98 %"
        )
        found.append(Recipe(
            "dqn", ENV_ID, 150_000,
            # The wider a layer, the more a step of Adam changes what it computes.
            dict(learning_rate=5e-5 if large else 3e-4, batch_size=128, buffer_size=200_000,
                 learning_starts=5000, gamma=0.95, target_update_interval=4000, train_freq=1,
                 gradient_steps=4, exploration_fraction=0.15, exploration_final_eps=0.05,
                 policy_kwargs=dict(net_arch=net_arch, optimizer_kwargs=dict(fused=True))),
            n_envs=16, target_return=860 if large else None,
            eval_every=20_000 if large else 10_000, eval_episodes=200,
            task=f"AirNavigation-{policy}", curriculum=Curriculum(), reward_scale=0.01,
            half_precision=large,
            source=source + ("; hidden layers train in bfloat16" if large else ""),
        ))  # fmt: skip
    for policy, success in PUBLISHED_SUCCESS.items():
        name = f"AirNavigation-{policy}"
        recipe = next(recipe for recipe in found if recipe.task == name)
        # Often and exactly: in a thousand steps a policy learns to reach a tenth more of the goals.
        found.append(replace(recipe, task=name + EARLY, target_return=success,
                             judged_in=GOAL_ID, eval_every=1000, eval_episodes=500))
    return found
