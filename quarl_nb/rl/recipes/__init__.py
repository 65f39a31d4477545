"""How the policies of Tables 4 and 6 are trained: algorithm, environment, hyperparameters, source.

Hyperparameters are the RL Zoo's (github.com/DLR-RM/rl-baselines3-zoo, hyperparams/<algo>.yml)
unless a line says otherwise; `timesteps` and `n_envs` are cut where two cores would need hours.
"""

from __future__ import annotations

from quarl_nb.errors import check_choice
from quarl_nb.rl.recipes.atari import other_games, pong
from quarl_nb.rl.recipes.control import classic, continuous
from quarl_nb.rl.recipes.navigation import EARLY, PUBLISHED_SUCCESS, navigation
from quarl_nb.rl.recipes.recipe import Curriculum, Recipe, linear

__all__ = [
    "EARLY", "PUBLISHED_SUCCESS", "Curriculum", "Recipe", "get_recipe", "linear", "recipes",
]  # fmt: skip


def recipes() -> dict[str, Recipe]:
    """Every recipe by name in the order to train them: the cheapest and most needed first."""
    found = [*classic(), *continuous(), *pong(), *navigation(), *other_games()]
    return {recipe.name: recipe for recipe in found}


def get_recipe(name: str) -> Recipe:
    """The recipe of that name; QuarlError naming the nearest otherwise."""
    known = recipes()
    return known[check_choice("policy", name, known)]
