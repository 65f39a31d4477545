import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quarl_nb.actorq.wire import decode, encode, pack_bits, unpack_bits
from quarl_nb.errors import QuarlError
from quarl_nb.quant import parse_precision, quantize_module, weight_bytes


@given(st.integers(2, 16), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_packed_integers_come_back_and_take_no_more_than_their_bits(bits, count, seed):
    values = np.random.default_rng(seed).integers(0, 2**bits, count)
    packed = pack_bits(torch.from_numpy(values), bits)
    assert packed.dtype == np.uint8 and len(packed) == -(-count * bits // 8)
    assert unpack_bits(packed, bits, count).tolist() == values.tolist()


@pytest.mark.parametrize("bits", [7, 16])
def test_packing_a_layer_takes_no_multiple_of_its_room(mlp_policy, bits):
    net = mlp_policy(obs=500, hidden=(600,), actions=1)
    tracemalloc.start()
    received = decode(encode(net, f"affine{bits}"), net.spec)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    step = (net.layers[0].weight.max() - net.layers[0].weight.min()) / (2**bits - 1)
    assert (received.layers[0].weight - net.layers[0].weight).abs().max() <= 0.51 * step
    # Two arrays of 65,536 x 7 int64 at once, and what is sent; the bits of all are 17 MB and more.
    assert peak < 12e6


def test_packing_by_hand():
    # 3 bits each, lowest bit first: 5 = 101, 3 = 011, 6 = 110 -> 101 110 01|1 -> 0b10011101, 0b1
    assert pack_bits(torch.tensor([5, 3, 6]), 3).tolist() == [0b10011101, 0b00000001]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "affine2", "affine6"])
def test_what_arrives_is_the_quantized_network(mlp_policy, precision):
    net = mlp_policy(obs=5, hidden=(32, 32), actions=3, seed=0)
    received = decode(encode(net, precision), net.spec)
    fmt = parse_precision(precision)
    expected = quantize_module(net, replace(fmt, activation=None))
    for name, tensor in expected.state_dict().items():
        assert torch.equal(received.state_dict()[name], tensor), name


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_whole_numbers_arrive_as_they_are(make_policy, precision):
    net = make_policy((2, 3, 3), ("batch_norm2d", {"num_features": 2}), "flatten",
                      ("linear", {"in_features": 18, "out_features": 2}))  # fmt: skip
    net.layers[0].num_batches_tracked.fill_(100_001)  # beyond what either half precision holds
    received = decode(encode(net, precision), net.spec)
    assert received.layers[0].num_batches_tracked == 100_001


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "affine4"])
def test_bytes_on_the_wire_are_those_of_the_format(mlp_policy, precision):
    net = mlp_policy(obs=64, hidden=(256, 256), actions=8, seed=0)
    expected = weight_bytes(net, parse_precision(precision))
    assert expected <= len(encode(net, precision)) < expected + 2000


def test_eight_bits_are_a_quarter_of_the_bytes(mlp_policy):
    net = mlp_policy(obs=64, hidden=(512, 512), actions=8, seed=0)
    assert len(encode(net, "fp32")) / len(encode(net, "int8")) == pytest.approx(4, rel=0.02)


def test_damaged_or_foreign_weights_are_one_clear_line(mlp_policy):
    net = mlp_policy(obs=5, hidden=(16,), actions=3, seed=0)
    content = encode(net, "int8")
    for damaged in (content[:100], content[:-10], b"", b"\xff" * 200):
        with pytest.raises(QuarlError, match="damaged"):
            decode(damaged, net.spec)
    other = mlp_policy(obs=5, hidden=(16, 16), actions=3, seed=0)
    with pytest.raises(QuarlError):
        decode(content, other.spec)
    for precision in ("int4", "legacy8"):
        with pytest.raises(QuarlError, match="no wire format"):
            encode(net, precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "affine4"])
def test_every_flipped_bit_and_every_cut_is_noticed(mlp_policy, precision):
    net = mlp_policy(obs=3, hidden=(4,), actions=2)
    content = encode(net, precision)
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        for damaged in (bytes(flipped), content[:position]):
            with pytest.raises(QuarlError, match="^weights on the wire are damaged: .*$"):
                decode(damaged, net.spec)


def test_nan_is_refused_before_it_is_sent(mlp_policy):
    net = mlp_policy(obs=5, hidden=(16,), actions=3, seed=0)
    next(net.parameters())[0, 0] = torch.nan
    with pytest.raises(QuarlError, match="NaN"):
        encode(net, "fp32")
