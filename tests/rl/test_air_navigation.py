from __future__ import annotations

import math
from collections import deque

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from quarl_nb.errors import QuarlError
from quarl_nb.rl.air.drawing import draw_still, fly
from quarl_nb.rl.air.navigation import ENV_ID, AirNavigationEnv, AirNavigationVectorEnv
from quarl_nb.rl.air.world import (
    DRONE_RADIUS_M,
    GOAL_RADIUS_M,
    HALF,
    MAX_STEPS,
    MIN_GOAL_DISTANCE_M,
    N_RAYS,
    RANGE_M,
    AirWorld,
    reward,
)

HOVER, STRAIGHT_AHEAD, TURN_LEFT = 2, 22, 4  # 5 * speed + yaw rate


def empty_env(x: float, y: float, heading: float, goal: tuple[float, float]) -> AirNavigationEnv:
    """One arena without obstacles; the drone stands where it is told to."""
    env = AirNavigationEnv()
    env.reset(seed=0)
    world = env.world
    world.centre_x[:], world.centre_y[:], world.radius[:] = 1000, 1000, 0
    world.x[:], world.y[:], world.heading[:] = x, y, heading
    world.goal_x[:], world.goal_y[:] = goal
    world.goal_distance_m[:] = math.dist((x, y), goal)
    return env


def put_obstacle(env: AirNavigationEnv, x: float, y: float, radius: float) -> None:
    env.world.centre_x[0], env.world.centre_y[0], env.world.radius[0] = x, y, radius


def test_gymnasium_accepts_it():
    env = gym.make(ENV_ID, render_mode="rgb_array", disable_env_checker=True)
    check_env(env.unwrapped)
    assert env.action_space.n == 25


def test_reward_is_equations_1_and_2():
    yes, no = np.array([True]), np.array([False])
    distance, speed = np.array([3.0], np.float32), np.array([2.0], np.float32)
    # D_c = (2.5 - 2.0) * t_max = 0.25 with t_max = 0.5 s
    assert reward(no, no, distance, speed, no) == -3 - 1
    assert reward(no, no, distance, speed, yes) == -3 - 0.25 - 1
    assert reward(no, yes, distance, speed, no) == -100 - 3 - 1
    assert reward(yes, no, distance, speed, no) == 1000 - 3 - 1


def test_reward_of_a_flight_by_hand():
    env = empty_env(0, 0, 0, goal=(10, 0))
    # From rest the speed grows by 1.25 m/s^2 * 0.5 s, and each action lasts 0.5 s.
    _, first, *_ = env.step(STRAIGHT_AHEAD)
    assert env.world.x[0] == 0.3125
    assert first == pytest.approx(-(10 - 0.3125) - 1)
    _, second, *_ = env.step(STRAIGHT_AHEAD)
    assert env.world.speed[0] == 1.25
    assert second == pytest.approx(-(10 - 0.3125 - 0.625) - 1)
    env.world.heading[:] = math.pi
    _, away, *_ = env.step(STRAIGHT_AHEAD)  # 1.875 m/s * 0.5 s back
    assert away == pytest.approx(-10 - (2.5 - 1.875) * 0.5 - 1, abs=1e-5)


def test_turning_left_is_counter_clockwise():
    env = empty_env(0, 0, 0, goal=(0, 5))
    obs, *_ = env.step(TURN_LEFT)
    assert env.world.heading[0] == pytest.approx(math.radians(30))
    bearing = math.atan2(obs[N_RAYS + 5], obs[N_RAYS + 4])
    assert bearing == pytest.approx(math.radians(60), abs=1e-6)
    assert (env.world.x[0], env.world.y[0]) == (0, 0)


def test_the_drone_slows_down_no_faster_than_it_speeds_up():
    env = empty_env(0, 0, 0, goal=(0, 5))
    env.world.speed[:] = 2.5
    env.step(HOVER)
    assert (env.world.speed[0], env.world.x[0]) == (1.875, 0.9375)


