"""Classic control, Box2D and MuJoCo."""

from __future__ import annotations

from quarl_nb.rl.recipes.recipe import Recipe, linear


def classic() -> list[Recipe]:
    """CartPole and MountainCarContinuous."""
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


def continuous() -> list[Recipe]:
    """HalfCheetah, Walker2d and BipedalWalker."""
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
