from __future__ import annotations

import numpy as np
import pytest

from quarl_nb.actorq import wire
from quarl_nb.errors import QuarlError
from quarl_nb.inference import open_engine
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


def test_weights_on_the_wire_are_no_payload(make_policy):
    net = make_policy((6,), ("linear", {"in_features": 6, "out_features": 5}))
    with pytest.raises(QuarlError, match="^not an engine's payload: it lacks 'runtime'$"):
        open_engine(wire.encode(net, "int8"))
