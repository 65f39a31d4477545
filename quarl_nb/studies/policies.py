"""Where a study's policies come from: the suite, its user, or the publicly trained agents."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.paths import entries, policies_folder
from quarl_nb.rl.envs import named_by_file
from quarl_nb.rl.fits import check_fits
from quarl_nb.rl.policies import DESCRIPTION, PolicyNet, load_digest, load_policy, load_spec
from quarl_nb.rl.public.agents import KNOWN, PublicAgent, load_agent, public_agents
from quarl_nb.rl.random_actions import random_actions_of
from quarl_nb.rl.recipes import recipes

PUBLIC = "public/"


@dataclass(frozen=True)
class Subject:
    """A policy to measure and the environment to measure it in.

    Attributes:
        make: factory of one environment, where `env_id` alone does not name it.
        extra: for its records, where the policy came from (source, licence, which training).
    """

    name: str
    algo: str
    env_id: str
    net: PolicyNet
    make: Callable[[], gym.Env] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class PolicySource(Protocol):
    """A named collection of policies."""

    def names(self) -> Sequence[str]:
        """Those that "all" stands for."""
        ...

    def describe(self, name: str) -> tuple[str, str]:
        """(algo, env_id) of a policy; QuarlError if there is none of that name."""
        ...

    def random_actions(self, name: str) -> float:
        """The share of random actions that it is evaluated with."""
        ...

    def version(self, name: str) -> dict[str, str]:
        """For a budget: what tells a policy from one that had its name before; else nothing."""
        ...

    def load(self, name: str) -> Subject: ...


@dataclass(frozen=True)
class TrainedPolicies:
    """The policies under ``data/policies``: trained by `quarl-nb train`, and the user's own.

    One's own are asked for by name: "all" stands for those with a recipe. Whoever saves a policy
    there trusts its environment: where that is `its_module:its_id`, the module is imported.

    Attributes:
        pattern: of their names; by default those named after their environment (Table 4's).
    """

    pattern: str = "*-v[0-9]"

    @property
    def root(self) -> Path:
        return policies_folder()

    def names(self) -> list[str]:
        known = recipes()
        return [name for name in self._folders(self.pattern) if name in known]

    def describe(self, name: str) -> tuple[str, str]:
        known = recipes()
        own = [folder for folder in self._folders("*") if folder not in known]
        anything = "one that save_policy wrote to data/policies"
        check_choice("policy", name, [anything, *self.names(), *own])
        if name in known:
            return known[name].algo, known[name].env_id
        spec = load_spec(self.root / name)
        if spec.env_id is None:
            raise QuarlError(f"policy {name!r} does not say where it acts: save it with an env_id")
        return spec.algo, spec.env_id

    def _folders(self, pattern: str) -> list[str]:
        return [path.name for path in entries(self.root, pattern)
                if (path / DESCRIPTION).exists()]  # fmt: skip

    def random_actions(self, name: str) -> float:
        return random_actions_of(load_spec(self.root / name).head, self.describe(name)[1])

    def version(self, name: str) -> dict[str, str]:
        # The suite's own lie beside their records, which --recompute measures anew.
        return {} if name in recipes() else {"tensors_sha256": load_digest(self.root / name)}

    def load(self, name: str) -> Subject:
        algo, env_id = self.describe(name)
        net = load_policy(self.root / name)
        # Its hyperparameters and packages stand in its description, once and not in each record.
        origin = {k: v for k, v in net.spec.provenance.items() if not isinstance(v, Mapping)}
        return Subject(name, algo, env_id, net, extra=origin)


class PublicPolicies:
    """The publicly trained agents (`quarl_nb.rl.public.agents`); none where they do not lie."""

    def names(self) -> list[str]:
        return [PUBLIC + name for name in public_agents()]

    def describe(self, name: str) -> tuple[str, str]:
        agent = self._agent(name)
        return agent.algo, agent.env_id

    def random_actions(self, name: str) -> float:
        return 0.0  # what its author's evaluation draws, its environment does

    def version(self, name: str) -> dict[str, str]:
        agent = self._agent(name)
        digest = agent.digest()
        # The known ones' records, which are shipped, go by the name alone.
        return {} if digest[:16] == KNOWN.get(agent.name) else {"tensors_sha256": digest}

    def load(self, name: str) -> Subject:
        agent = self._agent(name)
        return Subject(
            name, agent.algo, agent.env_id, load_agent(agent.name), agent.make, agent.provenance
        )

    def _agent(self, name: str) -> PublicAgent:
        agents = {PUBLIC + agent.name: agent for agent in public_agents().values()}
        agent = agents[check_choice("public agent", name, agents)]
        named_by_file(agent.env_id)  # index.json is a file, too
        return agent


def select(source: PolicySource, wanted: Sequence[str]) -> list[str]:
    """`wanted`, each checked; ``["all"]`` means every policy of the source."""
    if list(wanted) == ["all"]:
        return list(source.names())
    for name in wanted:
        source.describe(name)
    return list(wanted)


def load_acting(
    source: str | Path,
    env_id: str | None = None,
    vecnormalize: str | Path | None = None,
    activation: str | None = None,
) -> Subject:
    """A policy, and the environment where it acts: `env_id`, by default what the policy says.

    One of data/policies is trusted with naming a module's environment, as in the studies. A public
    agent acts in its author's wrappers, unless `env_id` names another environment.

    Args:
        source: an SB3 zip, a policy folder, or `hub:sb3/ppo-CartPole-v1`.
        vecnormalize, activation: of an SB3 zip, where they do not lie in it or beside it.

    Raises:
        QuarlError: the policy cannot be read, does not fit the environment (`check_fits`), or no
            environment is known, or only by its file, of a module whose code would run.
    """
    net = load_policy(source, env_id=env_id, vecnormalize=vecnormalize, activation=activation)
    text, make = str(source), None
    if env_id is None and text.startswith(PUBLIC) and not Path(text).exists():
        make = public_agents()[text.removeprefix(PUBLIC)].make
    trusted = Path(os.path.abspath(source)).parent == TrainedPolicies().root
    env_id = env_id or (net.spec.env_id if trusted else named_by_file(net.spec.env_id))
    if env_id is None:
        raise QuarlError(f"'{source}' does not say where it acts: name it (--env, env_id=)")
    check_fits(net, env_id, make)
    return Subject(Path(text).stem, net.spec.algo, env_id, net, make)
