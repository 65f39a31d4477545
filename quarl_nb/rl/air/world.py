"""The world of the navigation task of QuaRL (Appendix B.3): many arenas, flown in step, in numpy.

Arrays end in the arena index ``n``, and no number of one arena depends on the others: an arena
follows the same trajectory, bit for bit, alone or among many. The 25 actions hold no climb, so
the flight is level and obstacles are the cross-sections that it meets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl_nb.errors import QuarlError, brief

Array = NDArray[np.float32]
Mask = NDArray[np.bool_]

# The paper's task.
ARENA_M = (25.0, 25.0, 20.0)  # length, width, height
MAX_OBSTACLES = 5  # 1 to 5 an episode
V_MAX = 2.5  # m/s
MAX_STEPS = 750
GOAL_RADIUS_M = 1.0  # success_distance_to_goal in the settings of Air Learning's code
# Ours, where the paper is silent: start and heading are random too.
T_MAX_S = 0.5  # duration of one action
SPEEDS = np.linspace(0, V_MAX, 5, dtype=np.float32)  # m/s, commanded
YAW_RATES = np.radians([-60, -30, 0, 30, 60]).astype(np.float32)  # rad/s, positive to the left
N_ACTIONS = len(SPEEDS) * len(YAW_RATES)
MAX_ACCELERATION = 1.25  # m/s^2, towards the commanded speed
DRONE_RADIUS_M = 0.3
OBSTACLE_RADIUS_M = (1.0, 2.4)
MIN_GOAL_DISTANCE_M = 2.0
CLEARANCE_M = GOAL_RADIUS_M + DRONE_RADIUS_M  # free of obstacles and walls: the start, the goal
N_RAYS, FIELD_OF_VIEW_DEG, RANGE_M = 16, 180.0, 10.0
OBS_SIZE = N_RAYS + 6

HALF = ARENA_M[0] / 2
_ROOM = np.float32(HALF - CLEARANCE_M)
MAX_GOAL_DISTANCE_M = float(_ROOM) * 8**0.5  # from corner to corner
# Obstacles stand in different squares of a 4 x 4 grid and keep 0.7 m from its lines, so that the
# drone passes between any two and no place is out of reach. Squares within IN_THE_WAY_M of the
# straight way to the goal are taken first: without them 90 % of flights reach it unseeing.
CELL_M, MARGIN_M, IN_THE_WAY_M = ARENA_M[0] / 4, 0.7, 2.0
CELLS = np.stack(np.meshgrid(*[(np.arange(4) - 1.5) * CELL_M] * 2)).reshape(2, 16)
CELLS = CELLS.astype(np.float32)
N_DRAWS = CELLS.shape[1] + 3 * MAX_OBSTACLES + 6  # random numbers of one episode
_ABSENT_M = 1000.0  # where obstacles beyond the episode's number stand
FAN_RAD = np.radians(np.linspace(-0.5, 0.5, N_RAYS) * FIELD_OF_VIEW_DEG)
RAY_COS = np.cos(FAN_RAD).astype(np.float32)[:, None]
RAY_SIN = np.sin(FAN_RAD).astype(np.float32)[:, None]
_TINY = np.float32(1e-9)


def reward(
    reached: Mask, failed: Mask, goal_distance_m: Array, speed: Array, moved_away: Mask
) -> Array:
    """``1000 alpha - 100 beta - D_g - D_c delta - 1``, ``D_c = (V_max - V_now) t_max``.

    Equations 1 and 2 of Appendix B.3. The paper does not define delta; from its words ("actions
    which speed up the agent away from the goal") it is 1 for a step that ends farther from the
    goal than it began.

    Args:
        reached: alpha ``[n]``.
        failed: beta ``[n]``, collided or out of steps.
        goal_distance_m: D_g ``[n]`` after the step.
        speed: V_now ``[n]``, m/s, after the step.
        moved_away: delta ``[n]``.
    """
    correction = (np.float32(V_MAX) - speed) * np.float32(T_MAX_S)
    bonus = np.float32(1000) * reached - np.float32(100) * failed
    return bonus - goal_distance_m - correction * moved_away - np.float32(1)


class AirWorld:
    """State of ``n`` arenas; (0, 0) is the middle, angles are counter-clockwise.

    Attributes:
        x, y, heading, speed: of the drones ``[n]``; metres, radians, m/s.
        goal_x, goal_y, goal_distance_m: ``[n]``.
        centre_x, centre_y, radius: of the obstacles ``[MAX_OBSTACLES, n]``, radius 0 for none.
        steps: since the episode began ``[n]``.
        max_goal_distance: of episodes that begin from now on, metres (the curriculum).
    """

    def __init__(self, n: int, max_goal_distance: float = MAX_GOAL_DISTANCE_M) -> None:
        self.n = n
        self.set_max_goal_distance(max_goal_distance)
        self.x, self.y, self.heading, self.speed = np.zeros((4, n), np.float32)
        self.goal_x, self.goal_y, self.goal_distance_m = np.zeros((3, n), np.float32)
        shape = (MAX_OBSTACLES, n)
        self.centre_x, self.centre_y, self.radius = np.zeros((3, *shape), np.float32)
        self.steps = np.zeros(n, np.int64)
        self._rays = np.empty((3, MAX_OBSTACLES, N_RAYS, n), np.float32)

    def set_max_goal_distance(self, metres: float) -> None:
        """The curriculum: how far the goal of a new episode may lie, at most to the corners."""
        if not metres >= MIN_GOAL_DISTANCE_M:
            raise QuarlError(
                f"max_goal_distance is {metres} m; allowed: {MIN_GOAL_DISTANCE_M} m or more"
            )
        self.max_goal_distance = metres

    def reset(self, slots: NDArray[np.intp], draws: Array) -> None:
        """Begin episodes in the arenas `slots` ``[m]``.

        Args:
            draws: uniform in [0, 1) ``[N_DRAWS, m]``; the episodes are functions of them.
        """
        order, place, start, aim, (turn, count) = np.split(draws, (16, 31, 33, 35))
        (x, y), (aim_x, aim_y) = _spread(start, _ROOM), _spread(aim, _ROOM)
        goal_x, goal_y, distance = _goal(x, y, aim_x, aim_y, self.max_goal_distance)
        self.x[slots], self.y[slots], self.heading[slots] = x, y, _spread(turn, np.float32(np.pi))
        self.speed[slots] = self.steps[slots] = 0
        self.goal_x[slots], self.goal_y[slots] = goal_x, goal_y
        self.goal_distance_m[slots] = distance
        free = _squares_free_of(x, y) & _squares_free_of(goal_x, goal_y)
        off_way = _nearest(CELLS[0][:, None] - x, CELLS[1][:, None] - y, goal_x - x, goal_y - y)
        order = np.where(free, order + (off_way > np.float32(IN_THE_WAY_M**2)), 2)
        squares = CELLS[:, np.argsort(order, axis=0, kind="stable")[:MAX_OBSTACLES]]
        size, *shift = place.reshape(3, MAX_OBSTACLES, -1)
        low, high = OBSTACLE_RADIUS_M
        radius = low + size * np.float32(high - low)
        centres = squares + _spread(np.stack(shift), CELL_M / 2 - MARGIN_M - radius)
        present = np.arange(MAX_OBSTACLES)[:, None] <= count * MAX_OBSTACLES
        self.centre_x[:, slots], self.centre_y[:, slots] = np.where(present, centres, _ABSENT_M)
        self.radius[:, slots] = np.where(present, radius, 0)

    def step(self, actions: NDArray[np.integer]) -> tuple[Array, Mask, Mask, Mask]:
        """Fly `T_MAX_S` seconds with the commands of `actions` ``[n]``.

        Action ``5 i + j`` commands the speed ``SPEEDS[i]`` and the yaw rate ``YAW_RATES[j]``.

        Returns:
            reward, reached, collided (with an obstacle or a wall) and out of steps, all ``[n]``.

        Raises:
            QuarlError: actions of another shape or type, or not from 0 to 24.
        """
        whole = actions.shape == (self.n,) and actions.dtype.kind in "iu"
        if not whole or actions.astype(np.uint64).max() >= N_ACTIONS:  # negative ones wrap around
            raise QuarlError(f"actions must be {self.n} whole numbers from 0 to {N_ACTIONS - 1}, "
                             f"not {brief(actions)}")
        self.steps += 1
        change = np.float32(MAX_ACCELERATION * T_MAX_S)
        self.speed += np.clip(SPEEDS[actions // 5] - self.speed, -change, change)
        self.heading += YAW_RATES[actions % 5] * np.float32(T_MAX_S)
        way = self.speed * np.float32(T_MAX_S)
        dx, dy = way * np.cos(self.heading), way * np.sin(self.heading)
        touch = self.radius + np.float32(DRONE_RADIUS_M)
        nearest = _nearest(self.centre_x - self.x, self.centre_y - self.y, dx, dy)
        collided = (nearest < touch * touch).any(axis=0)
        reached = _nearest(self.goal_x - self.x, self.goal_y - self.y, dx, dy) < GOAL_RADIUS_M**2
        wall = np.float32(HALF - DRONE_RADIUS_M)
        self.x += dx
        self.y += dy
        collided |= (abs(self.x) > wall) | (abs(self.y) > wall)
        np.clip(self.x, -wall, wall, out=self.x)
        np.clip(self.y, -wall, wall, out=self.y)
        reached &= ~collided
        gx, gy = self.goal_x - self.x, self.goal_y - self.y
        distance = np.sqrt(gx * gx + gy * gy)
        moved_away = distance > self.goal_distance_m
        self.goal_distance_m = distance
        late = (self.steps >= MAX_STEPS) & ~reached & ~collided
        value = reward(reached, collided | late, distance, self.speed, moved_away)
        return value, reached, collided, late

    def observe(self) -> Array:
        """Observations ``[n, OBS_SIZE]``: depths over range, then the IMU's readings.

        These are speed over V_max, cosine and sine of the heading, and the goal in the body
        frame: distance over the arena's diagonal, cosine and sine of its bearing.
        """
        obs = np.empty((OBS_SIZE, self.n), np.float32)
        cos, sin = np.cos(self.heading), np.sin(self.heading)
        np.divide(self.depths(cos, sin), np.float32(RANGE_M), out=obs[:N_RAYS])
        gx, gy = self.goal_x - self.x, self.goal_y - self.y
        distance = np.maximum(self.goal_distance_m, _TINY)
        obs[N_RAYS] = self.speed / np.float32(V_MAX)
        obs[N_RAYS + 1], obs[N_RAYS + 2] = cos, sin
        obs[N_RAYS + 3] = distance / np.float32(HALF * 8**0.5)
        obs[N_RAYS + 4] = (gx * cos + gy * sin) / distance
        obs[N_RAYS + 5] = (gy * cos - gx * sin) / distance
        np.clip(obs[N_RAYS + 4 :], -1, 1, out=obs[N_RAYS + 4 :])
        return np.ascontiguousarray(obs.T)

    def depths(self, cos: Array, sin: Array) -> Array:
        """Metres along each ray to the first obstacle or wall ``[N_RAYS, n]``, at most RANGE_M.

        The rays fan out from right to left of the heading, whose cosine and sine are ``[n]``.
        """
        rx, ry = self.centre_x - self.x, self.centre_y - self.y
        ahead, left = (rx * cos + ry * sin)[:, None], (ry * cos - rx * sin)[:, None]
        along, across, spare = self._rays
        # A circle's centre in the frame of each ray; the ray enters it half a chord before that.
        np.multiply(ahead, RAY_COS, out=along)
        along += np.multiply(left, RAY_SIN, out=spare)
        np.multiply(left, RAY_COS, out=across)
        across -= np.multiply(ahead, RAY_SIN, out=spare)
        np.multiply(across, across, out=across)
        half_chord = np.subtract((self.radius * self.radius)[:, None], across, out=across)
        missed = (half_chord <= 0) | (along <= 0)
        np.sqrt(np.maximum(half_chord, 0, out=half_chord), out=half_chord)
        np.subtract(along, half_chord, out=along)
        np.copyto(along, np.float32(RANGE_M), where=missed)
        ray_x, ray_y = RAY_COS * cos - RAY_SIN * sin, RAY_COS * sin + RAY_SIN * cos
        half = np.float32(HALF)
        walls = np.minimum(_to_wall(self.x, ray_x, half), _to_wall(self.y, ray_y, half))
        depth = np.minimum(np.minimum.reduce(along), walls)
        return np.clip(depth, 0, np.float32(RANGE_M), out=depth)


def _spread(uniform: Array, half: Array | np.float32) -> Array:
    """Uniform in [0, 1) -> uniform in [-half, half)."""
    return (2 * uniform - 1) * half


def _goal(
    x: Array, y: Array, aim_x: Array, aim_y: Array, max_distance: float
) -> tuple[Array, Array, Array]:
    """The aim ``[m]`` as seen from the start (x, y), drawn in to `max_distance`; its distance."""
    dx, dy = aim_x - x, aim_y - y
    # Too near: the aim is the corner farthest from the start instead.
    near = dx * dx + dy * dy < np.float32(MIN_GOAL_DISTANCE_M**2)
    dx = np.where(near, -np.copysign(_ROOM, x) - x, dx)
    dy = np.where(near, -np.copysign(_ROOM, y) - y, dy)
    length = np.sqrt(dx * dx + dy * dy)
    distance = np.minimum(length, np.float32(max_distance))
    return x + dx * distance / length, y + dy * distance / length, distance


def _nearest(x: Array, y: Array, dx: Array, dy: Array) -> Array:
    """Squared distance of points ``[..., n]`` from the segments (0, 0) to (dx, dy) ``[n]``."""
    part: Array = np.clip((x * dx + y * dy) / (dx * dx + dy * dy + _TINY), 0, 1)
    rx, ry = x - part * dx, y - part * dy
    return rx * rx + ry * ry


def _to_wall(position: Array, direction: Array, wall: np.float32) -> Array:
    """Metres along a ray to the wall that it goes towards, in one dimension."""
    room = wall - np.copysign(np.float32(1), direction) * position
    along: Array = np.maximum(np.abs(direction), _TINY)
    return room / along


def _squares_free_of(x: Array, y: Array) -> Mask:
    """The grid squares ``[16, m]`` whose obstacles stay clear of the points ``[m]``."""
    reach = np.float32(CELL_M / 2 - MARGIN_M)
    away_x = np.maximum(abs(CELLS[0][:, None] - x) - reach, 0)
    away_y = np.maximum(abs(CELLS[1][:, None] - y) - reach, 0)
    return away_x * away_x + away_y * away_y > np.float32(CLEARANCE_M**2)
