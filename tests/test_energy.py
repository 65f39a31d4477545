from __future__ import annotations

import logging
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from quarl_nb import energy, power
from quarl_nb.energy import EnergyMeter
from quarl_nb.errors import QuarlError
from quarl_nb.power import RaplCounter, grid_intensity, pmic_watts, ram_watts, thread_watts

# Burns CPU for argv[1] seconds, says how much in all, and stays while its input is open.
BURN = """
import sys, time
while time.process_time() < float(sys.argv[1]): pass
print(time.process_time(), flush=True)
sys.stdin.read()
"""


def burn(seconds: float) -> None:
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass


def start_burner(seconds: float) -> subprocess.Popen:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", BURN, str(seconds)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


@pytest.fixture
def no_counters(monkeypatch):
    monkeypatch.setattr(energy, "cpu_counter", lambda: None)
    monkeypatch.setattr(energy, "gpu_counter", lambda: None)


def test_own_cpu_time_is_the_kernels():
    with EnergyMeter() as meter:
        before = resource.getrusage(resource.RUSAGE_SELF)
        burn(0.4)
        after = resource.getrusage(resource.RUSAGE_SELF)
    kernel = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert meter.cpu_s == pytest.approx(kernel, rel=0.02, abs=0.005)
    assert meter.cpu_s <= meter.wall_s + 0.05  # one thread


def test_sleep_counts_as_wall_time_only():
    with EnergyMeter() as meter:
        time.sleep(0.1)
    assert meter.wall_s >= 0.1
    assert meter.cpu_s < 0.05


@pytest.mark.parametrize("alive", [True, False])
def test_a_child_counts_whether_it_has_ended_or_not(alive):
    with EnergyMeter() as meter:
        child = start_burner(0.6)
        spent = float(child.stdout.readline())
        if not alive:
            child.communicate()
    child.communicate()
    # Beside the child's own count: its start before Python's clock, and what we did here.
    assert spent * 0.98 <= meter.cpu_s <= spent * 1.02 + 0.05


def test_only_what_a_child_did_inside_the_block_counts():
    child = start_burner(0.3)
    child.stdout.readline()
    with EnergyMeter() as meter:
        child.communicate()  # it ends here, and the kernel adds all of it to its parent's children
    assert meter.cpu_s < 0.1


@pytest.mark.parametrize("orphan_ends", [True, False])
def test_a_grandchild_that_loses_its_parent_inside_the_block_takes_nothing_off(orphan_ends):
    # What it had used before is in no count of ours at the end.
    inside, ours = os.pipe()
    command = ["bash", "-c", f'"$0" -c "$1" 0.5 <&{inside} & wait', sys.executable, BURN]
    shell = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[inside])
    os.close(inside)
    shell.stdout.readline()
    (grandchild,) = psutil.Process(shell.pid).children()
    with EnergyMeter() as meter:
        before = time.process_time()
        shell.kill()
        shell.wait()
        if orphan_ends:
            os.close(ours)
            psutil.wait_procs([grandchild], timeout=10)
        own_s = time.process_time() - before
    if not orphan_ends:
        os.close(ours)
    shell.stdout.close()
    assert own_s <= meter.cpu_s < 0.2


class FakeProcess:
    def __init__(self, pid: int, running: bool = False) -> None:
        self.pid, self.running = pid, running

    def is_running(self) -> bool:
        return self.running


def test_what_ended_processes_had_used_is_taken_off_where_it_was_reaped():
    me, shell, child = FakeProcess(1), FakeProcess(2), FakeProcess(3)
    used = energy._Used
    start = {me: used(1.0, 5.0, 0), shell: used(2.0, 0.0, 1), child: used(7.0, 3.0, 2)}
    # The child ends after one second more, and the shell waits for it.
    assert energy._spent(start, {me: used(1.5, 5.0, 0), shell: used(2.0, 11.0, 1)}) == 1.5
    # So does the shell, after that.
    assert energy._spent(start, {me: used(1.5, 18.0, 0)}) == 1.5
    # The shell ends first: what it and others got is less than the child had used.
    assert energy._spent(start, {me: used(1.5, 7.5, 0)}) == 0.5
    child.running = True  # outside the tree: not in what was reaped
    assert energy._spent(start, {me: used(1.5, 7.5, 0)}) == 1.0


