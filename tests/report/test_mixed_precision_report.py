"""Half precision: ratios by hand, and a verdict that needs speed and reward."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pandas as pd
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.report.mixed_precision.figures import speedup_by_size
from quarl_nb.report.mixed_precision.learning import learning_figure, learning_frame
from quarl_nb.report.mixed_precision.rewards import reward_table
from quarl_nb.report.mixed_precision.rules import half_precision_speedup
from quarl_nb.report.mixed_precision.site import tables_of
from quarl_nb.report.mixed_precision.speedups import parts_table, speedup_tables, speedups
from quarl_nb.report.stats import RESAMPLES
from quarl_nb.report.style import NothingToDrawError

SIZES = {"A": 1_000_000, "B": 20_000_000, "C": 100_000_000}


def records(ratios: dict[str, float], loss: float | None = None, jitter: float = 0.01,
            device: str = "cpu", seeds: int = 1) -> pd.DataFrame:  # fmt: skip
    """fp32 updates of 0.1 s; half precision's are `ratios` times shorter.

    An environment step and a decision take 0.001 s each, and every fourth step has an update.
    """
    generator = np.random.default_rng(0)
    rows = []
    for policy, ratio in ratios.items():
        for precision, update_s in (("fp32", 0.1), ("bf16", 0.1 / ratio)):
            times = update_s * (1 + jitter * generator.standard_normal(20))
            row: dict[str, Any] = {
                "key": policy + precision, "profile": "full", "policy": policy, "algo": "dqn",
                "env_id": "PongNoFrameskip-v4", "precision": precision, "device": device,
                "seed": 0, "parameters": SIZES[policy], "update_cpu_s": list(times),
                "update_s": list(3 * times), "act_cpu_s": 0.001, "env_step_cpu_s": 0.001,
                "act_s": 0.003, "env_step_s": 0.003, "train_freq": 4,
                "steps_per_s": 1 / (0.002 + update_s / 4),
                "run_energy": {"cpu_s": 0.002 + update_s / 4, "energy_j": 10 * update_s,
                               "method": "tdp_x_cpu_time"},
            }
            if loss is not None:
                common = 20 + np.sin(np.arange(30.0))
                row["returns"] = list(common * (1 - loss * (precision != "fp32")))
            rows += [row | {"seed": seed, "key": row["key"] + str(seed or "")} | (
                {"returns": [x + 0.01 * seed * (precision == "fp32") for x in row["returns"]]}
                if loss is not None else {}) for seed in range(seeds)]
    return pd.DataFrame(rows)


def test_ratios_are_those_of_the_medians():
    table = speedups(records({"A": 2.0, "B": 4.0}, jitter=0.0)).set_index("policy")
    assert table.loc["A", "learner"] == pytest.approx(2)
    assert table.loc["B", "learner"] == pytest.approx(4)
    # 0.002 + 0.025 over 0.002 + 0.0125.
    assert table.loc["A", "training"] == pytest.approx(0.027 / 0.0145)
    assert table.loc["A", "run"] == pytest.approx(0.027 / 0.0145)
    assert table.loc["A", "energy"] == pytest.approx(2)
    assert table.loc["A", "update_s"] == pytest.approx(0.05)
    assert table.loc["A", "keys"] == ("Afp32", "Abf16")
    on_gpu = speedups(records({"A": 2.0}, jitter=0.0, device="cuda")).iloc[0]
    assert on_gpu["fp32_update_s"] == pytest.approx(0.3)  # wall seconds there


@pytest.mark.parametrize("part", ["env_step", "act"])
def test_both_precisions_have_the_same_environment_and_decisions(part):
    found = records({"A": 2.0}, jitter=0.0)
    found[f"{part}_cpu_s"] = [0.001, 0.003]  # the machine's noise
    # 0.002 + 0.001 + 0.025 over 0.002 + 0.001 + 0.0125.
    assert speedups(found).iloc[0]["training"] == pytest.approx(0.028 / 0.0155)


def test_ppo_decides_in_the_precision_that_it_trains_in():
    found = records({"A": 2.0}, jitter=0.0).assign(algo="ppo", act_cpu_s=[0.004, 0.002])
    row = speedups(found).iloc[0]
    assert row["training"] == pytest.approx((0.001 + 0.004 + 0.025) / (0.001 + 0.002 + 0.0125))
    dqn = speedups(found.assign(algo="dqn")).iloc[0]
    assert dqn["training"] == pytest.approx((0.004 + 0.025) / (0.004 + 0.0125))


def test_the_figure_is_of_one_algorithm():
    """Sizes are alike of the smallest policy with DQN and with PPO."""
    found = records({"A": 2.0, "B": 3.0})
    ppo = records({"A": 1.5}).assign(algo="ppo", policy="A-ppo")
    _, points = speedup_by_size(pd.concat([found, ppo], ignore_index=True))
    assert list(points["policy"]) == ["A", "B"]
    with pytest.raises(NothingToDrawError):
        speedup_by_size(ppo)


def test_a_table_of_several_devices_names_them_and_numbers_no_rows():
    cpu = records({"A": 2.0, "B": 2.0}).assign(**{"provenance.cpu": "a processor"})
    gpu = records({"A": 2.0, "B": 2.0}, device="cuda")
    gpu = gpu.assign(key=gpu["key"] + "gpu", **{"extra.device_name": "a GPU"})
    tidy, shown = speedup_tables(pd.concat([gpu, cpu], ignore_index=True))
    assert [*tidy.index] == [*range(4)] and [*tidy["policy"]] == ["A", "B", "A", "B"]
    last = [text.split(", ")[-1] for text in shown["machine"]]
    assert last == 2 * ["a processor"] + 2 * ["a GPU"]


def test_times_of_two_processors_are_not_compared():
    found = records({"A": 2.0, "B": 4.0})
    found["provenance.cpu"] = ["one", "one", "one", "another"]
    assert list(speedups(found)["policy"]) == ["A"]


def test_times_of_two_gpus_are_not_compared():
    found = records({"A": 2.0, "B": 4.0}, device="cuda")
    found["extra.device_name"] = ["H100", "H100", "H100", "H200"]
    assert list(speedups(found)["policy"]) == ["A"]
    on_cpu = records({"A": 2.0}).assign(**{"extra.device_name": None})  # as its records have it
    assert list(speedups(on_cpu)["policy"]) == ["A"]


def test_the_first_seed_with_both_from_one_processor_is_the_one_compared():
    found = records({"A": 2.0}, seeds=3)
    found = found.sort_values("seed", ignore_index=True)  # fp32, bf16 of seeds 0, 1, 2
    assert speedups(found)["keys"].item() == ("Afp32", "Abf16")
    assert speedups(found.drop(index=0))["keys"].item() == ("Afp321", "Abf161")
    assert speedups(found.drop(index=1))["keys"].item() == ("Afp321", "Abf161")
    found["provenance.cpu"] = ["one", "another", "one", "another", "another", "another"]
    assert speedups(found)["keys"].item() == ("Afp322", "Abf162")
    fp16 = found.loc[[0, 2]].assign(precision="fp16", key="fp16")  # seeds 0 and 1, from "one"
    both = speedups(pd.concat([found, fp16], ignore_index=True)).set_index("precision")["keys"]
    assert both.to_dict() == {"bf16": ("Afp322", "Abf162"), "fp16": ("Afp32", "fp16")}


def test_a_policy_timed_alone_and_trained_besides_has_one_row_that_of_the_times_alone():
    trained = records({"A": 3.0}, loss=0.0, seeds=3)
    alone = records({"A": 2.0}).assign(key=["alone fp32", "alone bf16"])
    both = pd.concat([trained, alone], ignore_index=True)
    assert speedups(both)["keys"].item() == ("alone fp32", "alone bf16")
    assert len(parts_table(trained)) == 2
    assert parts_table(both).equals(parts_table(alone))
    told = reward_table(both)
    assert told["trainings"].item() == 3


def test_the_interval_holds_the_truth():
    row = speedups(records({"A": 2.0}, jitter=0.1)).iloc[0]
    assert row["learner_low"] < 2 < row["learner_high"]
    assert row["learner_low"] < row["learner"] < row["learner_high"]


@pytest.mark.parametrize(("device", "gpu", "machine"), [
    ("cpu", None, "A CPU"), ("cuda", "H100", "A CPU, H100"),
])  # fmt: skip
def test_the_finding_tells_the_machine_and_that_intervals_are_of_one_process(device, gpu, machine):
    frame = records({"A": 3.0}, device=device)
    frame = frame.assign(**{"provenance.cpu": "A CPU", "extra.device_name": gpu})
    found = half_precision_speedup(frame)
    assert f"bf16 on {device} ({machine}), interval within one process" in found.measured
    assert speedups(frame)["machine"].tolist() == [machine]
    assert "within one process" in tables_of({"mixed_precision": frame})["mixed_precision"].caption


def test_a_training_step_has_the_interval_of_its_updates():
    """All that it takes besides is one number: 0.002 s, and a quarter of an update."""
    frame = records({"A": 2.0}, jitter=0.1)
    row = speedups(frame).iloc[0]
    times = [np.asarray(x) for x in frame["update_cpu_s"]]
    generator = np.random.default_rng(zlib.crc32(b"Acpu0"))
    draws = [np.median(generator.choice(x, (RESAMPLES, len(x))), axis=1) for x in times]
    for name, (full, half) in (("learner", draws), ("training", [0.002 + x / 4 for x in draws])):
        ends = np.quantile(full / half, [0.025, 0.975])
        assert [row[f"{name}_low"], row[f"{name}_high"]] == pytest.approx(ends.tolist())


def test_a_return_that_never_rose_is_not_kept():
    stuck = records({"A": 1.1, "B": 3.0}, 0.0, seeds=6)
    stuck["returns"] = [[-21.0] * 30] * len(stuck)
    found = half_precision_speedup(stuck)
    assert found.verdict == "inconclusive"
    assert found.measured.endswith("compared for 0 of 2, without loss in 0 (never learned: A, B)")
    elsewhere = half_precision_speedup(stuck.assign(env_id="MyPong-v0"))
    assert elsewhere.verdict == "reproduced" and "never learned" not in elsewhere.measured


def test_a_seed_that_learned_in_neither_precision_counts_for_nothing():
    found = records({"A": 3.0}, 0.0, seeds=5)
    stuck = found["seed"] >= 2
    found["returns"] = found["returns"].where(~stuck, pd.Series([[-21.0] * 30] * len(found)))
    unknown = half_precision_speedup(found)
    assert unknown.verdict == "inconclusive"
    assert unknown.measured.endswith("reward compared for 0 of 1, without loss in 0")


@pytest.mark.parametrize(
    ("ratios", "loss", "verdict"),
    [
        ({"A": 1.1, "B": 3.0}, 0.0, "reproduced"),
        ({"A": 1.1, "B": 3.0}, None, "inconclusive"),  # fast, the reward unknown
        ({"A": 1.1, "B": 3.0}, 0.5, "inconclusive"),  # slow, or with a loss, but on a CPU
        ({"A": 1.1, "B": 1.2}, None, "inconclusive"),
    ],
)
def test_the_verdict_needs_speed_and_reward(ratios, loss, verdict):
    found = half_precision_speedup(records(ratios, loss, seeds=3))
    assert found.verdict == verdict
    assert "policy B in bf16 on cpu" in found.measured
    runs = ("", "1", "2") if loss is not None else ("",)
    assert set(found.keys) == {f"{policy}{precision}{run}" for policy in "AB"
                               for precision in ("fp32", "bf16") for run in runs}  # fmt: skip


@pytest.mark.parametrize(
    ("ratios", "loss", "device", "half", "verdict"),
    [
        ({"A": 1.1, "B": 1.2, "C": 1.2}, None, "cuda", "fp16", "not reproduced"),
        ({"A": 1.1, "B": 1.2, "C": 3.0}, 0.5, "cuda", "fp16", "not reproduced"),
        ({"A": 1.1, "B": 1.2, "C": 3.0}, None, "cuda", "fp16", "inconclusive"),
        ({"A": 1.1, "B": 1.2}, None, "cuda", "fp16", "inconclusive"),  # C may be faster
        ({"A": 1.1, "B": 1.2, "C": 1.2}, None, "cuda", "bf16", "inconclusive"),
        ({"A": 1.1, "B": 1.2, "C": 1.2}, None, "cpu", "bf16", "inconclusive"),
    ],
)
def test_only_the_preprints_policies_in_float16_on_a_gpu_refute(ratios, loss, device, half,
                                                               verdict):  # fmt: skip
    frame = records(ratios, loss, device=device, seeds=3)
    frame["precision"] = frame["precision"].replace("bf16", half)
    assert half_precision_speedup(frame).verdict == verdict


def test_what_was_only_timed_does_not_count_among_the_returns_that_were_tried():
    trained = records({"A": 3.0}, 0.0, seeds=3).assign(env_id="MyPong-v0")
    half = trained["precision"] == "bf16"
    trained["returns"] = [[20 + 0.75 * seed * bf16] * 30
                          for seed, bf16 in zip(trained["seed"], half, strict=True)]  # fmt: skip
    # Gains of 0, 3.75 and 7.5 %: Student's t of (3.75 + 5) / (3.75 / sqrt 3), p = 0.028.
    for others in ({}, {"B": 3.0, "C": 3.0}):
        timed = records(others).assign(env_id="MyPong-v0") if others else trained.iloc[:0]
        frame = pd.concat([trained, timed], ignore_index=True)
        assert half_precision_speedup(frame).verdict == "reproduced", others


def test_noise_seldom_passes_for_the_one_policy_without_loss():
    """Three policies in two formats, all fast, of which each loses the 5 %."""
    bf16 = records(dict.fromkeys(SIZES, 3.0), 0.0, seeds=3).assign(env_id="MyPong-v0")
    fp16 = bf16[bf16["precision"] == "bf16"].assign(precision="fp16", key=lambda rows: rows["key"]
                                                    + "fp16")  # fmt: skip
    frame = pd.concat([bf16, fp16], ignore_index=True)
    half = (frame["precision"] != "fp32").to_numpy()

    def kept(seed: int) -> bool:
        earned = np.where(half, 19 + np.random.default_rng(seed).normal(0, 0.3, len(half)), 20)
        found = half_precision_speedup(frame.assign(returns=[[mean] * 30 for mean in earned]))
        return found.verdict == "reproduced"

    assert sum(kept(seed) for seed in range(40)) <= 6  # 2 expected; 11 without a correction


def test_one_of_several_policies_must_be_surely_fast_for_all_that_were_timed():
    """Of six that take 1.5 times as long one in ten passes otherwise."""
    alone = records({"A": 1.86}, 0.0, jitter=0.2, seeds=3)
    three = records({"A": 1.86, "B": 1.1, "C": 1.1}, 0.0, jitter=0.2, seeds=3)
    of_one, of_three = (speedups(frame).set_index("policy").loc["A"] for frame in (alone, three))
    assert of_one["training_least"] == of_one["training_low"] == of_three["training_low"] > 1.5
    assert of_three["training_least"] < 1.5
    assert half_precision_speedup(alone).verdict == "reproduced"
    assert half_precision_speedup(three).verdict == "inconclusive"


def test_a_policy_timed_on_two_machines_was_trained_once():
    """Gains of 0, 2 and -2.5 %: p = 0.033 of a loss of 5 %, too much for two tests."""
    times = records({"A": 2.0})
    trained = records({"A": 2.0}, 0.0, seeds=3).assign(**{"provenance.cpu": "one"})
    for seed, mean in enumerate((20.0, 20.4, 19.5)):
        trained.loc[trained["seed"] == seed, "returns"] = pd.Series(
            [[20.0] * 30, [mean] * 30], index=trained.index[trained["seed"] == seed])  # fmt: skip
    both = pd.concat([trained, times.assign(**{"provenance.cpu": "another"})], ignore_index=True)
    assert len(speedups(both)) == 2
    one, two = half_precision_speedup(trained), half_precision_speedup(both)
    assert one.verdict == two.verdict == "reproduced"
    assert two.measured.endswith("reward compared for 1 of 1, without loss in 1")
    assert len(reward_table(both)) == 1


def test_the_smoke_profile_decides_nothing():
    smoke = records({"A": 1.1}).assign(profile="smoke")
    assert half_precision_speedup(smoke).verdict == "not measured"


def test_one_training_a_side_says_nothing_about_precision():
    """Two trainings of float32 differ as much; their episodes tell nothing of the next."""
    one, two = (half_precision_speedup(records({"A": 3.0}, loss, seeds=1)) for loss in (0.0, 0.5))
    assert one.verdict == two.verdict == "inconclusive"
    assert one.measured.endswith("reward compared for 0 of 1, without loss in 0")
    frame = records({"A": 3.0}, 0.0, seeds=3)
    for seed, mean in ((0, 20.0), (1, 10.0), (2, 21.0)):  # another seed, another half return
        at = (frame["seed"] == seed) & (frame["precision"] == "bf16")
        frame.loc[at, "returns"] = pd.Series([[mean] * 30], index=frame.index[at])
    unsure = half_precision_speedup(frame)
    assert unsure.verdict == "inconclusive" and "compared for 1 of 1" in unsure.measured
    (line,) = reward_table(frame).to_dict("records")
    # fp32 earns 20 + 0.01 * seed + the mean of sin(0..29); gains of 0, -10 and 1 or so.
    assert (line["policy"], line["trainings"], line["episodes each"]) == ("A", 3, 30)
    gain = line["gain over fp32 [95 %, trainings]"]
    assert gain.startswith("-15.") and gain.count("%") == 3
    lone = reward_table(records({"A": 3.0}, 0.0)).iloc[0]
    assert lone["gain over fp32 [95 %, trainings]"] == "0.0%"  # without ends
    assert reward_table(records({"A": 3.0})).empty and reward_table(pd.DataFrame()).empty


@pytest.mark.parametrize("name", ["timesteps", "eval_episodes", "first_seed"])
def test_trainings_of_other_budgets_are_not_compared(name):
    frame = records({"A": 3.0, "B": 3.0}, 0.0, seeds=3).assign(**{f"budget.{name}": 9})
    assert len(reward_table(frame)) == 2
    frame.loc[frame["key"] == "Bbf161", f"budget.{name}"] = 8
    message = f"^B: trainings that are compared had {name} 9 and 8; run all with the same$"
    for compare in (reward_table, half_precision_speedup):
        with pytest.raises(QuarlError, match=message):
            compare(frame)


def test_without_records_nothing_is_measured():
    assert half_precision_speedup(pd.DataFrame()).verdict == "not measured"
    lone = records({"A": 2.0})
    assert half_precision_speedup(lone[lone["precision"] == "fp32"]).verdict == "not measured"
    with pytest.raises(NothingToDrawError):
        speedup_by_size(pd.DataFrame())
    assert all(table.empty for table in speedup_tables(pd.DataFrame()))
    assert parts_table(pd.DataFrame()).empty


def test_figure_and_table_show_the_ratios():
    frame = records({"A": 1.6, "B": 2.0, "C": 3.0}, jitter=0.0)
    fig, points = speedup_by_size(frame)
    assert list(points["policy"]) == ["A", "B", "C"]
    ticks = [text.get_text() for text in fig.axes[0].get_xticklabels()]
    assert ticks == ["A\n1 M", "B\n20 M", "C\n100 M"]
    _, shown = speedup_tables(frame)
    assert list(shown["learner [95 %]"]) == [
        f"{r:.2f} [{r:.2f}, {r:.2f}]" for r in (1.6, 2.0, 3.0)
    ]
    assert shown["parameters"].iloc[0] == "1,000,000"


def test_the_caption_names_no_method_since_each_row_has_its_own():
    made = tables_of({"mixed_precision": records({"A": 1.6})})["mixed_precision"]
    assert "tdp_x_cpu_time" not in made.caption
    assert made.shown["its energy (method)"].str.contains("tdp_x_cpu_time").all()


def test_of_a_short_run_seconds_and_energy_say_what_they_are():
    on_cpu, on_gpu = (records({"A": 2.0}, jitter=0.0, device=name) for name in ("cpu", "cuda"))
    gpu = on_gpu["run_energy"].map(lambda read: read | {"method": "rapl+nvml"})
    (cpu,), (cuda,) = (speedup_tables(frame)[1].to_dict("records")
                       for frame in (on_cpu, on_gpu.assign(run_energy=gpu)))  # fmt: skip
    # 0.002 + 0.025 over 0.002 + 0.0125 seconds, and half of the joules.
    assert cpu["short run"] == "1.86x of CPU seconds"
    assert cuda["short run"] == "1.86x of wall seconds"
    assert cpu["its energy (method)"] == "2.00x (tdp_x_cpu_time)"
    assert cuda["its energy (method)"] == "2.00x (rapl+nvml)"
    on_cpu.at[0, "run_energy"] = {"cpu_s": 0.027, "energy_j": 1.0, "method": "pmic"}
    assert speedups(on_cpu)["energy_method"].tolist() == ["pmic and tdp_x_cpu_time"]


def test_the_parts_of_a_step():
    shown = parts_table(records({"A": 2.0}, jitter=0.0)).set_index("precision")
    # Updates of 0.1 CPU seconds every fourth step, beside two milliseconds.
    assert list(shown["learner (ms)"]) == ["12.50", "25.00"]
    assert shown.loc["fp32", "environment (ms)"] == shown.loc["fp32", "decision (ms)"] == "1.00"
    assert shown.loc["fp32", "learner's share"] == "93%"


def test_the_parts_of_a_step_name_their_machine():
    both = [records({"A": 2.0}).assign(**{"provenance.cpu": cpu}) for cpu in ("one", "another")]
    shown = parts_table(pd.concat(both, ignore_index=True))
    assert not shown.duplicated(["policy", "device", "machine", "precision"]).any()
    assert sorted(shown["machine"]) == ["another", "another", "one", "one"]


def trained(
    precision: str, seed: int, training_s: float, cpu: str = "one", **curve: list
) -> tuple[dict, dict]:
    """A record of the store, and its arrays."""
    cell = {"policy": "zoo", "device": "cpu", "precision": precision, "seed": seed}
    measured = {"timesteps": 4000, "training_s": training_s}
    arrays = {f"training_{name}": np.asarray(values) for name, values in curve.items()}
    record = {"cell": cell, "measured": measured, "provenance": {"cpu": cpu}}
    return record | {"key": f"{precision}{seed}"}, arrays


def curves_of(*runs: tuple[dict, dict]) -> pd.DataFrame:
    arrays = {record["key"]: found for record, found in runs}
    return learning_frame([record for record, _ in runs], lambda record: arrays[record["key"]])


def test_curves_are_against_steps_and_against_the_time_that_training_took():
    timed = {"cell": {}, "measured": {"update_s": [1.0]}, "key": "timed"}
    run, arrays = trained("fp32", 0, 240.0, steps=[1000, 3000], returns=[-21.0, 5.0])
    frame = learning_frame([timed, run], lambda _: arrays)
    assert frame[["step", "minute", "return"]].to_numpy().tolist() == [[1, 1, -21], [3, 3, 5]]
    assert learning_frame([timed], lambda _: {}).empty


def test_learning_is_drawn_as_the_mean_and_the_range_of_the_runs():
    frame = curves_of(
        trained("fp32", 0, 240.0, steps=[1000, 3000], returns=[0.0, 20.0]),
        trained("fp32", 1, 240.0, steps=[1000, 3000], returns=[0.0, 10.0]),
        trained("bf16", 0, 120.0, steps=[2000, 4000], returns=[4.0, 6.0]),
    )
    fig, points = learning_figure(frame)
    by_step = points[points["axis"] == "step"].groupby("precision")
    last = by_step.last()
    assert last.loc["fp32", ["x", "mean", "low", "high", "runs"]].tolist() == [3, 15, 10, 20, 2]
    assert last.loc["bf16", ["x", "mean", "low", "high", "runs"]].tolist() == [4, 6, 6, 6, 1]
    by_time = points[points["axis"] == "minute"].groupby("precision").last()["x"]
    assert by_time.to_dict() == {"fp32": 3, "bf16": 2}
    assert [ax.get_xlabel() for ax in fig.axes] == ["thousands of environment steps",
                                                    "minutes of training"]  # fmt: skip


def test_a_precision_without_its_peer_is_not_drawn():
    alone = curves_of(trained("bf16", 0, 240.0, steps=[1000, 3000], returns=[0.0, 20.0]))
    apart = curves_of(*(trained(precision, 0, 240.0, cpu, steps=[1000, 3000], returns=[0.0, 20.0])
                        for precision, cpu in (("fp32", "one"), ("bf16", "another"))))  # fmt: skip
    for frame in (alone, apart, pd.DataFrame()):
        with pytest.raises(NothingToDrawError, match="in float32 and in half precision"):
            learning_figure(frame)
