"""ActorQ: quantized actors for any stable-baselines3 off-policy algorithm."""

from quarl_nb.actorq.actorq import ActorQ
from quarl_nb.actorq.result import Result
from quarl_nb.actorq.saving import Saving
from quarl_nb.actorq.settings import Settings

__all__ = ["ActorQ", "Result", "Saving", "Settings"]