def test_of_every_descendant_all_cpu_time_and_memory_counts(monkeypatch):
    def process(pid: int, parent: int, held: int, times: tuple[float, ...]) -> Mock:
        return Mock(pid=pid, **{
            "ppid.return_value": parent, "memory_info.return_value.rss": held,
            "cpu_times.return_value": times,
        })  # fmt: skip

    # User and system, the same of reaped children, and what is no use of the CPU.
    child, grandchild = (
        process(2, 1, 30, (1.0, 2.0, 4.0, 8.0, 16.0)), process(3, 2, 7, (0.5, 0.0, 0.0, 0.25, 9.0))
    )  # fmt: skip
    me = process(1, 0, 100, ())
    me.children = lambda recursive=False: [child, grandchild] if recursive else [child]
    monkeypatch.setattr(psutil, "Process", lambda: me)
    used, held = energy._tree()
    assert held == 137
    assert used[child] == energy._Used(3.0, 12.0, 1)
    assert used[grandchild] == energy._Used(0.5, 0.25, 2)


def test_a_machine_is_busy_with_all_but_waiting(monkeypatch):
    times = SimpleNamespace(user=1.0, nice=2.0, system=4.0, idle=8.0, iowait=16.0, irq=32.0,
                            softirq=64.0, steal=128.0, guest=256.0)  # fmt: skip
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)  # a guest's are in the user's
    assert energy._machine_busy_s() == 1 + 2 + 4 + 32 + 64


def test_short_lived_children_count():
    with EnergyMeter() as meter:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        for _ in range(5):
            subprocess.run([sys.executable, "-S", "-c", "sum(range(10**6))"], check=True)
        kernel = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert meter.cpu_s >= kernel > 0.05


def test_a_busy_neighbour_is_not_counted_but_reported():
    # The shell ends at once and leaves its child to init: no descendant of ours.
    orphan = ["bash", "-c", '"$0" -c "$1" 0.5 </dev/null &', sys.executable, BURN]
    with EnergyMeter() as meter:
        with subprocess.Popen(orphan, stdout=subprocess.PIPE, text=True) as shell:
            spent = float(shell.stdout.readline())
    assert meter.cpu_s < 0.1
    assert meter.other_cpu_s > spent - 0.1


def test_energy_is_additive_over_pieces(no_counters):
    with EnergyMeter() as whole:
        pieces = []
        for seconds in (0.1, 0.2, 0.3):
            with EnergyMeter() as piece:
                burn(seconds)
            pieces.append(piece)
    assert sum(p.cpu_energy_j for p in pieces) == pytest.approx(whole.cpu_energy_j, rel=0.1)
    assert sum(p.cpu_s for p in pieces) == pytest.approx(whole.cpu_s, rel=0.1)
    for meter in (whole, *pieces):
        parts = meter.cpu_energy_j + meter.gpu_energy_j + meter.ram_energy_j
        assert meter.energy_j == pytest.approx(parts)


