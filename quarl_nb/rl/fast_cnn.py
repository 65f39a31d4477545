"""The Nature CNN of SB3, trained faster on a CPU: bf16 autocast, channels_last, uint8 in.

The parameters are those of SB3's ``NatureCNN`` (same names, same shapes, fp32), so that a policy
trained here is an ordinary ``CnnPolicy``.
"""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.dqn.policies import CnnPolicy as DQNCnnPolicy
from stable_baselines3.dqn.policies import QNetwork
from torch import nn
from torch.nn import functional as F


class FastNatureCNN(NatureCNN):
    """`NatureCNN` on raw uint8 frames ``[n, 4, 84, 84]`` -> fp32 features ``[n, features_dim]``.

    The division by 255 is folded into the first convolution's weights (bf16 holds every
    integer up to 256, so the frames themselves lose nothing).
    """

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        first: nn.Conv2d = self.cnn[0]  # type: ignore[assignment]  # Sequential of convolutions
        device = observations.device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            x = observations.to(torch.bfloat16, memory_format=torch.channels_last)
            x = F.conv2d(x, first.weight / 255.0, first.bias, stride=first.stride)
            features = self.linear(self.cnn[1:](x))
        # numpy knows no bfloat16 and the heads are cheap: leave autocast before them.
        return features.float()


class FastActorCriticCnnPolicy(ActorCriticCnnPolicy):
    """`ActorCriticCnnPolicy` for A2C and PPO over one `FastNatureCNN` for actor and critic.

    Frames go to the features extractor as they are, without SB3's copy in fp32. Its versions of
    the last two methods would call the features extractor of the base class, past ours.
    """

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
    """DQN's `CnnPolicy` over `FastNatureCNN`."""

    def make_q_net(self) -> QNetwork:
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return _FastQNetwork(**net_args).to(self.device)


FAST_CNN_POLICIES = {
    "a2c": FastActorCriticCnnPolicy,
    "ppo": FastActorCriticCnnPolicy,
    "dqn": FastDQNCnnPolicy,
}
