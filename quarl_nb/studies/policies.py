"""Where a study's policies come from: the suite's own, or the publicly trained agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym

from quarl_nb.errors import check_choice
from quarl_nb.paths import project_root
from quarl_nb.rl.policies import PolicyNet, load_policy
from quarl_nb.rl.public_agents import PublicAgent, load_agent, public_agents
from quarl_nb.rl.recipes import get_recipe

PUBLIC = "public/"


@dataclass(frozen=True)
class Subject:
    """A policy to measure and the environment to measure it in.

    Attributes:
        make: factory of one environment, where `env_id` alone does not name it.
        extra: where the policy came from (source, licence, how it was trained).
    """

    name: str
    algo: str
    env_id: str
    net: PolicyNet
    make: Callable[[], gym.Env] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class PolicySource(Protocol):
    """A named collection of policies."""

    def names(self) -> Sequence[str]: ...

    def describe(self, name: str) -> tuple[str, str]:
        """(algo, env_id) of a policy, without loading it."""
        ...

    def load(self, name: str) -> Subject: ...


@dataclass(frozen=True)
class TrainedPolicies:
    """The policies under ``data/policies``, trained by `quarl-nb train`.

    Attributes:
        pattern: of their names; by default those named after their environment (Table 4's).
    """

    pattern: str = "*-v[0-9]"

    @property
    def root(self) -> Path:
        return project_root() / "data" / "policies"

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob(f"{self.pattern}/policy.json"))

    def describe(self, name: str) -> tuple[str, str]:
        recipe = get_recipe(check_choice("policy", name, self.names()))
        return recipe.algo, recipe.env_id

    def load(self, name: str) -> Subject:
        algo, env_id = self.describe(name)
        net = load_policy(self.root / name)
        return Subject(name, algo, env_id, net, extra=dict(net.spec.provenance))


class PublicPolicies:
    """The publicly trained agents (`quarl_nb.rl.public_agents`); none where they do not lie."""

    def names(self) -> list[str]:
        return [PUBLIC + name for name in public_agents()]

    def describe(self, name: str) -> tuple[str, str]:
        agent = self._agent(name)
        return agent.algo, agent.env_id

    def load(self, name: str) -> Subject:
        agent = self._agent(name)
        return Subject(
            name, agent.algo, agent.env_id, load_agent(agent.name), agent.make, agent.provenance
        )

    def _agent(self, name: str) -> PublicAgent:
        agents = {PUBLIC + agent.name: agent for agent in public_agents().values()}
        return agents[check_choice("public agent", name, agents)]


def select(source: PolicySource, wanted: Sequence[str]) -> list[str]:
    """`wanted`, each checked; ``["all"]`` means every policy of the source."""
    names = list(source.names())
    if list(wanted) == ["all"]:
        return names
    return [check_choice("policy", name, names) for name in wanted]