def test_the_imus_readings_by_hand():
    world = empty_env(1, 2, math.pi / 2, goal=(4, 6)).world
    world.speed[:] = 1.25
    # Half the speed, facing along y; of the way (3, 4) four are ahead and three to the right.
    expected = [0.5, 0, 1, 5 / math.hypot(2 * HALF, 2 * HALF), 0.8, -0.6]
    np.testing.assert_allclose(world.observe()[0, N_RAYS:], expected, atol=1e-6)


def test_the_goal_ends_the_episode_with_success():
    env = empty_env(0, 0, 0, goal=(1.2, 0))
    _, value, terminated, truncated, info = env.step(STRAIGHT_AHEAD)
    assert (terminated, truncated, info) == (True, False, {"is_success": True})
    assert value == pytest.approx(1000 - (1.2 - 0.3125) - 1)


def test_a_goal_flown_through_within_a_step_counts():
    env = empty_env(0, 0, 0, goal=(0, 1.0))
    env.world.x[:], env.world.speed[:] = -0.6, 2.5  # at both ends 1.17 m away, at best 1 m
    env.world.goal_y[:] = 0.99
    *_, info = env.step(STRAIGHT_AHEAD)
    assert info == {"is_success": True}


@pytest.mark.parametrize(("gap", "collides"), [(0.29, True), (0.31, False)])
def test_obstacles_collide_at_the_drones_radius_even_between_steps(gap, collides):
    env = empty_env(-0.6, 0, 0, goal=(10, 10))
    env.world.speed[:] = 2.5
    put_obstacle(env, 0, 1 + gap, 1.0)  # beside the middle of the way of 1.25 m
    _, value, terminated, truncated, info = env.step(STRAIGHT_AHEAD)
    assert (terminated, truncated) == (collides, False)
    assert info == ({"is_success": False} if collides else {})
    assert (value < -100) == collides


def test_a_step_that_collides_reaches_no_goal():
    env = empty_env(-0.6, 0, 0, goal=(0, 0))
    env.world.speed[:] = 2.5
    put_obstacle(env, 0, 1.1, 1.0)  # its edge is 0.1 m from the way, the goal on it
    _, value, terminated, _, info = env.step(STRAIGHT_AHEAD)
    assert (terminated, info) == (True, {"is_success": False})
    assert value < -100


def test_walls_collide():
    env = empty_env(HALF - DRONE_RADIUS_M - 0.2, 0, 0, goal=(0, 0))
    obs, value, terminated, _, info = env.step(STRAIGHT_AHEAD)
    assert terminated
    assert info == {"is_success": False}
    assert value < -100
    assert env.world.x[0] == np.float32(HALF - DRONE_RADIUS_M)  # none flies through it
    assert env.observation_space.contains(obs)


def test_an_episode_ends_after_750_steps_with_the_penalty():
    env = empty_env(0, 0, 0, goal=(5, 0))
    for _ in range(MAX_STEPS - 1):
        _, value, terminated, truncated, info = env.step(HOVER)
        assert (value, terminated, truncated, info) == (-6.0, False, False, {})
    _, value, terminated, truncated, info = env.step(HOVER)
    assert (value, terminated, truncated, info) == (-106.0, False, True, {"is_success": False})


def slow_depth(world: AirWorld, i: int, ray: int) -> float:
    """March along the ray in steps of a millimetre until something is touched."""
    fan = np.linspace(-math.pi / 2, math.pi / 2, N_RAYS)
    angle = float(world.heading[i]) + fan[ray]
    t = np.arange(0, RANGE_M, 0.001)
    x, y = world.x[i] + t * math.cos(angle), world.y[i] + t * math.sin(angle)
    hit = (abs(x) >= HALF) | (abs(y) >= HALF)
    for j in range(len(world.radius)):
        centre = np.hypot(x - world.centre_x[j, i], y - world.centre_y[j, i])
        hit |= centre <= world.radius[j, i]
    return float(t[np.argmax(hit)]) if hit.any() else RANGE_M


