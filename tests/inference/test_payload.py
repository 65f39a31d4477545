from __future__ import annotations

import numpy as np
import pytest

from quarl_nb.actorq import wire
from quarl_nb.errors import QuarlError
from quarl_nb.inference import build_payload, open_engine
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


def test_its_bytes_are_those_of_the_description_and_the_weights():
    assert PAYLOAD.nbytes == len(b"a graph") + 21 + 4


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_an_engine_opens_from_any_buffer(make_policy, kind):
    net = make_policy((6,), ("linear", {"in_features": 6, "out_features": 5}))
    payload = build_payload(net, "int8")
    engine, obs = open_engine(kind(payload)), np.ones((2, 6), np.float32)
    np.testing.assert_array_equal(engine.run(obs), open_engine(payload).run(obs))
    assert engine.payload_bytes == len(payload)


def test_weights_on_the_wire_are_no_payload(make_policy):
    net = make_policy((6,), ("linear", {"in_features": 6, "out_features": 5}))
    with pytest.raises(QuarlError, match="^not an engine's payload: it lacks 'runtime'$"):
        open_engine(wire.encode(net, "int8"))
