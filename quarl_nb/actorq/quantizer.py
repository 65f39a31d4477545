"""The parameter quantizer: newest weights in, a payload that an actor only has to open out."""

from __future__ import annotations

import copy

from quarl_nb.actorq.settings import ActorTask, Settings
from quarl_nb.actorq.variables import Variables
from quarl_nb.actorq.wire import decode, encode
from quarl_nb.errors import QuarlError, users_own
from quarl_nb.inference import make_payload
from quarl_nb.inference.payload import Payload
from quarl_nb.inference.payload import encode as encode_payload
from quarl_nb.rl.policy_net import PolicyNet, check_without_hooks


def make_variables(net: PolicyNet, version: int, task: ActorTask) -> Variables:
    """Post-training quantization of a policy that the learner publishes (paper, section 2).

    Raises:
        QuarlError: the network cannot run in the precision asked for, or holds NaN; the
            user's own quantizer raised.
    """
    settings = task.settings
    if task.quantizer is not None:
        with users_own("the quantizer"):
            # It may work in place, and on a CPU the policy's weights are the learner's own.
            net = task.quantizer(copy.deepcopy(net))
        if not isinstance(net, PolicyNet):
            raise QuarlError(f"the quantizer returned {type(net).__name__}, not a PolicyNet")
    if sent_ready_to_open(settings):
        return Variables(version, encode_payload(_payload(net, task)))
    assert settings.communication is not None
    # Only weights travel; a payload holds layers, and refuses hooks, itself.
    check_without_hooks(net)
    if net.spec.layers != task.spec.layers:
        raise QuarlError("the quantizer returned other layers than the policy's: weights sent in "
                         f"{settings.communication} are opened as the policy's own")  # fmt: skip
    return Variables(version, encode(net, settings.communication))


def deserialize(variables: Variables, task: ActorTask) -> bytes | Payload:
    """What an actor opens: the payload itself, or one that it makes of the weights it was sent."""
    if sent_ready_to_open(task.settings):
        return variables.payload
    return _payload(decode(variables.payload, task.spec), task)


def sent_ready_to_open(settings: Settings) -> bool:
    """Whether weights travel in the precision that actors compute in."""
    return settings.communication in (None, settings.precision)


def _payload(net: PolicyNet, task: ActorTask) -> Payload:
    settings = task.settings
    return make_payload(
        net, settings.precision, runtime=settings.runtime, calibration=task.calibration
    )
