"""Reading other people's files without running them: normalization pickles, torch files, zips."""

from __future__ import annotations

import io
import lzma
import pickle
import struct
import warnings
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quarl_nb.errors import QuarlError, brief, one_line

# Statistics of images of 210 x 160 x 3 take 1.6 MB; a byte of a pickle may make 70 of objects.
MAX_PICKLE_BYTES = 4 << 20
MAX_ZIP_BYTES = 1 << 30
OF_DICTIONARY = "it is of a dictionary of observations; known: of one array"
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
# State of these packages' objects is kept as plain attributes; none of their code runs.
_INERT_PACKAGES = ("stable_baselines3", "sb3_contrib", "gym", "gymnasium")
_DAMAGE = (
    pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError,
    ValueError, OverflowError, MemoryError, RecursionError, AssertionError, struct.error,
)
_ZIP_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, OSError)


@dataclass(frozen=True)
class ObsNormalization:
    """Statistics of SB3's ``VecNormalize``: `mean` and `var` are float64 of the observation's
    shape; observations become ``clip((x - mean) / sqrt(var + epsilon), -clip, clip)``."""

    mean: np.ndarray
    var: np.ndarray
    epsilon: float
    clip: float


class _Inert:
    """Stands for an object of a named class: holds its state, does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass  # whatever it is made of

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _DType(_Inert):
    """``numpy.dtype('f8', ...)`` of numbers and booleans only."""

    def __init__(self, code: str, *args: Any) -> None:
        self.dtype = np.dtype(code) if code[:1] in "fiub" and code[1:].isdigit() else None
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def read(self, data: bytes) -> np.ndarray:
        """Numbers ``[len(data) / item size]``; an array of anything else is left empty."""
        if self.dtype is None or not isinstance(data, bytes | bytearray):
            return np.zeros(0)
        dtype = self.dtype.newbyteorder(">") if self.order == ">" else self.dtype
        return np.frombuffer(data, dtype)


class _Array(_Inert):
    """``numpy.ndarray`` as its pickles rebuild it: an empty one first, its state afterwards."""

    value = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _shaped(dtype.read(data), shape, "F" if fortran else "C")


class _Buffer(_Inert):
    """``numpy.ndarray`` in pickle protocol 5."""

    def __init__(self, data: bytes, dtype: _DType, shape: Any, order: str) -> None:
        self.value = _shaped(dtype.read(data), shape, order)


class _Scalar(_Inert):
    """A numpy scalar."""

    def __init__(self, dtype: _DType, data: bytes = b"") -> None:
        self.value = dtype.read(data).reshape(())


class _Bytes(bytes):
    """``_codecs.encode(text, 'latin1')``: bytes in pickle protocol 2."""

    def __new__(cls, text: str, encoding: str) -> _Bytes:
        return super().__new__(cls, text.encode("latin1"))


def _shaped(numbers: np.ndarray, shape: Any, order: str) -> np.ndarray:
    return numbers.reshape(shape, order="F" if order == "F" else "C") if numbers.size else numbers


_ADMITTED: dict[tuple[str, str], type] = {
    **{(module, "_reconstruct"): _Array for module in _MULTIARRAY},
    **{(module, "scalar"): _Scalar for module in _MULTIARRAY},
    **{(module, "_frombuffer"): _Buffer for module in _NUMERIC},
    ("numpy", "ndarray"): _Inert,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _Bytes,
}


# The pure-Python unpickler: the C one can be made to allocate gigabytes by ten bytes
# (a memo index of 2**32), and these files are small.
class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]  # absent from typeshed
    """Knows numpy arrays and inert placeholders, nothing else."""

    def find_class(self, module: str, name: str) -> type:
        admitted = _ADMITTED.get((module, name))
        if admitted is None:
            if module.split(".")[0] not in _INERT_PACKAGES and not module.startswith(
                "numpy.random."
            ):
                if (module, name) == ("collections", "OrderedDict"):
                    raise QuarlError(OF_DICTIONARY)
                asked = f"{module}.{name}"
                raise QuarlError(f"it asks for {asked!r}, which could run code: refused")
            admitted = _Inert
        # A fresh subclass each time: a pickle may write to what it is given.
        return type(admitted.__name__, (admitted,), {})

    def load_bytearray8(self: Any) -> None:  # whose attributes typeshed does not know
        """A bytearray of what is there; the inherited one first makes as many zeros as it says."""
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    dispatch = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: load_bytearray8}


def read_pickle(path: str | Path) -> Any:
    """The root object of a pickle, its classes replaced by inert placeholders.

    Raises:
        QuarlError: it names anything but numpy arrays and SB3's and Gym's classes, or is damaged.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_PICKLE_BYTES:
            raise QuarlError(f"larger than {MAX_PICKLE_BYTES >> 20} MiB")
        return _Unpickler(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise QuarlError(f"cannot read '{path}': {error.strerror}") from error
    except QuarlError as error:
        raise QuarlError(f"'{path}': {error}") from error
    except _DAMAGE as error:
        raise QuarlError(f"'{path}' is no pickle, or damaged: {one_line(error)}") from error


def read_vecnormalize(path: str | Path) -> ObsNormalization | None:
    """Observation statistics of a ``vecnormalize.pkl``; None where observations stay raw.

    Raises:
        QuarlError: as `read_pickle`; no statistics inside; a dictionary of observations.
    """
    state = getattr(read_pickle(path), "__dict__", {})
    if state.get("norm_obs") is False:
        return None
    if isinstance(state.get("obs_rms"), dict):
        raise QuarlError(f"'{path}': {OF_DICTIONARY}")
    rms = getattr(state.get("obs_rms"), "__dict__", {})
    mean, var = _number(rms.get("mean")), _number(rms.get("var"))
    epsilon, clip = _number(state.get("epsilon")), _number(state.get("clip_obs"))
    if (
        mean is None or var is None or epsilon is None or clip is None
        or mean.shape != var.shape or epsilon.ndim or clip.ndim
    ):  # fmt: skip
        raise QuarlError(f"'{path}' holds no observation statistics of a VecNormalize")
    if not (np.isfinite(mean).all() and np.isfinite(var).all() and (var + epsilon > 0).all()):
        raise QuarlError(f"'{path}' holds statistics that are not finite")
    return ObsNormalization(mean, var, float(epsilon), float(clip))


def _number(value: Any) -> np.ndarray | None:
    value = getattr(value, "value", value)
    if isinstance(value, int | float) or (isinstance(value, np.ndarray) and value.size):
        with suppress(OverflowError):  # of an integer that no float64 holds
            return np.array(value, dtype=np.float64)
    return None


def read_tensors(payload: bytes, what: str) -> dict[str, torch.Tensor]:
    """A torch state dict by `torch.load(weights_only=True)`: named CPU tensors.

    Args:
        what: what the payload is, for the error.

    Raises:
        QuarlError: it holds anything but named tensors, or those that are not plain numbers in
            memory (sparse, meta, nested, quantized), or is damaged, or too large.
    """
    try:
        if zipfile.is_zipfile(io.BytesIO(payload)):
            open_zip(io.BytesIO(payload), what).close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it then refuses, which is said below
            found = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (*_DAMAGE, *_ZIP_DAMAGE) as error:
        reason = brief(error)
        verb = "refused" if "eights only load failed" in reason else "is damaged"
        raise QuarlError(f"{what} {verb}: not plain tensors ({reason[:120]}...)") from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and _is_plain(tensor) for name, tensor in found.items()
    ):
        raise QuarlError(f"{what} is not a dictionary of named, plain tensors")
    # A tensor may view few stored bytes as many elements (stride 0).
    if sum(tensor.numel() * tensor.element_size() for tensor in found.values()) > MAX_ZIP_BYTES:
        raise QuarlError(f"{what} holds more than {MAX_ZIP_BYTES >> 20} MiB of tensors")
    return found


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_nested or value.is_quantized)
    )


def open_zip(file: str | Path | io.BytesIO, what: str) -> zipfile.ZipFile:
    """An open zip whose members, unpacked, are of bounded size (a zip bomb is refused)."""
    try:
        archive = zipfile.ZipFile(file)
    except OSError as error:
        raise QuarlError(f"cannot read {what}: {error.strerror}") from error
    except (*_DAMAGE, *_ZIP_DAMAGE) as error:
        raise QuarlError(f"{what} is damaged or truncated: {error}") from error
    if sum(member.file_size for member in archive.infolist()) > MAX_ZIP_BYTES:
        archive.close()
        raise QuarlError(f"{what} unpacks to more than {MAX_ZIP_BYTES >> 20} MiB: refused")
    return archive


def read_member(archive: zipfile.ZipFile, name: str, what: str) -> bytes:
    """One member of a zip, checked by its checksum."""
    try:
        return archive.read(name)
    except KeyError as error:
        raise QuarlError(f"{what} holds no '{name}': not a stable-baselines3 model") from error
    except (*_DAMAGE, *_ZIP_DAMAGE) as error:
        raise QuarlError(f"'{name}' in {what} is damaged: {error}") from error