def test_depths_equal_a_slow_second_implementation():
    env = AirNavigationVectorEnv(12)
    env.reset(seed=3)
    for step in range(4):
        obs, *_ = env.step(np.arange(12) + step)
    for i in range(12):
        expected = [slow_depth(env.world, i, ray) / RANGE_M for ray in range(N_RAYS)]
        np.testing.assert_allclose(obs[i, :N_RAYS], expected, atol=2e-4)
    assert len(np.unique(obs[:, :N_RAYS].round(3))) > 50  # walls, obstacles and free sight


@pytest.mark.parametrize("n", [3, 64])
def test_single_and_vector_environment_are_the_same_world_bit_for_bit(n):
    vec = gym.make_vec(ENV_ID, num_envs=n)
    singles = [AirNavigationEnv() for _ in range(n)]
    obs, _ = vec.reset(seed=7)
    np.testing.assert_array_equal(obs, [env.reset(seed=7 + i)[0] for i, env in enumerate(singles)])
    generator, ended, episodes = np.random.default_rng(0), [False] * n, 0
    for _ in range(120):
        actions = generator.integers(25, size=n)
        obs, rewards, terminated, truncated, info = vec.step(actions)
        for i, env in enumerate(singles):
            if ended[i]:
                expected = env.reset()[0], 0.0, False, False
            else:
                *expected, single_info = env.step(actions[i])
                if single_info:
                    assert info["is_success"][i] == single_info["is_success"]
                    assert info["_is_success"][i]
            np.testing.assert_array_equal(obs[i], expected[0])
            assert (rewards[i], terminated[i], truncated[i]) == tuple(expected[1:])
            ended[i] = bool(expected[2] or expected[3])
            episodes += ended[i]
    assert episodes > n


def test_a_mask_resets_only_its_arenas():
    env = AirNavigationVectorEnv(3)
    first, _ = env.reset(seed=[5, 6, 7])
    moved, *_ = env.step(np.array([24, 24, 24]))
    again, _ = env.reset(seed=[None, 6, None], options={"reset_mask": np.array([0, 1, 0], bool)})
    np.testing.assert_array_equal(again[1], first[1])
    np.testing.assert_array_equal(again[[0, 2]], moved[[0, 2]])


def test_episodes_differ_and_observations_stay_within_their_bounds():
    env = AirNavigationVectorEnv(256)
    obs, _ = env.reset(seed=0)
    assert len(np.unique(obs, axis=0)) == 256
    generator = np.random.default_rng(1)
    for _ in range(100):
        assert env.observation_space.contains(obs)
        obs, *_ = env.step(generator.integers(25, size=256))


def test_randomization_covers_what_the_paper_names():
    env = AirNavigationVectorEnv(2000)
    env.reset(seed=0)
    world = env.world
    counts = np.bincount((world.radius > 0).sum(axis=0), minlength=6)
    assert counts[0] == 0
    assert (counts[1:] > 300).all()  # 1 to 5, each with probability 1/5
    sizes = world.radius[world.radius > 0]
    assert sizes.min() < 1.05
    assert sizes.max() > 2.35
    assert world.goal_distance_m.min() >= MIN_GOAL_DISTANCE_M
    assert np.percentile(world.goal_distance_m, 95) > 18


def test_obstacles_stand_in_the_straight_way_first():
    env = AirNavigationVectorEnv(2000)
    env.reset(seed=0)
    world = env.world
    way_x, way_y = world.goal_x - world.x, world.goal_y - world.y
    x, y = world.centre_x - world.x, world.centre_y - world.y
    part = np.clip((x * way_x + y * way_y) / world.goal_distance_m**2, 0, 1)
    away = np.hypot(x - part * way_x, y - part * way_y)
    blocked = (away < world.radius + DRONE_RADIUS_M).any(axis=0)
    assert blocked.mean() > 0.3  # 0.10 if obstacles stood anywhere


