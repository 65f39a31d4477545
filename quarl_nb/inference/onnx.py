"""ONNX Runtime behind `Engine`; opening and running need numpy and onnxruntime alone."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from quarl_nb.errors import QuarlError
from quarl_nb.inference.engine import check_observations
from quarl_nb.inference.payload import Payload
from quarl_nb.processor import saturates_int8

INPUT, OUTPUT = "obs", "outputs"
_PROVIDERS = ["CPUExecutionProvider"]
ort.disable_telemetry_events()  # it keeps an identity in the user's home folder


class OnnxEngine:
    """One single-threaded session on the CPU, for one thread at a time; its weights are the
    payload's own bytes."""

    def __init__(self, content: Payload, payload_bytes: int) -> None:
        self.payload_bytes = payload_bytes
        self._shape, self._dtype = content.obs_shape, np.dtype(content.obs_dtype)
        # The session reads weights from where they are, as rows without gaps.
        self._tensors = {name: np.asarray(a, order="C") for name, a in content.tensors.items()}
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in self._tensors.values()]
        options = session_options(content.precision)
        options.add_external_initializers(list(self._tensors), values)
        try:
            self._session = ort.InferenceSession(content.model, options, providers=_PROVIDERS)
        # onnxruntime's errors share no base class but Exception, and say why in their first line.
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise QuarlError(f"onnxruntime cannot open the payload: {reason}") from error
        self._obs = self._outputs = np.empty((0, *self._shape), self._dtype)

    def run(self, obs: np.ndarray) -> np.ndarray:
        check_observations(obs, self._shape, self._dtype)
        if len(obs) != len(self._obs):
            return self._run_and_bind(obs)
        np.copyto(self._obs, obs, casting="unsafe")
        self._session.run_with_iobinding(self._binding)
        return self._outputs.copy()

    def _run_and_bind(self, obs: np.ndarray) -> np.ndarray:
        """Run, and let batches of this size use the same memory from now on, which saves a tenth of
        a decision of 0.13 ms."""
        obs = np.array(obs, self._dtype, order="C")
        outputs = self._session.run([OUTPUT], {INPUT: obs})[0]
        self._obs, self._outputs = obs, np.empty_like(outputs)
        self._binding = self._session.io_binding()
        for bind, name, array in ((self._binding.bind_input, INPUT, self._obs),
                                  (self._binding.bind_output, OUTPUT, self._outputs)):  # fmt: skip
            bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return outputs


def session_options(precision: str) -> ort.SessionOptions:
    """One thread, sequential; graphs are optimized only where they must be, or get faster by it.

    The integer graphs are written with fused operators already; in fp32, ONNX Runtime's own
    passes fuse the activations and choose the blocked convolutions. Where int8 would saturate, one
    of them turns s8 weights into u8, whose products are exact.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    levels = ort.GraphOptimizationLevel
    fp32 = precision == "fp32"
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if fp32 else levels.ORT_DISABLE_ALL
    if precision == "int8" and saturates_int8():
        options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    return options