def test_memory_counts_by_the_mean_of_its_shares_before_and_after(no_counters, monkeypatch):
    total = psutil.virtual_memory().total
    readings = iter([({}, total // 4), ({}, 3 * total // 4)])
    monkeypatch.setattr(energy, "_tree", lambda: next(readings))
    with EnergyMeter() as meter:
        pass
    assert meter.ram_energy_j == pytest.approx(meter.assumed_watts["ram"] * meter.wall_s / 2)


def test_memory_that_children_hold_only_inside_the_block_counts(no_counters, monkeypatch):
    total, sampled = psutil.virtual_memory().total, threading.Event()

    def tree():
        if threading.current_thread() is threading.main_thread():
            return {}, 0
        sampled.set()
        return {}, total // 2

    monkeypatch.setattr(energy, "_tree", tree)
    monkeypatch.setattr(energy, "SAMPLE_S", 0.01)
    with EnergyMeter() as meter:
        sampled.wait(10)
    assert meter.ram_energy_j == pytest.approx(meter.assumed_watts["ram"] * meter.wall_s / 2)


def test_without_counters_the_joules_are_a_labelled_estimate(no_counters):
    with EnergyMeter() as meter:
        burn(0.2)
    record = meter.as_record()
    watts = record["assumed_watts"]
    assert record["method"] == "tdp_x_cpu_time"
    assert record["cpu_energy_j"] == watts["cpu_per_thread"] * record["cpu_s"]
    assert "codecarbon" in record["watts_source"]
    assert 0 < record["ram_energy_j"] < watts["ram"] * meter.wall_s
    assert record["gpu_energy_j"] == 0
    assert record["co2_kg"] == pytest.approx(record["energy_j"] / 3.6e6 * 0.475)
    assert record["grid_source"].endswith("world average")
    assert record["suspended_s"] == 0


class FakeCounter:
    def __init__(self, method: str, joules_each_read: float) -> None:
        self.method, self.joules, self.each = method, 0.0, joules_each_read

    def read(self) -> None:
        self.joules += self.each


def metered(
    monkeypatch, cpu: FakeCounter | None, gpu: FakeCounter | None, busy: list, **options
) -> EnergyMeter:
    """A run that spends 2 CPU-seconds of those that the machine spends between both readings."""
    monkeypatch.setattr(energy, "cpu_counter", lambda: cpu)
    monkeypatch.setattr(energy, "gpu_counter", lambda: gpu)
    me = psutil.Process()
    ours = iter([({me: energy._Used(own_s, 0.0, 1)}, 0) for own_s in (10.0, 12.0)])
    monkeypatch.setattr(energy, "_tree", lambda: next(ours))
    times = iter(busy)
    monkeypatch.setattr(energy, "_machine_busy_s", lambda: next(times))
    with EnergyMeter(**options) as meter:
        pass
    return meter


def test_a_counter_is_shared_by_cpu_time(monkeypatch):
    cpu, gpu = FakeCounter("rapl", 100.0), FakeCounter("nvml", 7.0)
    meter = metered(monkeypatch, cpu, gpu, [50.0, 60.0])
    assert meter.method == "rapl+nvml"
    assert meter.other_cpu_s == 8.0
    assert meter.cpu_energy_j == pytest.approx(100 * 2 / 10)
    assert meter.gpu_energy_j == 7.0
    assert set(meter.assumed_watts) == {"ram"}


def test_a_gpu_that_idles_beside_it_is_not_a_runs(monkeypatch):
    cpu, gpu = FakeCounter("rapl", 100.0), FakeCounter("nvml", 7.0)
    meter = metered(monkeypatch, cpu, gpu, [50.0, 60.0], gpus=False)
    assert meter.gpu_energy_j == 0 and meter.method == "rapl"


def test_a_machine_that_hides_its_load_leaves_it_unknown(monkeypatch):
    meter = metered(monkeypatch, FakeCounter("rapl", 100.0), None, [None, None])
    assert meter.other_cpu_s is None
    assert meter.cpu_energy_j == pytest.approx(100.0)


def test_clocks_that_lag_make_no_negative_load(monkeypatch):
    meter = metered(monkeypatch, FakeCounter("rapl", 100.0), None, [50.0, 51.0])
    assert (meter.cpu_s, meter.other_cpu_s, meter.cpu_energy_j) == (2.0, 0.0, 100.0)


def test_of_a_machine_that_did_nothing_a_run_used_nothing(monkeypatch):
    monkeypatch.setattr(energy, "cpu_counter", lambda: FakeCounter("rapl", 100.0))
    monkeypatch.setattr(energy, "_tree", lambda: ({}, 0))
    monkeypatch.setattr(energy, "_machine_busy_s", lambda: 50.0)
    with EnergyMeter(gpus=False) as meter:
        pass
    assert meter.energy_j == 0.0


def test_a_container_without_machine_accounting(monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", denied)
    with EnergyMeter() as meter:
        burn(0.05)
    assert meter.other_cpu_s is None
    assert meter.cpu_s >= 0.05


def test_a_boards_power_holds_the_memorys(monkeypatch):
    meter = metered(monkeypatch, FakeCounter("pmic", 30.0), None, [0.0, 2.0])
    assert (meter.method, meter.energy_j, meter.ram_energy_j) == ("pmic", 30.0, 0.0)


def test_a_machine_that_slept_is_flagged(monkeypatch):
    boots = iter([100.0, 400.0])
    monkeypatch.setattr(energy, "_boot_s", lambda: next(boots))
    with EnergyMeter() as meter:
        pass
    assert meter.as_record()["suspended_s"] == pytest.approx(300, abs=1)
    assert meter.wall_s < 1


@pytest.mark.parametrize(("boot_s", "suspended_s"), [(300.5, 0.0), (305.0, 5.0)])
def test_the_time_awake_is_no_sleep(monkeypatch, boot_s, suspended_s):
    walls, boots = iter([10.0, 310.0]), iter([100.0, 100.0 + boot_s])
    monkeypatch.setattr(energy, "_boot_s", lambda: next(boots))
    monkeypatch.setattr(energy, "time", SimpleNamespace(perf_counter=lambda: next(walls)))
    with EnergyMeter() as meter:
        pass
    assert (meter.wall_s, meter.suspended_s) == (300.0, suspended_s)


def fake_rapl(folder: Path, start_uj: int) -> Path:
    package = folder / "intel-rapl" / "intel-rapl:0"
    package.mkdir(parents=True)
    (package / "name").write_text("package-0\n")
    (package / "max_energy_range_uj").write_text("10000000\n")
    (package / "energy_uj").write_text(f"{start_uj}\n")
    return package


def test_rapl_is_read_in_joules_and_over_its_wrap(tmp_path):
    package = fake_rapl(tmp_path, 1_000_000)
    counter = RaplCounter(str(package.parent))
    (package / "energy_uj").write_text("9000000\n")
    counter.read()
    assert counter.joules == pytest.approx(8.0)
    (package / "energy_uj").write_text("2000000\n")  # past the end of the counter, at 10 J
    counter.read()
    assert counter.joules == pytest.approx(11.0)


def test_rapl_is_preferred_over_estimates(tmp_path, monkeypatch):
    package = fake_rapl(tmp_path, 5_000_000)
    monkeypatch.setattr(power, "RAPL_DIR", str(package.parent))
    with EnergyMeter() as meter:
        (package / "energy_uj").write_text("6000000\n")
        burn(0.05)
    assert meter.method.startswith("rapl")
    share = meter.cpu_s / (meter.cpu_s + meter.other_cpu_s)
    assert meter.cpu_energy_j == pytest.approx(share)


def test_long_runs_are_sampled_before_the_counter_wraps(monkeypatch):
    counter = FakeCounter("rapl", 1.0)
    monkeypatch.setattr(energy, "cpu_counter", lambda: counter)
    monkeypatch.setattr(energy, "SAMPLE_S", 0.01)
    threads = threading.active_count()
    with EnergyMeter():
        time.sleep(0.5)
    assert counter.joules >= 5
    assert threading.active_count() == threads


def test_counters_are_read_before_a_kilowatt_wraps_them():
    # 32 bits in units of 15.3 uJ, the smallest range of RAPL: 65.7 kJ.
    assert 1000 * energy.SAMPLE_S < 2**32 * 15.3e-6


class FakeGpus:
    """codecarbon's `AllGPUDevices`: two GPUs that have used 1 and 2 J since the last reading."""

    kwh = (1 / 3.6e6, 2 / 3.6e6)

    def __init__(self) -> None:
        self.devices = [self.device(i) for i in range(2)]

    def device(self, i: int) -> SimpleNamespace:
        details = {"gpu_index": i, "uuid": f"GPU-{i}abc"}
        energy = SimpleNamespace(kWh=self.kwh[i])
        return SimpleNamespace(last_energy=energy, get_static_details=lambda: details)

    def start(self) -> None: ...

    def get_delta(self, duration):
        return [
            {**gpu.get_static_details(), "delta_energy_consumption": gpu.last_energy}
            for gpu in self.devices
        ]


@pytest.mark.parametrize(
    ("visible", "joules"), [(None, 3.0), ("0", 1.0), ("GPU-1", 2.0), ("0, 1", 3.0),
                          ("0,-1,1", 1.0)]  # CUDA reads no further
)
def test_only_visible_gpus_are_read(monkeypatch, visible, joules):
    monkeypatch.setattr("codecarbon.core.gpu.AllGPUDevices", FakeGpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    counter = power.gpu_counter()
    counter.read()
    assert counter.joules == pytest.approx(joules)


def fake_torch(*uuids: str | None) -> SimpleNamespace:
    """That of a machine on which CUDA sees such GPUs; None: one older than `uuid`."""
    gpus = [SimpleNamespace(uuid=uuid) if uuid else SimpleNamespace() for uuid in uuids]
    return SimpleNamespace(cuda=SimpleNamespace(
        is_available=lambda: bool(gpus), device_count=lambda: len(gpus),
        get_device_properties=gpus.__getitem__,
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("torch", "joules"),
    [(fake_torch("1abc"), 2.0), (fake_torch(None), 1.0), (fake_torch(), 1.0), (None, 1.0)],
)
def test_where_cuda_counts_in_another_order_its_first_gpu_is_read(monkeypatch, torch, joules):
    monkeypatch.setattr("codecarbon.core.gpu.AllGPUDevices", FakeGpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setitem(sys.modules, "torch", torch)
    counter = power.gpu_counter()
    monkeypatch.setitem(sys.modules, "torch", None)
    counter.read()
    assert counter.joules == pytest.approx(joules)


def test_gpus_that_are_hidden_or_have_no_counter_are_not_metered(monkeypatch):
    monkeypatch.setattr("codecarbon.core.gpu.AllGPUDevices", FakeGpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert power.gpu_counter() is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(FakeGpus, "kwh", (0.0, 0.0))
    assert power.gpu_counter() is None


@pytest.mark.parametrize(("visible", "joules"), [("0,1", None), ("0", None), ("1", 2.0)])
def test_where_a_visible_gpu_has_no_counter_none_is_metered(monkeypatch, visible, joules):
    monkeypatch.setattr("codecarbon.core.gpu.AllGPUDevices", FakeGpus)
    monkeypatch.setattr(FakeGpus, "kwh", (0.0, 2 / 3.6e6))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if counter := power.gpu_counter():
        counter.read()
    assert (counter and counter.joules) == (joules and pytest.approx(joules))


def test_pmic_watts():
    text = """
     3V7_WL_SW_A current(0)=0.10000000A
       VDD_CORE_A current(7)=2.00000000A
     3V7_WL_SW_V volt(8)=3.70000000V
       VDD_CORE_V volt(15)=0.75000000V
          EXT5V_V volt(24)=5.10000000V
    """
    assert pmic_watts(text) == pytest.approx(0.37 + 1.5)
    assert pmic_watts(text.replace("VDD_CORE_V", "OTHER_V")) == pytest.approx(0.37)
    with pytest.raises(ValueError, match="no power rails"):
        pmic_watts("error")


def test_a_boards_power_is_integrated_over_time(monkeypatch):
    def read() -> str:
        amperes = next(readings)
        if amperes is None:
            raise subprocess.SubprocessError
        return f"VDD_CORE_A current(7)={amperes}A\nVDD_CORE_V volt(15)=2.0V"

    readings, clock = iter([1.0, 2.0, None, 0.5]), iter([100.0, 110.0, 112.0, 113.0])
    monkeypatch.setattr(power, "_pmic_output", read)
    monkeypatch.setattr(power, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    counter, joules = power.PmicCounter(), []
    for _ in range(3):
        counter.read()
        joules.append(counter.joules)
    # 10 s from 2 to 4 W, 2 s at 4 W for want of a reading, 1 s from 4 to 1 W
    assert joules == pytest.approx([30.0, 38.0, 40.5])


CPUINFO = """processor\t: 0
model name\t: {model}
physical id\t: 0
flags\t\t: fpu sse {flag}

processor\t: 1
model name\t: {model}
physical id\t: 0
flags\t\t: fpu sse {flag}
"""


@pytest.mark.parametrize(
    ("model", "flag", "watts", "named"),
    [
        ("Intel(R) Core(TM) i7-8565U CPU @ 1.80GHz", "", 15 / 2, "15 W"),
        ("AMD Ryzen 9 5950X 16-Core Processor", "", 105 / 2, "105 W"),
        ("AMD Ryzen 7 5700G with Radeon Graphics", "", 65 / 2, "65 W"),
        ("AMD Ryzen 7 7840HS w/ Radeon 780M Graphics", "", 54 / 2, "54 W"),
        ("AMD FX(tm)-8350 Eight-Core Processor", "", 125 / 2, "125 W"),
        ("AMD Ryzen Threadripper PRO 5995WX 64-Cores", "", 280 / 2, "280 W"),
        ("11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz", "", 28 / 2, "28 W"),
        ("AMD Ryzen 9 5950X 16-Core Processor", "hypervisor", 4.0, "virtual machine"),
        ("Abacus 3000", "", 4.0, "abacus 3000 not in its table"),
    ],
)
def test_watts_of_a_thread(tmp_path, model, flag, watts, named):
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(model=model, flag=flag))
    found, source = thread_watts(tmp_path / "cpuinfo")
    assert found == watts
    assert named in source


def test_watts_of_a_thread_are_those_of_every_socket(tmp_path):
    text = CPUINFO.format(model="AMD Ryzen 9 5950X 16-Core Processor", flag="")
    first, second = text.split("\n\n")
    second = second.replace("physical id\t: 0", "physical id\t: 1")
    (tmp_path / "cpuinfo").write_text(f"{first}\n\n{second}")
    assert thread_watts(tmp_path / "cpuinfo")[0] == 2 * 105 / 2


def test_a_processor_that_does_not_tell_its_socket_has_one(tmp_path):
    text = CPUINFO.format(model="AMD Ryzen 9 5950X 16-Core Processor", flag="")
    (tmp_path / "cpuinfo").write_text(text.replace("physical id\t: 0\n", ""))
    assert thread_watts(tmp_path / "cpuinfo")[0] == 105 / 2


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("locale", [{}, ASCII])
def test_watts_of_a_thread_and_grids_are_known_in_every_locale(tmp_path, locale):
    text = CPUINFO.format(model="AMD Ryzen 9 5950X 16-Core Processor", flag="")
    (tmp_path / "cpuinfo").write_bytes(text.encode() + b"vendor\t: \xff\n")
    code = ("import sys; from pathlib import Path; from quarl_nb.power import *\n"
            "print(thread_watts(Path(sys.argv[1]))[0], grid_intensity('DEU')[0] > 0)")
    made = subprocess.run([sys.executable, "-c", code, tmp_path / "cpuinfo"], text=True, check=True,
                          env=os.environ | locale, stdout=subprocess.PIPE)  # fmt: skip
    assert made.stdout == "52.5 True\n"


def test_a_processor_without_a_name(tmp_path):
    assert thread_watts(tmp_path / "missing")[0] == 4.0


def test_watts_of_memory_are_those_of_all_of_it_in_gibibytes(monkeypatch):
    memory = SimpleNamespace(total=64 * 2**30, available=2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr("codecarbon.external.ram.RAM._calculate_ram_power", lambda _, gb: gb)
    assert ram_watts.__wrapped__() == 64.0


def test_memory_under_slurm_is_the_machines(monkeypatch):
    watts = ram_watts.__wrapped__()
    monkeypatch.setattr("codecarbon.external.ram.SLURM_JOB_ID", "7")  # and there is no scontrol
    assert ram_watts.__wrapped__() == watts > 0


def test_the_grid_of_a_country(monkeypatch):
    germany, source = grid_intensity("deu")
    assert 0.2 < germany < 0.6
    assert "Germany" in source
    monkeypatch.setenv("QUARL_COUNTRY", "SWE")
    assert EnergyMeter().grid_kg_per_kwh < 0.1
    assert "Germany" in EnergyMeter(country="DEU").grid_source
    monkeypatch.setenv("QUARL_COUNTRY", "")  # set to nothing is not set
    assert "world average" in EnergyMeter().grid_source
    with pytest.raises(QuarlError, match="no grid intensity of country 'XYZ'; allowed: ISO 3166"):
        EnergyMeter(country="XYZ")
    with pytest.raises(QuarlError, match="no grid intensity of country 'CAF'"):
        EnergyMeter(country="CAF")  # codecarbon has it without an intensity


def test_it_is_silent_and_touches_neither_network_nor_files(tmp_path, monkeypatch, capfd, caplog):
    def forbidden(*args, **kwargs):
        raise AssertionError("network touched")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for cached in (grid_intensity, thread_watts, power.ram_watts):
        cached.cache_clear()
    with EnergyMeter():
        burn(0.05)
    assert os.listdir(tmp_path) == []
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert not logging.getLogger("codecarbon").disabled


def test_a_meter_is_not_entered_twice_at_once():
    meter = EnergyMeter(gpus=False)
    for _ in range(2):  # one after the other
        with meter:
            with pytest.raises(QuarlError, match="this EnergyMeter is metering"):
                meter.__enter__()
            time.sleep(0.01)
        assert 0.01 <= meter.wall_s < 10


def test_codecarbon_is_imported_only_when_something_is_metered():
    code = "import sys, quarl_nb.energy; print('codecarbon' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_preparing_counts_as_no_part_of_the_run():
    code = """
import time
from quarl_nb.energy import EnergyMeter
started = time.perf_counter()
with EnergyMeter() as meter:
    pass
print(meter.wall_s, time.perf_counter() - started)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    inside, outside = map(float, out.stdout.split())
    assert inside < 0.1 * outside
