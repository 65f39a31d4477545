from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.inference.container import ALIGNMENT, FORMAT_VERSION, pack, unpack

ARRAYS = {
    "weight": np.arange(-9, 12, dtype=np.int8).reshape(3, 7),
    "scale": np.array(0.5, np.float32),
    "mean": np.linspace(0, 1, 5),
    "none": np.zeros((0, 4), np.float32),
    "transposed": np.arange(6, dtype=np.uint8).reshape(2, 3).T,
}
ABOUT = {"precision": "int8", "shape": [4, 2]}


def test_unpack_is_the_reverse_of_pack():
    about, arrays = unpack(pack(ABOUT, ARRAYS))
    assert about == ABOUT
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


def test_arrays_are_views_of_the_bytes_that_cannot_be_written():
    content = pack(ABOUT, ARRAYS)
    weight = unpack(content)[1]["weight"]
    assert np.shares_memory(weight, np.frombuffer(content, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        weight[0, 0] = 1


def test_every_array_begins_at_a_multiple_of_64_bytes():
    content = pack(ABOUT, ARRAYS)
    first = np.frombuffer(content, np.uint8).ctypes.data
    arrays = [array for array in unpack(content)[1].values() if array.size]
    assert [(array.ctypes.data - first) % 64 for array in arrays] == [0] * 4


def test_every_flipped_bit_is_noticed():
    content = pack(ABOUT, ARRAYS)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        with pytest.raises(QuarlError, match="payload"):
            unpack(bytes(changed))


@pytest.mark.parametrize("words", [100, 5000])  # less than a block, and blocks with a rest
def test_words_that_changed_places_are_noticed(words):
    rng = np.random.default_rng(0)
    content = pack(ABOUT, {"weight": rng.integers(2**40, size=words)})
    start = len(content) - words * 8 // ALIGNMENT * ALIGNMENT  # of a word of the weight
    for _ in range(200):
        i, j = rng.choice((len(content) - start) // 8, 2, replace=False) * 8 + start
        changed = bytearray(content)
        changed[i : i + 8], changed[j : j + 8] = content[j : j + 8], content[i : i + 8]
        if changed != content:  # both may be padding
            with pytest.raises(QuarlError, match="their checksum differs"):
                unpack(bytes(changed))


def test_swapped_blocks_are_noticed():
    weight = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    content = pack(ABOUT, {"weight": weight})
    start = content.index(weight.tobytes())
    first, second = weight[:16_384].tobytes(), weight[16_384:32_768].tobytes()
    changed = content[:start] + second + first + content[start + 32_768 :]
    assert len(changed) == len(content)
    with pytest.raises(QuarlError, match="their checksum differs"):
        unpack(changed)


def test_every_cut_and_every_excess_is_noticed():
    content = pack(ABOUT, ARRAYS)
    for size in range(len(content)):
        with pytest.raises(QuarlError, match="payload"):
            unpack(content[:size])
    with pytest.raises(QuarlError, match="cut or corrupted"):
        unpack(content + bytes(ALIGNMENT))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(100), b"\x08\x0a" * 50])
def test_foreign_bytes_are_refused(content):
    with pytest.raises(QuarlError, match="not a quarl_nb payload"):
        unpack(content)


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_another_format_version_is_refused_by_its_number(version):
    content = pack(ABOUT, ARRAYS)
    size = int.from_bytes(content[8:12], "little")
    header = json.loads(content[16 : 16 + size]) | {"format_version": version}
    text = json.dumps(header).encode().ljust(size)
    assert len(text) == size
    crc = zlib.crc32(content[8:12] + text).to_bytes(4, "little")
    changed = content[:12] + crc + text + content[16 + size :]
    with pytest.raises(QuarlError, match=f"version {version}; known: {FORMAT_VERSION}"):
        unpack(changed)
