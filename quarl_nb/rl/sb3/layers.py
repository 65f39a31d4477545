"""The acting path of every stable-baselines3 policy as PolicyNet layers, from its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from quarl_nb.errors import QuarlError
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import Head, PolicyNet, PolicySpec
from quarl_nb.rl.safe_pickle import ObsNormalization
from quarl_nb.rl.sb3.batch_norm import EPSILON, fold_batch_norm
from quarl_nb.rl.sb3.spaces import ActionSpace, ObsSpace

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Acting:
    """What the tensors alone do not tell about how a model acts.

    Attributes:
        activation: kind of the hidden layers' activation; None if it cannot be known.
        squash: A2C, PPO, TRPO and ARS: SB3's `squash_output`.
        clip_mean: SAC, TQC and CrossQ with gSDE: bound of the mean before tanh.
        batch_norm_eps: CrossQ: what batch normalization adds to its variance.
        divide_images: whether images are divided by 255 (SB3's `normalize_images`).
    """

    algo: str
    obs: ObsSpace
    action: ActionSpace
    activation: str | None
    squash: bool = False
    clip_mean: float = 2.0
    batch_norm_eps: float = EPSILON
    divide_images: bool = True


@dataclass(frozen=True)
class Family:
    """Where policies of a kind keep their tensors.

    Attributes:
        features: prefixes of the features extractor, the first found is used.
        trunk: prefixes of layers that are each followed by the activation.
        output: prefix of the last layers, ending in a Linear one.
        activation: SB3's default.
        tanh: whether the mean passes through tanh; None: as `squash_output` says.
    """

    features: tuple[str, ...]
    trunk: tuple[str, ...]
    output: str
    activation: str
    tanh: bool | None = None


_ON_POLICY = Family(
    features=("pi_features_extractor.", "features_extractor."),
    trunk=("mlp_extractor.shared_net.", "mlp_extractor.policy_net."),
    output="action_net.",
    activation="tanh",
)
_TD3 = Family(("actor.features_extractor.",), (), "actor.mu.", "relu", tanh=True)
_SAC = Family(("actor.features_extractor.",), ("actor.latent_pi.",), "actor.mu.", "relu", tanh=True)
FAMILIES = {
    "a2c": _ON_POLICY,
    "ppo": _ON_POLICY,
    "trpo": _ON_POLICY,
    "ars": Family((), (), "action_net.", "relu"),
    "dqn": Family(("q_net.features_extractor.",), (), "q_net.q_net.", "relu"),
    "qrdqn": Family(
        ("quantile_net.features_extractor.",), (), "quantile_net.quantile_net.", "relu"
    ),
    "d4pg": _TD3,
    "ddpg": _TD3,
    "td3": _TD3,
    "sac": _SAC,
    "tqc": _SAC,
    "crossq": _SAC,
}


def algorithm_of(tensors: Tensors, settings: Mapping[str, Any]) -> str:
    """The algorithm, by its tensors' names and those of its settings that only it has."""

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in tensors)

    if has("lstm_actor."):
        raise QuarlError("unsupported: recurrent policies of sb3-contrib (RecurrentPPO)")
    # Without hidden layers there is no latent_pi; log_std is a layer, or with gSDE a parameter.
    if has("actor.latent_pi.") or has("actor.log_std"):
        if "top_quantiles_to_drop_per_net" in settings:
            return "tqc"
        return "sac" if has("critic_target.") else "crossq"  # which has no target networks
    if "critic.atoms" in tensors:
        return "d4pg"
    if has("actor.mu."):
        plain = settings.get("policy_delay") == 1 and settings.get("target_noise_clip") == 0
        return "ddpg" if plain else "td3"
    if has("q_net.q_net."):
        return "dqn"
    if has("quantile_net.quantile_net."):
        return "qrdqn"
    if has("action_net.0."):
        return "ars"
    if has("action_net."):
        if "cg_max_steps" in settings:
            return "trpo"
        return "ppo" if "clip_range" in settings else "a2c"
    raise QuarlError(f"unsupported policy; known algorithms: {', '.join(sorted(FAMILIES))}")


