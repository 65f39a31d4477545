"""Twenty-one policies trained and published by others, and the environments they run in.

Their files are not part of the project. They lie where `QUARL_NB_AGENTS` says, or beside the
checkout in `shared/agents`; `index.json` there names their source, licence and published reward.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

from quarl_nb.errors import QuarlError, UnavailableError, check_choice, one_line
from quarl_nb.paths import content_of
from quarl_nb.rl.policies import PolicyNet, PolicySpec
from quarl_nb.rl.public.envs import MAKERS
from quarl_nb.rl.public.networks import CONVERTERS
from quarl_nb.rl.safe_pickle import read_tensors
from quarl_nb.rl.sb3.convert import MODERN_ENV_IDS, policy_from_zip
from quarl_nb.rl.sb3.normalization import find_normalization

AGENTS_VARIABLE = "QUARL_NB_AGENTS"
_BESIDE = Path(__file__).resolve().parents[4] / "shared" / "agents"
# Today's environment of each one whose name alone does not tell it, and how to make it.
_ENVIRONMENTS = {
    "Walker2d-v3": ("Walker2d-v5", "time-feature"),
    "breakout-v4.80": ("ALE/Breakout-v5", "baby-a3c"),
    "pong-v4.80": ("ALE/Pong-v5", "baby-a3c"),
    "PongDeterministic-v4": ("ALE/Pong-v5", "openai-pong"),
}
# How the digests of those begin that the shipped records are of; others may bear their names.
KNOWN = {
    "a2c-BipedalWalker-v3": "a8594984a7ed21c3",
    "a2c-CartPole-v1": "98b16a29e137dc3b",
    "a2c-HalfCheetah-v3": "eab18cf67f46406b",
    "a2c-MountainCarContinuous-v0": "49a7c4d784e99492",
    "a2c-Pendulum-v1": "e9befa6543a3a656",
    "ddpg-MountainCarContinuous-v0": "02b281ef20b15e1a",
    "ddpg-Pendulum-v1": "92b4bbf57d3ea1bc",
    "dqn-Acrobot-v1": "989523983e45cf14",
    "dqn-CartPole-v1": "11fef086db694d9b",
    "dqn-LunarLander-v2": "72ac0007301b9e13",
    "ppo-CartPole-v1": "83d0de1280428dbf",
    "ppo-HalfCheetah-v3": "ede12c998c12edb5",
    "ppo-LunarLander-v2": "0257394caa19279b",
    "ppo-MountainCarContinuous-v0": "5b09e08e0386d358",
    "ppo-Pendulum-v1": "956ea765d421b8a0",
    "ppo-Walker2d-v3": "f081c4f3bb11170b",
    "sac-HalfCheetah-v3": "63ac27ae0c2ffe04",
    "trpo-Hopper-v3": "2361d670d8946489",
    "a3c-gru-breakout-v4.80": "af6c793df878de50",
    "a3c-gru-pong-v4.80": "0709428376712897",
    "dueling-ddqn-PongDeterministic-v4": "122b78aa794d75df",
}


@dataclass(frozen=True)
class PublicAgent:
    """One published policy.

    Attributes:
        name: `ppo-CartPole-v1`: algorithm and the environment it was trained in.
        env_id: the environment of today that it runs in.
        published: mean and standard deviation of the return, as its authors report.
        vecnormalize: its normalization statistics, if the index names them.
        maker: in `public.envs.MAKERS`, if the environment needs wrapping.
    """

    name: str
    algo: str
    env_id: str
    trained_on: str
    published: tuple[float, float] | None
    source: str
    licence: str
    model: Path
    vecnormalize: Path | None
    maker: str | None

    @property
    def make(self) -> Callable[[], gym.Env] | None:
        """Factory of its environment, where `env_id` alone does not name it."""
        return partial(MAKERS[self.maker], self.env_id) if self.maker else None

    @property
    def provenance(self) -> dict[str, Any]:
        return {
            "source": self.source, "licence": self.licence, "file": self.model.name,
            "trained_on": self.trained_on, "published": self.published,
        }  # fmt: skip

    @property
    def statistics(self) -> Path | None:
        """What its observations are normalized by: as named, or what lies beside its zip."""
        is_zip = self.model.suffix == ".zip"
        return self.vecnormalize or (find_normalization(self.model) if is_zip else None)

    def digest(self) -> str:
        """SHA-256 of its files.

        Raises:
            QuarlError: one cannot be read, or its statistics are missing.
        """
        sha256 = hashlib.sha256(content_of(self.model))
        if statistics := self.statistics:
            sha256.update(content_of(statistics))
        return sha256.hexdigest()


def agents_folder(folder: str | Path | None = None) -> Path:
    """Where the agents lie: as given, else `QUARL_NB_AGENTS`, else beside the checkout.

    Raises:
        UnavailableError: no `index.json` there.
    """
    found = Path(folder or os.environ.get(AGENTS_VARIABLE) or _BESIDE)
    if not (found / "index.json").is_file():
        raise UnavailableError(
            f"no public agents in '{found}': set {AGENTS_VARIABLE} to the folder of index.json"
        )
    return found


def public_agents(folder: str | Path | None = None) -> dict[str, PublicAgent]:
    """Every agent of the index by name.

    Raises:
        UnavailableError: no `index.json` there.
        QuarlError: it is damaged, or two of its agents have one name.
    """
    root = agents_folder(folder)
    try:
        index = json.loads((root / "index.json").read_text())
        agents = [_agent(root, entry) for entry in index]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise QuarlError(f"index.json of '{root}' is damaged: {error!r}") from error
    found: dict[str, PublicAgent] = {}
    for agent in agents:
        if (other := found.setdefault(agent.name, agent)) is not agent:
            raise QuarlError(f"index.json of '{root}' names two agents {agent.name!r}: "
                             f"'{other.model}' and '{agent.model}'")  # fmt: skip
    return found


def load_agent(name: str, folder: str | Path | None = None) -> PolicyNet:
    """The policy of that name, without running any code of its files.

    Raises:
        UnavailableError: no `index.json` there.
        QuarlError: no such agent, a damaged file, one of another algorithm than the index says, or
            a network that is none of those known.
    """
    agents = public_agents(folder)
    agent = agents[check_choice("public agent", name, agents)]
    if agent.model.suffix == ".zip":
        net = policy_from_zip(agent.model, env_id=agent.env_id, vecnormalize=agent.statistics)
        spec, tensors = net.spec, net.state_dict()
        if spec.algo != agent.algo:
            said = f"{agent.algo}, as index.json says"
            raise QuarlError(f"'{agent.model}' is of {spec.algo}, not of {said}")
    else:
        what = f"algorithm of '{agent.model}', which is no SB3 zip:"
        convert = CONVERTERS[check_choice(what, agent.algo, CONVERTERS)]
        tensors = read_tensors(content_of(agent.model), f"'{agent.model}'")
        try:
            spec, tensors = convert(tensors)
        except KeyError as error:
            raise QuarlError(f"'{agent.model}' lacks the tensor {error}") from error
        except (ValueError, TypeError) as error:  # a weight has another rank
            raise QuarlError(f"'{agent.model}' is damaged: {one_line(error)}") from error
    return PolicyNet(
        PolicySpec(agent.algo, agent.env_id, spec.obs_shape, spec.layers, spec.head,
                   agent.provenance), tensors,
    )  # fmt: skip


def _agent(root: Path, entry: Mapping[str, Any]) -> PublicAgent:
    trained_on, algo, published = entry["env"], entry["algo"], entry["published_reward"]
    modern = MODERN_ENV_IDS.get(trained_on, trained_on)
    env_id, maker = _ENVIRONMENTS.get(trained_on, (modern, None))
    normalization = entry.get("vecnormalize")
    return PublicAgent(
        name=f"{algo}-{trained_on}",
        algo=algo,
        env_id=env_id,
        trained_on=trained_on,
        published=tuple(published) if published else None,
        source=entry["source"],
        licence=entry["licence"],
        model=root / entry["model"],
        vecnormalize=root / normalization if normalization else None,
        maker=maker,
    )
