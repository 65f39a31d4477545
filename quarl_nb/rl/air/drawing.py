"""Pictures of the navigation task: a flight from above, and its animation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from quarl_nb.errors import QuarlError, check_seeds
from quarl_nb.rl.air.navigation import AirNavigationEnv
from quarl_nb.rl.air.world import (
    DRONE_RADIUS_M,
    FAN_RAD,
    GOAL_RADIUS_M,
    HALF,
    RANGE_M,
    T_MAX_S,
    AirWorld,
    Array,
)

# Okabe & Ito 2008; `report.style` has the same, but `rl` does not import `report`.
BLUE, GREEN, VERMILION, GREY = "#0072B2", "#009E73", "#D55E00", "#777777"

# Any: matplotlib's stubs want each key as a literal.
STYLE: Any = {"font.size": 7, "axes.linewidth": 0.6, "xtick.labelsize": 6, "ytick.labelsize": 6}


@dataclass
class Flight:
    """One recorded episode of arena 0: positions and headings ``[steps + 1]``, depths, outcome."""

    world: AirWorld
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    heading: list[float] = field(default_factory=list)
    depths: list[Array] = field(default_factory=list)
    outcome: str = "flying"

    def record(self) -> None:
        """Add where the drone is now."""
        world = self.world
        self.x.append(float(world.x[0]))
        self.y.append(float(world.y[0]))
        self.heading.append(float(world.heading[0]))
        self.depths.append(world.depths(np.cos(world.heading), np.sin(world.heading))[:, 0])


def fly(
    act: Callable[[Array], int], seed: int, make: Callable[[], gym.Env] = AirNavigationEnv
) -> Flight:
    """Fly the episode of `seed` with ``act(observation [OBS_SIZE]) -> action``."""
    check_seeds(seed)
    env = make()
    if not isinstance(env.unwrapped, AirNavigationEnv):
        raise QuarlError(f"cannot draw {env}; allowed: AirNavigationEnv")
    obs, _ = env.reset(seed=seed)
    flight = Flight(env.unwrapped.world)
    flight.record()
    ended = False
    while not ended:
        obs, _, terminated, late, info = env.step(act(obs))
        flight.record()
        ended = terminated or late
    flight.outcome = "out of steps" if late else "reached" if info["is_success"] else "collided"
    return flight


def draw_arena(ax: Axes, world: AirWorld) -> None:
    """Walls, obstacles and goal of arena 0 from above, in metres."""
    ax.set(xlim=(-HALF, HALF), ylim=(-HALF, HALF), aspect="equal", xlabel="x (m)", ylabel="y (m)")
    ax.spines[:].set_visible(True)
    ax.set_xticks(np.arange(-10, 11, 5), minor=False)
    ax.set_yticks(np.arange(-10, 11, 5), minor=False)
    centres = zip(world.centre_x[:, 0], world.centre_y[:, 0], world.radius[:, 0], strict=True)
    for x, y, radius in centres:
        if radius > 0:
            ax.add_patch(Circle((x, y), radius, facecolor="#bbbbbb", edgecolor=GREY, lw=0.6))
    goal = (world.goal_x[0], world.goal_y[0])
    ax.add_patch(Circle(goal, GOAL_RADIUS_M, facecolor="#cdeee2", edgecolor=GREEN, lw=0.8))


def draw_drone(ax: Axes, flight: Flight, step: int) -> None:
    """The drone at `step` and its rays, red where they meet something."""
    x, y, heading = flight.x[step], flight.y[step], flight.heading[step]
    for angle, depth in zip(heading + FAN_RAD, flight.depths[step], strict=True):
        end_x, end_y = x + depth * np.cos(angle), y + depth * np.sin(angle)
        ax.plot([x, end_x], [y, end_y], color=VERMILION if depth < RANGE_M else GREY, lw=0.4)
    ax.add_patch(Circle((x, y), DRONE_RADIUS_M, color=BLUE, zorder=3))
    nose = x + 1.2 * np.cos(heading), y + 1.2 * np.sin(heading)
    ax.annotate("", nose, (x, y), arrowprops=dict(arrowstyle="->", lw=0.8), zorder=4)


def draw_way(ax: Axes, flight: Flight, step: int) -> None:
    """The arena and the way flown up to `step`, a dot every action."""
    draw_arena(ax, flight.world)
    ax.plot(flight.x[: step + 1], flight.y[: step + 1], color=BLUE, marker=".", ms=2.5, lw=1)
    ax.plot(flight.x[0], flight.y[0], color=BLUE, marker="s", ms=4, mfc="white", zorder=3)
    goal = float(flight.world.goal_x[0]), float(flight.world.goal_y[0])
    _label(ax, (flight.x[0], flight.y[0]), "start", off=flight.y[:4][-1])
    _label(ax, goal, "goal", off=flight.y[-4:][0])
    outcome = f", {flight.outcome}" if step == len(flight.x) - 1 else ""
    ax.set_title(f"{step * T_MAX_S:.1f} s{outcome}")


def _label(ax: Axes, point: tuple[float, float], text: str, off: float) -> None:
    """Above or below the point, where the way at height `off` is not, but inside the arena."""
    above = point[1] >= off
    if abs(point[1]) > HALF - 3:
        above = point[1] < 0
    ax.annotate(
        text, point, (0, 8 if above else -8), textcoords="offset points", ha="center",
        va="bottom" if above else "top", zorder=5,
    )  # fmt: skip


def draw_still(flight: Flight) -> Figure:
    """The whole flight from above, one column wide; the rays where an obstacle was nearest."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.35, 3.35), layout="constrained", dpi=200)
        ax = figure.subplots()
        draw_way(ax, flight, len(flight.x) - 1)
        draw_drone(ax, flight, int(np.argmin([depths.min() for depths in flight.depths[:-1]])))
    return figure


def draw_frame(flight: Flight) -> NDArray[np.uint8]:
    """The flight so far from above, uint8 ``[height, width, 3]``."""
    figure = Figure(figsize=(4, 4), layout="constrained", dpi=100)
    canvas = FigureCanvasAgg(figure)
    ax = figure.subplots()
    draw_way(ax, flight, len(flight.x) - 1)
    draw_drone(ax, flight, len(flight.x) - 1)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
