"""What torch's quantized modules, the paper's way, and our payloads cost an actor.

A `state_dict` is read from the bytes it was sent as and loaded. torch packs quantized weights anew
whenever they are loaded (paper, section 3, "Runtime breakdown"), which is timed alone too; a
payload holds what the engine opens.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.ao.nn.quantized.modules.linear import LinearPackedParams

from quarl_nb.errors import QuarlError, check_counts, check_seeds
from quarl_nb.inference import build_payload, open_engine
from quarl_nb.processes import keep_freed_memory
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.studies.inference import layers, random_inputs, random_policy, timed
from quarl_nb.study import Measurement

PACKED = {"fp32": None, "fp16": torch.float16, "int8": torch.qint8}
OPENED = ("fp32", "int8")  # ONNX Runtime computes in no fp16 on a CPU


@dataclass(frozen=True)
class LoadingStudy:
    """Networks of linear layers, by precision: parameters read, loaded and packed by torch, its
    decisions, payloads opened, and the bytes of each way to send a policy.

    Parameters: `networks` (hidden sizes as "2048x3" or "4096-512-1024"), `repeats` (of all that is
    timed), `seed` (of the weights).
    """

    name: str
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 3
    timed: bool = True

    def cells(self, parameters: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """One (cell, budget) a network: its ways of loading are compared within a process."""
        check_counts(1, repeats=parameters["repeats"])
        check_seeds(parameters["seed"])
        for network in parameters["networks"]:
            if any(layer.kind == "conv2d" for layer in layers(network)):
                raise QuarlError(f"{network}: torch quantizes no convolution dynamically")
        budget = {"repeats": parameters["repeats"]}
        return [({"network": network, "seed": parameters["seed"]}, budget)
                for network in parameters["networks"]]  # fmt: skip

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Time everything in turn, so that a busy machine slows all of it alike.

        `deserialize_<precision>_s`, `state_dict_<precision>_s`, `pack_<precision>_s`,
        `decide_<precision>_s` and `open_<precision>_s` hold the seconds of every repeat;
        `<form>_<precision>_bytes` are of `sent_bytes`.
        """
        torch.set_num_threads(1)
        keep_freed_memory()  # as in an actor
        net = random_policy(cell["network"], cell["seed"])
        calls: dict[str, Callable[[], Any]] = {}
        for precision, dtype in PACKED.items():
            calls[f"deserialize_{precision}"] = torch_reader(net, precision)
            calls[f"state_dict_{precision}"] = torch_loader(net, precision)
            calls[f"decide_{precision}"] = torch_decider(net, precision, cell["seed"])
            if dtype:
                calls[f"pack_{precision}"] = torch_packer(net, precision)
        calls |= {f"open_{precision}": payload_opener(net, precision) for precision in OPENED}
        for call in calls.values():
            call()  # the first allocates
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(budget["repeats"]):
            for name, call in calls.items():
                seconds[name].append(timed(call))
        measured = {f"{name}_s": times for name, times in seconds.items()} | {
            f"{form}_{precision}_bytes": n_bytes
            for precision in PACKED for form, n_bytes in sent_bytes(net, precision).items()
        }  # fmt: skip
        extra = {"weights": "random", "weights_seed": cell["seed"]}
        return Measurement(measured, backend="torch and onnxruntime", extra=extra)


def sent_bytes(net: PolicyNet, precision: str) -> dict[str, int]:
    """Of torch's module: its `state_dict`, all of it pickled, TorchScript; and (but for fp16, which
    it does not compute in) of our payload for ONNX Runtime."""
    model, scripted = _torch_model(net, precision), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.script(model), scripted)
    found = {"state_dict": len(_serialized(model.state_dict())), "module": len(_serialized(model)),
             "torchscript": len(scripted.getvalue())}  # fmt: skip
    if precision in OPENED:
        found["payload"] = len(build_payload(net, precision, runtime="onnxruntime"))
    return found


def _serialized(sent: Any) -> bytes:
    file = io.BytesIO()
    torch.save(sent, file)
    return file.getvalue()


def torch_reader(net: PolicyNet, precision: str) -> Callable[[], Any]:
    """What comes before loading: a `state_dict` from bytes. Of fp16 torch keeps weights as fp32 in
    it, and packs them into 16 bits when they are loaded."""
    sent = _serialized(_torch_model(net, precision).state_dict())

    def read() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of the storages it reads int8 into
            return torch.load(io.BytesIO(sent), weights_only=True)

    return read


def torch_decider(net: PolicyNet, precision: str, seed: int) -> Callable[[], Any]:
    """One decision: the module on one observation."""
    model, obs = _torch_model(net, precision), torch.as_tensor(random_inputs(net, 1, seed))
    return torch.inference_mode()(lambda: model(obs))


def torch_loader(net: PolicyNet, precision: str) -> Callable[[], Any]:
    """What a torch actor does with new parameters: `load_state_dict`, which packs fp16 and int8."""
    model, state = _torch_model(net, precision), _torch_model(net, precision).state_dict()
    return lambda: model.load_state_dict(state)


def torch_packer(net: PolicyNet, precision: str) -> Callable[[], Any]:
    """The packing of fp16 or int8 weights, without the rest of `load_state_dict`."""
    layers = [module for module in _torch_model(net, precision).modules()
              if isinstance(module, LinearPackedParams)]  # fmt: skip
    unpacked = [layer._weight_bias() for layer in layers]
    return lambda: [layer.set_weight_bias(*weight_bias)
                    for layer, weight_bias in zip(layers, unpacked, strict=True)]  # fmt: skip


def _torch_model(net: PolicyNet, precision: str) -> nn.Module:
    model, dtype = copy.deepcopy(nn.Sequential(*net.layers)), PACKED[precision]
    if dtype is None:
        return model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=dtype)


def payload_opener(net: PolicyNet, precision: str) -> Callable[[], Any]:
    """What our actors do: open a payload in ONNX Runtime."""
    payload = build_payload(net, precision, runtime="onnxruntime")
    return lambda: open_engine(payload)


SMOKE = {"networks": ["64x3"], "repeats": 3, "seed": 0}
QUICK = SMOKE | {"networks": ["64x3", "256x3", "2048x3"], "repeats": 10}
FULL = QUICK | {"networks": ["64x3", "256x3", "512x3", "1024x3", "2048x3", "4096x3",
                             "4096-512-1024"], "repeats": 50}  # fmt: skip
LOADING = LoadingStudy("loading", {"smoke": SMOKE, "quick": QUICK, "full": FULL})
