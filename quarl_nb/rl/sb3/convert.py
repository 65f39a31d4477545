"""Policies from stable-baselines3 and sb3-contrib: a live model, or a zip without its pickles."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from quarl_nb.errors import QuarlError, brief, one_line
from quarl_nb.rl.envs import close, make_env
from quarl_nb.rl.layers import activation_kind, class_path, kind_of_class
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.safe_pickle import (
    ObsNormalization,
    open_zip,
    read_member,
    read_tensors,
    read_vecnormalize,
)
from quarl_nb.rl.sb3.batch_norm import EPSILON
from quarl_nb.rl.sb3.environment import env_id_of, warn_of_changes
from quarl_nb.rl.sb3.layers import (
    FAMILIES,
    Acting,
    Tensors,
    algorithm_of,
    build_policy,
)
from quarl_nb.rl.sb3.normalization import find_normalization
from quarl_nb.rl.sb3.spaces import ActionSpace, action_in, action_of, obs_in, obs_of

logger = logging.getLogger(__name__)

# Names that today's Gymnasium gives to environments that old policies were trained on. It still has
# MuJoCo's v4, which v5 differs from in friction, rewards and observations.
MODERN_ENV_IDS = {
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    **{
        f"{name}-v{version}": f"{name}-v5"
        for name in ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
        for version in (2, 3)
    },
}
# Elsewhere a class may act in ways that its tensors do not show.
_KNOWN_PACKAGES = ("stable_baselines3", "sb3_contrib", "quarl_nb")
_KNOWN_EXTRACTORS = (
    "stable_baselines3.common.torch_layers.FlattenExtractor",
    "stable_baselines3.common.torch_layers.NatureCNN",
    "quarl_nb.rl.fast_cnn.FastNatureCNN",
)
# Before an id and a hyphen: a word in one case, as `ppo` and `PPO` are and parts of names are not.
_ENV_ID = re.compile(
    r"(?:^|_|(?:^|[-_])(?:[a-z0-9]+|[A-Z0-9]+)-)([A-Z][A-Za-z0-9]*-v\d+)(?:_\d+)?$"
)
# As Python writes a class, and `functools.partial` of one without options.
_CLASS = re.compile(r"(?:functools\.partial\()?<class '([^']+)'>\)?")


def policy_from_model(
    model: Any,
    *,
    env_id: str | None = None,
    normalization: ObsNormalization | None = None,
    tensors: Tensors | None = None,
) -> PolicyNet:
    """The acting path of a live stable-baselines3 or sb3-contrib model.

    Args:
        env_id: where it acts (default: the id of the model's environment, if it has one; what else
            makes that environment, its arguments and wrappers, is logged: a policy keeps none).
        normalization: observation statistics (default: those of the model's ``VecNormalize``).
        tensors: its policy's `state_dict` on the CPU, whose memory the path then shares: of the
            model's own it follows the training (default: a copy). Weights that batch normalization
            is folded into (CrossQ) are always new ones.

    Raises:
        QuarlError: recurrent, a custom network, a space other than Box and Discrete, normalized
            inside another wrapper, or prepared for quantization-aware training
            (`quarl_nb.rl.qat.export_qat` reads those).
    """
    policy = model.policy
    if env_id is None and tensors is None:
        warn_of_changes(model)
    observations = obs_of(model.observation_space)
    _check_known(type(policy).__module__, class_path(policy.features_extractor_class))
    if tensors is None:
        tensors = {k: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
                   for k, t in policy.state_dict().items()}  # fmt: skip
    if _quantization_aware(tensors):
        raise QuarlError("quantization-aware policy: export it with quarl_nb.rl.qat.export_qat")
    actor, activation = getattr(policy, "actor", None), repr(policy.activation_fn)
    acting = Acting(
        algorithm_of(tensors, vars(model)),
        observations,
        action_of(model.action_space),
        _stated_activation(activation) or kind_of_class(activation),
        squash=bool(policy.squash_output),
        clip_mean=float(getattr(actor, "clip_mean", 2.0)),
        batch_norm_eps=getattr(policy, "batch_norm_params", {}).get("batch_norm_eps", EPSILON),
        divide_images=bool(policy.normalize_images),
    )
    normalizer = model.get_vec_normalize_env()
    if normalization is None and normalizer is not None and normalizer.norm_obs:
        inner, outer = normalizer.observation_space.shape, model.observation_space.shape
        if inner != outer:  # of a dictionary: None
            raise QuarlError(f"its VecNormalize lies inside another wrapper, where observations "
                             f"are {inner or 'a dictionary'}, not {outer}: put it outermost")
        rms = normalizer.obs_rms
        normalization = ObsNormalization(
            rms.mean, rms.var, normalizer.epsilon, normalizer.clip_obs
        )
    if normalization is None and normalizer is None:
        _warn_of_raw("the model", acting.algo, vars(model), "normalization")
    return build_policy(acting, tensors, env_id or env_id_of(model), normalization)


def policy_from_zip(
    file: str | Path,
    *,
    env_id: str | None = None,
    activation: str | None = None,
    vecnormalize: str | Path | None = None,
) -> PolicyNet:
    """A stable-baselines3 zip, read without running any pickle.

    ``policy.pth`` goes through ``torch.load(weights_only=True)``, ``data`` is read as JSON. What
    SB3 writes there as plain text beside each ``:serialized:`` pickle is enough.

    Args:
        env_id: where it acts (default: from the name, as in ``CartPole-v1.zip``).
        activation: of the hidden layers; needed only where the zip does not tell it.
        vecnormalize: its normalization statistics (default: the file that lies by the zip where
            SB3's `CheckpointCallback` or the RL Zoo puts it, which is logged).

    Raises:
        QuarlError: damaged, a zip bomb, not SB3's, unsupported, not to be known safely, or of a
            quantization-aware model (`prepare_qat` says how to reopen one).
    """
    path = Path(file)
    what = f"'{path}'"
    with open_zip(path, what) as archive:
        data = _read_json(read_member(archive, "data", what), what)
        tensors = read_tensors(read_member(archive, "policy.pth", what), f"policy.pth in {what}")
    if _quantization_aware(tensors):
        raise QuarlError(
            f"{what} is a quantization-aware model: make it anew, prepare_qat it with the same "
            "arguments, set_parameters(zip), then export_qat it; save_policy keeps the result"
        )
    trained_on = env_id_in(path)
    env_id = env_id or (trained_on and MODERN_ENV_IDS.get(trained_on, trained_on))
    with _errors_of(what):  # before the statistics, which none reads of spaces that are refused
        acting = _acting_of(data, tensors, env_id, activation)
    statistics = vecnormalize or find_normalization(path)
    normalization = read_vecnormalize(statistics) if statistics else None
    provenance = {"file": path.name, "trained_on": trained_on}
    with _errors_of(what):
        if normalization is not None and normalization.mean.shape != acting.obs.shape:
            raise QuarlError(
                f"'{statistics}' normalizes observations {list(normalization.mean.shape)}, not "
                f"{list(acting.obs.shape)}: move it away, or give the model's own vecnormalize=..."
            )
        net = build_policy(acting, tensors, env_id, normalization, provenance)
    if normalization is not None and not vecnormalize:
        logger.info("observations normalized by '%s'", statistics)
    if statistics is None:
        _warn_of_raw(what, net.spec.algo, data, "vecnormalize")
    return net


@contextmanager
def _errors_of(what: str) -> Iterator[None]:
    """Say of which file its errors are."""
    try:
        yield
    except QuarlError as error:
        raise QuarlError(f"{what}: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise QuarlError(f"'data' in {what} is damaged: {one_line(error)}") from error


def _warn_of_raw(what: str, algo: str, settings: Mapping[str, Any], option: str) -> None:
    # SB3 keeps the raw observations beside those that VecNormalize made of them; off-policy
    # algorithms do in any case.
    if algo in ("a2c", "ppo") and settings.get("_last_original_obs") is not None:
        logger.warning("%s was trained with VecNormalize, whose statistics were not found: it acts "
                       "on raw observations; give %s=... unless it had norm_obs=False",
                       what, option)  # fmt: skip


def env_id_in(path: Path) -> str | None:
    """The environment in a file's or its folder's name: ``ppo-CartPole-v1`` -> ``CartPole-v1``.

    The RL Zoo numbers its folders: ``CartPole-v1_2``. ``My-Project-v2`` names no environment.
    """
    for name in (path.stem, path.parent.name):
        found = _ENV_ID.search(name)
        if found:
            return found[1]
    return None


def _acting_of(
    data: Mapping[str, Any], tensors: Tensors, env_id: str | None, activation: str | None
) -> Acting:
    algo = algorithm_of(tensors, data)
    policy, kwargs = _object(data, "policy_class"), _object(data, "policy_kwargs")
    extractor = str(kwargs.get("features_extractor_class", ""))
    found = re.fullmatch(r"<class '(.+)'>", extractor)
    _check_known(str(policy.get("__module__")), found[1] if found else extractor or None)
    known = _stated_activation(str(kwargs.get("activation_fn", "")))
    if known is None and "policy_kwargs" in data and "activation_fn" not in kwargs:
        known = FAMILIES[algo].activation
    if activation is not None and known not in (None, activation_kind(activation)):
        raise QuarlError(f"activation '{activation}' given, but the zip says '{known}'")
    linear_ars = "ARSLinearPolicy" in str(policy.get("__init__"))
    squash = kwargs.get("squash_output", algo == "ars" and not linear_ars)
    return Acting(
        algo,
        obs_in(_object(data, "observation_space")),
        _actions_of(data, env_id),
        known or (activation and activation_kind(activation)),
        squash=str(squash) == "True",
        clip_mean=float(kwargs.get("clip_mean", 2.0)),
        batch_norm_eps=float(kwargs.get("batch_norm_eps", EPSILON)),
        divide_images=str(kwargs.get("normalize_images", True)) == "True",
    )


def _actions_of(data: Mapping[str, Any], env_id: str | None) -> ActionSpace:
    """The actions of a zip; where it does not tell their bounds, those of the environment."""
    actions = action_in(_object(data, "action_space"))
    if env_id is None or actions.n is not None or actions.low is not None:
        return actions
    env = make_env(env_id)
    close(env)
    return action_of(env.action_space)


def _stated_activation(text: str) -> str | None:
    """The kind of the class that SB3 wrote as `text`; None where that names no class."""
    found = _CLASS.fullmatch(text)
    if found is None and text.startswith("functools.partial("):
        raise QuarlError(f"unsupported: an activation with options, {brief(text)}")
    return kind_of_class(found[1]) if found else None


def _quantization_aware(tensors: Tensors) -> bool:
    """Whether `quarl_nb.rl.qat.prepare_qat` has put quantizers between a policy's tensors."""
    return any("_quantizer." in name for name in tensors)


def _check_known(module: str, extractor: str | None) -> None:
    if module.split(".")[0] not in _KNOWN_PACKAGES:
        raise QuarlError(f"unsupported: a custom policy class, from '{module}'")
    if "maskable" in module:  # its tensors alone look like those of PPO
        raise QuarlError("unsupported: action masks of sb3-contrib (MaskablePPO)")
    if extractor is not None and extractor not in _KNOWN_EXTRACTORS:
        raise QuarlError(
            f"unsupported features extractor '{brief(extractor)}'; known: FlattenExtractor and "
            "NatureCNN of stable_baselines3"
        )


def _object(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _read_json(payload: bytes, what: str) -> dict[str, Any]:
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise QuarlError(f"'data' in {what} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise QuarlError(f"'data' in {what} is not a JSON object")
    return data