def build_policy(
    acting: Acting,
    tensors: Tensors,
    env_id: str | None,
    normalization: ObsNormalization | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> PolicyNet:
    """A PolicyNet from SB3's tensors; QuarlError naming what is not supported."""
    family = FAMILIES[acting.algo]
    if acting.algo == "crossq":
        tensors = fold_batch_norm(tensors, acting.batch_norm_eps)
    layers = _Layers(tensors)
    if normalization is not None:
        layers.normalize(normalization)
    if acting.obs.image and acting.divide_images:
        layers.add("divide", by=255.0)
    found = [p for p in family.features if any(name.startswith(p) for name in tensors)]
    if found:
        layers.nature_cnn(found[0])
    else:
        layers.add("flatten")
    for prefix in family.trunk:
        layers.mlp(prefix, acting.activation, last_activation=True)
    outputs = layers.mlp(family.output, acting.activation, last_activation=False)
    n_actions = acting.action.n
    if n_actions and acting.algo == "qrdqn":
        layers.add("quantile_mean", n_quantiles=outputs // n_actions, n_actions=n_actions)
    elif n_actions and outputs != n_actions:
        raise QuarlError(f"{outputs} outputs for {n_actions} actions")
    if family is _SAC and f"{family.output}0.weight" in tensors and acting.clip_mean > 0:
        # With gSDE the mean is Sequential(Linear, Hardtanh).
        layers.add("hardtanh", min_val=-acting.clip_mean, max_val=acting.clip_mean)
    squash = acting.squash if family.tanh is None else family.tanh
    spec = PolicySpec(
        acting.algo, env_id, acting.obs.shape, tuple(layers.layers),
        _head(acting.action, squash), provenance or {},
    )
    return PolicyNet(spec, layers.tensors)


def _head(action: ActionSpace, squash: bool) -> Head:
    if action.n is not None:
        return Head("argmax")
    if action.low is None or action.high is None:
        raise QuarlError("its action bounds cannot be known safely: give env_id=...")
    low, high = (tuple(float(x) for x in bound.ravel()) for bound in (action.low, action.high))
    return Head("tanh_scale" if squash else "clip", low, high, action.low.shape)


class _Layers:
    """Collects layers, and their tensors under the names that PolicyNet gives them."""

    def __init__(self, source: Tensors) -> None:
        self.source = source
        self.layers: list[Layer] = []
        self.tensors: dict[str, torch.Tensor] = {}

    def add(self, kind: str, tensors: Tensors | None = None, **options: Any) -> None:
        for name, tensor in (tensors or {}).items():
            self.tensors[f"layers.{len(self.layers)}.{name}"] = tensor
        self.layers.append(Layer(kind, options))

    def normalize(self, statistics: ObsNormalization) -> None:
        mean, var = (
            torch.tensor(values, dtype=torch.float64)
            for values in (statistics.mean, statistics.var)
        )
        self.add(
            "normalize", {"mean": mean, "var": var}, shape=list(mean.shape),
            epsilon=statistics.epsilon, clip=statistics.clip,
        )

    def nature_cnn(self, prefix: str) -> None:
        """SB3's ``NatureCNN`` (``FlattenExtractor``, the other one, has no tensors)."""
        names = {name.removeprefix(prefix) for name in self.source if name.startswith(prefix)}
        linear_layers = [*(f"cnn.{i}." for i in (0, 2, 4)), "linear.0."]
        if names != {layer + part for layer in linear_layers for part in ("weight", "bias")}:
            raise QuarlError("unsupported features extractor; known: FlattenExtractor, NatureCNN")
        for i, stride in zip((0, 2, 4), (4, 2, 1), strict=True):
            tensors = self._parameters(f"{prefix}cnn.{i}.")
            out_channels, in_channels, *kernel = tensors["weight"].shape
            self.add(
                "conv2d", tensors, in_channels=in_channels, out_channels=out_channels,
                kernel_size=kernel, stride=stride,
            )
            self.add("relu")
        self.add("flatten")
        self._linear(f"{prefix}linear.0.")
        self.add("relu")

    def mlp(self, prefix: str, activation: str | None, last_activation: bool) -> int:
        """SB3's ``create_mlp`` (Linear layers at even places) or one bare Linear layer.

        Returns:
            the number of outputs, 0 if there is no layer.
        """
        names = [name.removeprefix(prefix) for name in self.source if name.startswith(prefix)]
        bare = set(names) <= {"weight", "bias"}
        places = sorted({name.split(".")[0] for name in names}, key=lambda p: (len(p), p))
        linear = [prefix] * bool(names) if bare else [f"{prefix}{place}." for place in places]
        even = bare or places == [str(2 * i) for i in range(len(places))]
        if not even or any(self.source.get(f"{p}weight", _NONE).ndim != 2 for p in linear):
            raise QuarlError(f"unsupported layers '{prefix}*'; known: Linear with activations")
        outputs = 0
        for i, name in enumerate(linear):
            outputs = self._linear(name)
            if last_activation or i < len(linear) - 1:
                if activation is None:
                    raise QuarlError(
                        "the activation of its hidden layers cannot be known safely: "
                        "give activation=..., or --activation"
                    )
                self.add(activation)
        return outputs

    def _linear(self, prefix: str) -> int:
        tensors = self._parameters(prefix)
        outputs, inputs = tensors["weight"].shape
        self.add(
            "linear", tensors, in_features=inputs, out_features=outputs, bias="bias" in tensors
        )
        return outputs

    def _parameters(self, prefix: str) -> dict[str, torch.Tensor]:
        parts = ("weight", "bias")
        return {part: self.source[prefix + part] for part in parts if prefix + part in self.source}


_NONE = torch.zeros(())
