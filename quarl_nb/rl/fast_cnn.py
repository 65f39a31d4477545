"""The Nature CNN of SB3, trained faster: half-precision autocast, channels_last, uint8 in.

The parameters are those of SB3's ``NatureCNN`` (same names, same shapes, fp32), so that a policy
trained here is an ordinary ``CnnPolicy``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.dqn.policies import CnnPolicy as DQNCnnPolicy
from stable_baselines3.dqn.policies import QNetwork
from torch import nn
from torch.nn import functional as F

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.processor import bf16_is_faster
from quarl_nb.rl.wide_conv import is_wide, wide_conv

NATURE_FILTERS = (32, 64, 64)
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def training_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU or processor that is faster in it, float32 elsewhere.

    Without instructions for it the networks of Atari train nine times as slowly in bfloat16 as in
    float32 (on a Zen 3), layers of 1024 units eighty times.
    """
    faster = bf16_is_faster() if device.type == "cpu" else _gpu_has_bfloat16()
    return torch.bfloat16 if faster else torch.float32


@cache
def _gpu_has_bfloat16() -> bool:
    """Not so before Ampere, where torch emulates it."""
    return torch.cuda.is_bf16_supported(including_emulation=False)


class FastNatureCNN(NatureCNN):
    """`NatureCNN` on raw uint8 frames ``[n, 4, 84, 84]`` -> fp32 features ``[n, features_dim]``.

    The division by 255 is folded into the first convolution's weights (bf16 and fp16 hold every
    integer up to 256, so the frames themselves lose nothing).

    Args:
        filters: of the three convolutions.
        precision: bf16, fp16 (which needs a `LossScaler`) or fp32; by default bf16 where that is
            faster (`training_dtype`). Parameters are fp32 always, and so is the decision on a
            single observation.

    Raises:
        QuarlError: (in use) frames of another type, which SB3's own policies hand on, divided.
    """

    def __init__(
        self, observation_space: gym.Space, features_dim: int = 512,
        normalized_image: bool = False, filters: tuple[int, int, int] = NATURE_FILTERS,
        precision: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, features_dim, normalized_image)
        self.dtype: torch.dtype | None = None
        if precision is not None:
            self.dtype = PRECISIONS[check_choice("precision of training", precision, PRECISIONS)]
        if tuple(filters) != NATURE_FILTERS:
            self._resize(*filters)

    def _resize(self, first: int, second: int, third: int) -> None:
        assert self._observation_space.shape is not None
        shape = self._observation_space.shape
        self.cnn[0] = nn.Conv2d(shape[0], first, kernel_size=8, stride=4)
        self.cnn[2] = nn.Conv2d(first, second, kernel_size=4, stride=2)
        self.cnn[4] = nn.Conv2d(second, third, kernel_size=3, stride=1)
        with torch.no_grad():
            flat = self.cnn(torch.zeros(1, *shape)).shape[1]
        self.linear[0] = nn.Linear(flat, self.features_dim)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        if observations.dtype != torch.uint8:
            raise QuarlError(f"FastNatureCNN takes uint8 frames, got {observations.dtype}: it goes "
                             "with the policies of quarl_nb.rl.fast_cnn")  # fmt: skip
        first: nn.Conv2d = self.cnn[0]  # type: ignore[assignment]  # Sequential of convolutions
        dtype = self.dtype or training_dtype(observations.device)
        if len(observations) == 1 and not torch.is_grad_enabled():
            # Casting the weights takes longer than half precision saves on one observation.
            dtype = torch.float32
        device, half = observations.device.type, dtype != torch.float32
        with torch.autocast(device, dtype=dtype if half else None, enabled=half):
            weight, stride = first.weight / 255.0, 4
            if half:
                observations, weight, stride = _bytes_by_block(observations), _by_block(weight), 1
            x = observations.to(dtype, memory_format=torch.channels_last)
            x = F.conv2d(x, weight, first.bias, stride)
            trained = (device, dtype) == ("cpu", torch.bfloat16) and torch.is_grad_enabled()
            for layer in [*self.cnn][1:]:
                x = wide_conv(layer, x) if trained and is_wide(layer) else layer(x)
            features = self.linear(x)
        # numpy knows no bfloat16 and the heads are cheap: leave autocast before them.
        return features.float()


