"""Where joules and CO2 come from: energy counters, assumed watts, the grid's intensity.

codecarbon reads the counters and holds the tables; it is imported on first use, asked only what
touches neither the network nor a file of its own, and kept silent.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import psutil

from quarl_nb.errors import QuarlError

RAPL_DIR = "/sys/class/powercap/intel-rapl/subsystem"
JOULES_PER_KWH = 3.6e6
_NUMBER = re.compile(r"\d+(\.\d+)?")  # codecarbon's table has a TDP of "27.29.5"


class Counter(Protocol):
    """What has used `joules` since it was made, as of the last `read`."""

    method: str
    joules: float

    def read(self) -> None: ...


class RaplCounter:
    """Energy of all CPU packages, by codecarbon."""

    method = "rapl"

    def __init__(self, rapl_dir: str) -> None:
        from codecarbon.core.cpu import IntelRAPL
        from codecarbon.core.units import Time

        self._rapl = IntelRAPL(rapl_dir)
        self._hour = Time.from_seconds(3600)  # only the watts depend on it, and none are asked for
        self.joules = 0.0
        if not self._energies():
            raise FileNotFoundError(f"no readable energy counter in {rapl_dir}")
        self._rapl.start()

    def _energies(self) -> dict[str, float]:
        details = self._rapl.get_cpu_details(self._hour)
        return {name: kwh for name, kwh in details.items() if "Power" not in name}

    def read(self) -> None:
        self.joules += sum(self._energies().values()) * JOULES_PER_KWH


class PmicCounter:
    """Power of a Raspberry Pi 5's board by its power chip, integrated over time."""

    method = "pmic"

    def __init__(self) -> None:
        self.joules = 0.0
        self._then, self._watts = time.perf_counter(), pmic_watts(_pmic_output())

    def read(self) -> None:
        now, watts = time.perf_counter(), self._watts
        # A run is not lost to one failed reading: the last power counts on.
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            watts = pmic_watts(_pmic_output())
        self.joules += (now - self._then) * (self._watts + watts) / 2
        self._then, self._watts = now, watts


class NvmlCounter:
    """Energy of the GPUs that CUDA_VISIBLE_DEVICES leaves, whoever uses them, by codecarbon."""

    method = "nvml"

    def __init__(self) -> None:
        from codecarbon.core.gpu import AllGPUDevices
        from codecarbon.core.units import Time

        self._gpus, self._hour = AllGPUDevices(), Time.from_seconds(3600)
        self.joules = 0.0
        visible = [gpu for gpu in self._gpus.devices if _visible(gpu.get_static_details())]
        if not visible or any(gpu.last_energy.kWh == 0 for gpu in visible):
            raise FileNotFoundError("no GPU, or one without an energy counter")
        # Once: where the run starts CUDA, others might be added up from then on.
        self._uuids = {gpu.get_static_details()["uuid"] for gpu in visible}
        self._gpus.start()

    def read(self) -> None:
        for gpu in self._gpus.get_delta(self._hour):
            if gpu["uuid"] in self._uuids:
                self.joules += gpu["delta_energy_consumption"].kWh * JOULES_PER_KWH


def _visible(gpu: dict[str, Any]) -> bool:
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return True
    if (uuids := _cuda_uuids()) is not None:
        return gpu["uuid"].removeprefix("GPU-") in uuids
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    chosen = [*takewhile(lambda name: not name.startswith("-"), chosen)]  # as CUDA reads them
    return any(name == str(gpu["gpu_index"]) or gpu["uuid"].startswith(name) for name in chosen)


