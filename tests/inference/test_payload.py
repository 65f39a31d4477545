from __future__ import annotations

import numpy as np

from quarl_nb.inference.payload import Payload, decode, encode

TENSORS = {
    "weight": np.arange(-9, 12, dtype=np.int8).reshape(3, 7),
    "scale": np.array(0.5, np.float32),
}
PAYLOAD = Payload("onnxruntime", "int8", (4, 2), "uint8", b"a graph", TENSORS)


def test_decode_is_the_reverse_of_encode():
    got = decode(encode(PAYLOAD))
    assert (got.runtime, got.precision, got.obs_shape) == ("onnxruntime", "int8", (4, 2))
    assert (got.obs_dtype, got.model) == ("uint8", b"a graph")
    assert got.tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert got.tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(got.tensors[name], array, strict=True)
