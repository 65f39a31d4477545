"""DQN on vectors, whose hidden layers train in half precision."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn


class _HalfQNetwork(QNetwork):
    def forward(self, obs: Any) -> torch.Tensor:
        assert isinstance(self.q_net, nn.Sequential)
        features = self.extract_features(obs, self.features_extractor)
        *hidden, head = self.q_net  # a slice would be a module that is built anew
        with torch.autocast(features.device.type, torch.bfloat16):
            for layer in hidden:
                features = layer(features)
        # Action values of 100 that differ by 1 are the same in bfloat16.
        return head(features.float())


class HalfDQNPolicy(DQNPolicy):
    """DQN's `MlpPolicy` with hidden layers in bfloat16; weights and action values stay in fp32.

    The parameters are those of SB3's policy: same names, same shapes, fp32.
    """

    def make_q_net(self) -> QNetwork:
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return _HalfQNetwork(**net_args).to(self.device)