def _by_block(images: torch.Tensor) -> torch.Tensor:
    """``[n, c, 4 h, 4 w]`` -> ``[n, 16 c, h, w]``, channels_last: blocks of 4 x 4 become channels.

    Of frames and filters alike: a convolution of 8 x 8 with stride 4 is one of 2 x 2 with stride 1
    on their blocks. Sixteen times the channels are what the matrix units need: in bf16 on AMX
    the forward and backward pass takes 0.81 to 0.90 of the time, in fp32 the same.
    """
    n, c, h, w = images.shape
    blocks = images.reshape(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 1, 3, 5)
    return blocks.reshape(n, h // 4, w // 4, 16 * c).permute(0, 3, 1, 2)


def _bytes_by_block(frames: torch.Tensor) -> torch.Tensor:
    """`_by_block` of uint8 frames, whose rows past the last block no filter reaches.

    The four bytes of a block's row move as one number, which is four times as fast, and in two
    copies of long runs, which take 0.4 of the time of one in runs of four numbers.
    """
    n, c, h, w = frames.shape
    h, w = h // 4, w // 4
    rows = frames[:, :, : 4 * h, : 4 * w].contiguous().view(torch.int32)
    rows = rows.view(n, c, h, 4 * w).transpose(1, 2).contiguous()
    blocks = rows.view(n, h, 4 * c, w).transpose(2, 3).contiguous()
    return blocks.view(torch.uint8).permute(0, 3, 1, 2)


class LossScaler:
    """Dynamic loss scaling for fp16 (Micikevicius et al. 2018, section 3.2) without a new `train`.

    Small gradients vanish in fp16. Here they are multiplied by `scale` where they enter the
    extractors, and those of the parameters divided by it, so that clipping and optimizer see
    them as they are. As in `torch.amp.GradScaler`, a step with an infinite gradient is left out
    and the scale halved; after `interval` steps without one it is doubled. All of this happens
    where the parameters are: a GPU is not waited for.

    Args:
        extractors: what computes in fp16.
        optimizer: of their parameters, fused: the kernel leaves a step out by itself.

    Attributes:
        scale, good_steps, skipped: tensors of one number.

    Raises:
        QuarlError: the optimizer is not fused.
    """

    def __init__(
        self, extractors: Iterable[nn.Module], optimizer: torch.optim.Optimizer,
        scale: float = 2.0**16, interval: int = 2000,
    ) -> None:  # fmt: skip
        if not optimizer.defaults.get("fused"):
            raise QuarlError("fp16 needs a fused optimizer: optimizer_kwargs=dict(fused=True)")
        self.optimizer, self.interval = optimizer, interval
        extractors = list(extractors)
        self.parameters = [p for extractor in extractors for p in extractor.parameters()]
        device = self.parameters[0].device
        self.scale = torch.tensor(scale, device=device)
        self.good_steps, self.skipped = torch.zeros(2, dtype=torch.int64, device=device)
        for extractor in extractors:
            extractor.register_forward_hook(self._scale_output)
        for parameter in self.parameters:
            parameter.register_hook(lambda grad: grad / self.scale)
        optimizer.register_step_pre_hook(self._before_step)

    def _scale_output(self, module: nn.Module, inputs: Any, features: torch.Tensor) -> None:
        if features.requires_grad:
            features.register_hook(lambda grad: grad * self.scale)

    def _before_step(self, *_: Any) -> None:
        grads = [p.grad for p in self.parameters if p.grad is not None]
        # One that is not finite makes the norm of all so; finite ones, clipped by now, do not.
        overflow = ~torch.nn.utils.get_total_norm(grads).isfinite()
        self.optimizer.found_inf = overflow.float()  # type: ignore[attr-defined]  # of fused ones
        self.skipped += overflow
        self.good_steps.add_(1).mul_(~overflow)
        due = self.good_steps == self.interval
        self.good_steps.mul_(~due)
        self.scale.mul_(1 + due.float() - overflow / 2)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a policy, whose features extractor is ours."""
    for name in ("normalize_images", "share_features_extractor"):
        if not options.get(name, True):
            raise QuarlError(f"policies of the fast CNN have no {name}=False")
    extractor = options.setdefault("features_extractor_class", FastNatureCNN)
    if not (isinstance(extractor, type) and issubclass(extractor, FastNatureCNN)):
        raise QuarlError("policies of the fast CNN extract features by FastNatureCNN, not by "
                         f"{getattr(extractor, '__name__', extractor)}")  # fmt: skip
    return options


class FastActorCriticCnnPolicy(ActorCriticCnnPolicy):
    """`ActorCriticCnnPolicy` for A2C and PPO over one `FastNatureCNN` for actor and critic.

    Frames go to the features extractor as they are, without SB3's copy in fp32. Its versions of
    the last two methods would call the features extractor of the base class, past ours. Hidden
    layers follow it, as SB3 has them after every extractor but its own, unless net_arch=[].

    Raises:
        QuarlError: options that would change nothing (`normalize_images`) or mix frames up
            (`share_features_extractor`), or another features extractor, for divided frames.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **_checked(options))

    def extract_features(self, obs: Any, features_extractor: Any = None) -> Any:
        return (features_extractor or self.features_extractor)(obs)

    def get_distribution(self, obs: Any) -> Distribution:
        latent = self.mlp_extractor.forward_actor(self.extract_features(obs))
        return self._get_action_dist_from_latent(latent)

    def predict_values(self, obs: Any) -> torch.Tensor:
        return self.value_net(self.mlp_extractor.forward_critic(self.extract_features(obs)))


class _FastQNetwork(QNetwork):
    def extract_features(self, obs: Any, features_extractor: Any) -> torch.Tensor:
        return features_extractor(obs)


class FastDQNCnnPolicy(DQNCnnPolicy):
    """DQN's `CnnPolicy` over `FastNatureCNN`; options as of `FastActorCriticCnnPolicy`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **_checked(options))

    def make_q_net(self) -> QNetwork:
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return _FastQNetwork(**net_args).to(self.device)


FAST_CNN_POLICIES = {
    "a2c": FastActorCriticCnnPolicy,
    "ppo": FastActorCriticCnnPolicy,
    "dqn": FastDQNCnnPolicy,
}