def flood(world: AirWorld, i: int, cell: float = 0.1) -> bool:
    """Whether the drone can get from start to goal, by breadth-first search on a fine grid."""
    axis = np.arange(-HALF + cell / 2, HALF, cell)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    wall = HALF - DRONE_RADIUS_M
    free = (abs(x) < wall) & (abs(y) < wall)
    for j in range(len(world.radius)):
        away = np.hypot(x - world.centre_x[j, i], y - world.centre_y[j, i])
        free &= away > world.radius[j, i] + DRONE_RADIUS_M
    goal = np.hypot(x - world.goal_x[i], y - world.goal_y[i]) < GOAL_RADIUS_M
    assert free[goal].all()  # no obstacle and no wall within reach of the goal
    start = tuple(int((p[i] + HALF) // cell) for p in (world.x, world.y))
    seen, queue = {start}, deque([start])
    while queue:
        a, b = queue.popleft()
        if goal[a, b]:
            return True
        for near in ((a + 1, b), (a - 1, b), (a, b + 1), (a, b - 1)):
            if free[near] and near not in seen:
                seen.add(near)
                queue.append(near)
    return False


def test_every_goal_is_free_of_obstacles_and_can_be_reached():
    env = AirNavigationVectorEnv(40)
    env.reset(seed=11)
    assert all(flood(env.world, i) for i in range(40))
    many = AirNavigationVectorEnv(5000)
    many.reset(seed=12)
    world = many.world
    for x, y in ((world.goal_x, world.goal_y), (world.x, world.y)):
        away = np.hypot(world.centre_x - x, world.centre_y - y) - world.radius
        assert away.min() > GOAL_RADIUS_M + DRONE_RADIUS_M
        assert np.abs([x, y]).max() < HALF - GOAL_RADIUS_M


def test_the_curriculum_sets_how_far_goals_lie():
    env = gym.make_vec(ENV_ID, num_envs=500, max_goal_distance=4.0)
    env.reset(seed=0)
    near = env.unwrapped.world.goal_distance_m
    assert near.max() == 4.0
    assert near.min() >= MIN_GOAL_DISTANCE_M
    env.unwrapped.set_max_goal_distance(8.0)
    env.reset(seed=0)
    assert env.unwrapped.world.goal_distance_m.max() == 8.0
    single = gym.make(ENV_ID)
    single.get_wrapper_attr("set_max_goal_distance")(3.0)
    single.reset(seed=1)
    assert single.unwrapped.world.goal_distance_m[0] <= 3.0


@pytest.mark.parametrize("metres", [1.0, float("nan")])
def test_a_senseless_goal_distance_is_refused(metres):
    with pytest.raises(QuarlError, match=r"max_goal_distance.*allowed: 2\.0 m or more"):
        AirNavigationEnv(max_goal_distance=metres)


@pytest.mark.parametrize("action", [-1, 25, 30, 2.0])
def test_an_action_that_there_is_not_is_refused_and_nothing_flown(action):
    env = AirNavigationEnv()
    env.reset(seed=0)
    with pytest.raises(QuarlError, match="^actions must be 1 whole numbers from 0 to 24, not "):
        env.step(action)
    assert env.world.steps[0] == 0
    many = AirNavigationVectorEnv(3)
    many.reset(seed=0)
    for actions in ([0, action, 24], [0, 24]):
        with pytest.raises(QuarlError, match="^actions must be 3 whole numbers from 0 to 24, not "):
            many.step(np.array(actions))


def test_seeds_may_be_numpys():
    env = AirNavigationVectorEnv(2)
    expected, _ = env.reset(seed=3)
    for seed in (np.int64(3), np.array([3, 4])):
        np.testing.assert_array_equal(env.reset(seed=seed)[0], expected)


def test_a_flight_can_be_drawn(tmp_path):
    flight = fly(lambda obs: STRAIGHT_AHEAD, seed=4)
    assert flight.outcome == "collided"
    assert len(flight.x) == len(flight.depths) > 3
    draw_still(flight).savefig(tmp_path / "still.png")
    assert (tmp_path / "still.png").stat().st_size > 5000