def _cuda_uuids() -> set[str] | None:
    """Those of the GPUs that CUDA sees; None where torch is not in use, or does not tell.

    CUDA counts the fastest GPU as 0, the driver the first on the bus.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    uuids = {str(getattr(gpu, "uuid", "")) for gpu in gpus}
    return None if "" in uuids else uuids


def cpu_counter() -> Counter | None:
    """The energy counter of the CPU or the board, None where there is none to read."""
    with suppress(OSError, SystemError):
        return RaplCounter(RAPL_DIR)
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        return PmicCounter()
    return None


def gpu_counter() -> Counter | None:
    """The energy counter of the visible GPUs, None where there is none."""
    try:
        return NvmlCounter()
    except Exception:  # the driver's errors have no common base; a run is not lost to its meter
        return None


def _pmic_output() -> str:
    if shutil.which("vcgencmd") is None:
        raise FileNotFoundError("vcgencmd")
    command = ["vcgencmd", "pmic_read_adc"]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout


def pmic_watts(text: str) -> float:
    """Watts of `vcgencmd pmic_read_adc`: current times voltage, summed over the rails.

    Raises:
        ValueError: no rail has both.
    """
    found = re.findall(r"(\w+)_([AV]) (?:current|volt)\(\d+\)=([\d.]+)[AV]", text)
    values = {(rail, unit): float(value) for rail, unit, value in found}
    rails = [rail for rail, unit in values if unit == "A" and (rail, "V") in values]
    if not rails:
        raise ValueError("no power rails in the output of vcgencmd pmic_read_adc")
    return sum(values[rail, "A"] * values[rail, "V"] for rail in rails)


@cache
def thread_watts(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[float, str]:
    """Assumed watts of one busy hardware thread, and their source.

    The processor's TDP over its threads where codecarbon knows it. Not on a virtual machine: its
    few threads are a part of the processor that is named. Then codecarbon's default.
    """
    from codecarbon.core.cpu import DEFAULT_POWER_PER_CORE
    from codecarbon.input import DataSource

    text = cpuinfo.read_text("utf-8", "replace") if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    model = _plain_cpu_name(found[1]) if found else "unknown processor"
    default = f"codecarbon's default of {DEFAULT_POWER_PER_CORE} W a thread"
    if re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE):
        return float(DEFAULT_POWER_PER_CORE), f"{default} (virtual machine, {model})"
    with open(DataSource().cpu_power_path, newline="", encoding="utf-8") as file:
        rows = {_plain_cpu_name(row["Name"]): row["TDP"] for row in csv.DictReader(file)}
    table = {name: float(watts) for name, watts in rows.items() if _NUMBER.fullmatch(watts)}
    if model not in table:
        return float(DEFAULT_POWER_PER_CORE), f"{default} ({model} not in its table)"
    sockets = len(set(re.findall(r"^physical id\s*:\s*(\d+)", text, re.MULTILINE))) or 1
    threads = len(re.findall(r"^processor\s*:", text, re.MULTILINE)) or 1
    source = f"codecarbon's TDP of {model}, {table[model]:g} W, x {sockets} / {threads} threads"
    return table[model] * sockets / threads, source


def _plain_cpu_name(name: str) -> str:
    """`Intel(R) Core(TM) i7-8565U CPU @ 1.80GHz` -> `intel core i7-8565u`."""
    noise = r"^\d+th gen | cpu\b| @.*| (with|w/) .*| \w+-cores?\b| processor\b|\((r|tm)\)"
    return " ".join(re.sub(noise, "", name.lower()).split())


@cache
def ram_watts() -> float:
    """Assumed watts of all the machine's memory, by codecarbon."""
    from codecarbon.external.ram import B_TO_GB, RAM

    # Its `total_power` is under Slurm that of the job's share of the memory, or none.
    memory_gb = psutil.virtual_memory().total / B_TO_GB
    return float(RAM(tracking_mode="machine")._calculate_ram_power(memory_gb))


@cache
def grid_intensity(country: str | None) -> tuple[float, str]:
    """kg CO2e a kWh of electricity, and the source; None is the world's average.

    Raises:
        QuarlError: codecarbon has no intensity of this country.
    """
    from codecarbon import __version__
    from codecarbon.input import DataSource

    source = f"codecarbon {__version__}"
    if country is None:
        text = Path(DataSource().carbon_intensity_per_source_path).read_text("utf-8")
        return json.loads(text)["world_average"] / 1000, f"{source}, world average"
    mix = json.loads(Path(DataSource().global_energy_mix_data_path).read_text("utf-8"))
    found = mix.get(country.upper(), {})
    if not found.get("carbon_intensity"):
        raise QuarlError(
            f"no grid intensity of country {country!r}; allowed: ISO 3166 codes of three letters "
            f"that codecarbon knows, such as DEU"
        )
    return found["carbon_intensity"] / 1000, f"{source}, {found['country_name']} {found['year']}"


@contextmanager
def silence() -> Iterator[None]:
    """codecarbon warns of every counter that is missing; here `method` says it."""
    logger = logging.getLogger("codecarbon")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
