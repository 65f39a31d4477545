"""Figure 5, exploration, and what the site holds of QAT."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from planted_qat import (
    BITS,
    LSQ,
    five_seeds_and_three_of_learned_steps,
    five_seeds_of_fp32_three_of_4_bits,
    knee,
    none,
    of_seed,
    planted,
)
from quarl_nb.report import qat, site
from quarl_nb.report.style import NothingToDrawError
from quarl_nb.store import ResultStore
from quarl_nb.study import Cell


def test_figure_5_compares_the_seeds_that_all_ways_of_a_panel_have():
    frame = five_seeds_of_fp32_three_of_4_bits()
    frame = of_seed({0: 90.0, 4: 500}, qat.gains.minmax(4), frame)
    norm = frame[frame["precision"] == "fp32"].head(1).assign(regularizer="layer_norm", key="norm")
    others = planted(none, policies=["ppo-CartPole-v1"])
    _, points = qat.figures.figure5(pd.concat([frame, norm, others], ignore_index=True))
    assert points.groupby("policy")["seeds"].agg(set).to_dict() == {
        "a2c-CartPole-v1": {2}, "ppo-CartPole-v1": {3}}  # fmt: skip
    ours = points[points["policy"] == "a2c-CartPole-v1"].set_index("method")
    assert ours.loc["none", ["mean", "seed_means"]].tolist() == [300, "100 500"]  # of 0 and 4
    four = points[(points["precision"] == "affine4") & (points["method"] == "minmax")]
    assert four["mean"].iloc[0] == 295 and four["reference"].iloc[0] == 300


def test_a_way_that_shares_no_seed_with_float32_empties_no_panel_of_figure_5():
    frame = planted(none, policies=["a2c-CartPole-v1"], n_seeds=3)
    alone = frame[frame["precision"] == "affine3"].head(1).assign(seed=9, key="of another seed")
    both = pd.concat([frame[frame["precision"] != "affine3"], alone], ignore_index=True)
    _, points = qat.figures.figure5(both)
    trained = points[points["method"] == "minmax"]
    assert set(trained["bits"]) == {2, 4, 5, 6, 7, 8} and set(points["seeds"]) == {3}
    lone = both[both["precision"] != "fp32"]
    assert qat.gains.of_shared_seeds(qat.gains.trainings(lone), ["minmax"]).empty


def test_fewer_trainings_with_learned_steps_take_no_seed_from_the_others_of_figure_5():
    fig, points = qat.figures.figure5(five_seeds_and_three_of_learned_steps())
    fp32, lsq = (points[points["method"] == name].iloc[0] for name in ("none", "lsq"))
    (four,) = points[(points["precision"] == "affine4") & (points["method"] == "minmax")].index
    # All five: (90 + 200 + 310 + 0 + 0) / 5; learned steps over 0, 1 and 2 against fp32's there.
    assert (points["mean"][four], points["seeds"][four]) == (120, 5)
    assert (fp32["mean"], fp32["seeds"], lsq["mean"], lsq["seeds"]) == (300, 5, 180, 3)
    assert lsq["reference"] == 200 and lsq["seed_means"] == "100 190 250"
    assert fig.axes[0].get_title() == "A2C CartPole\n5 seeds (learned steps: 3)"
    alike, _ = qat.figures.figure5(planted(none, policies=["a2c-CartPole-v1"], extra=[LSQ]))
    assert alike.axes[0].get_title() == "A2C CartPole\n3 seeds"


def test_figure5_draws_what_the_table_says():
    lsq: qat.gains.Way = ("affine3", "lsq", "none")
    norm: qat.gains.Way = ("fp32", "none", "layer_norm")
    frame = planted(knee, extra=[lsq, norm])
    fig, points = qat.figures.figure5(frame)
    assert len(fig.axes) == 3
    assert set(points["method"]) == {"none", "minmax", "lsq", "ptq"}
    assert set(points["regularizer"]) == {"none"}
    line = next(x for x in fig.axes[0].get_lines() if x.get_label() == "QAT")
    assert list(line.get_xdata()) == list(BITS)
    first = points["policy"].iloc[0]
    ours = frame[(frame["policy"] == first) & (frame["precision"] == "affine4")]
    dots = [y for dots in fig.axes[0].get_lines()
            for x, y in zip(*dots.get_data(), strict=True) if x == 4]
    assert set(ours["returns"].map(np.mean)) <= set(dots)
    text = points[(points["policy"] == first) & (points["precision"] == "affine4")
                  & (points["method"] == "minmax")]["seed_means"].item()
    assert [float(x) for x in text.split()] == pytest.approx(ours["returns"].map(np.mean).tolist(),
                                                             rel=1e-5)
    labels = {text.get_text() for text in fig.legends[0].get_texts()}
    assert {"8* (8-bit PTQ)", "fp32", "published: kept until 5/6 bits"} <= labels
    one, _ = qat.figures.figure5(planted(knee, n_seeds=1))
    assert all(ax.get_title().endswith("\n1 seed") for ax in one.axes) and len(one.axes) == 3
    with pytest.raises(NothingToDrawError):
        qat.figures.figure5(pd.DataFrame())


def probe_records(policy: str = "ppo-CartPole-v1") -> tuple[list[dict], dict[str, dict]]:
    """Entropy falls from 0.6; after step 50, quantization at 4 bits adds 0.1 and noise 0.02."""
    found, arrays = [], {}
    added = {qat.gains.FP32: 0.0, qat.gains.minmax(4): 0.1, ("fp32", "none", "noise4"): 0.02}
    steps = np.arange(10, 101, 10)
    for way, more in added.items():
        for seed in range(3):
            cell = dict(zip(qat.gains.WAY, way, strict=True)) | {"policy": policy, "algo": "ppo",
                                                           "seed": seed}
            key = f"{way}{seed}"
            found.append({"cell": cell, "budget": {"quant_delay": 50}, "key": key})
            entropy = 0.6 - 0.001 * steps + more * (steps > 50) + 0.01 * seed
            arrays[key] = {"probe_steps": steps, "entropy": entropy, "action_variance": entropy}
    return found, arrays


def test_exploration_is_compared_after_the_delay():
    found, arrays = probe_records()
    curves = qat.exploration.curves_frame(found, lambda record: arrays[record["key"]])
    tidy, shown = qat.exploration.exploration_tables(curves)
    table = tidy.set_index("way")
    assert table.loc["4 bits", "difference"] == pytest.approx(0.1)
    assert table.loc["noise of 4 bits", "difference"] == pytest.approx(0.02)
    assert table.loc["4 bits", "seeds"] == 3
    assert shown.loc["PPO CartPole", "4 bits"] == "+0.100 [0.100, 0.100]"
    # 0.6 - 0.001 * mean(60..100) + 0.01 * mean(0, 1, 2) + 0.1
    assert table.loc["4 bits", "entropy"] == pytest.approx(0.6 - 0.08 + 0.01 + 0.1)
    fig, points = qat.exploration.exploration_figure(curves)
    assert len(fig.axes) == 2 and len(points) == 10 * 4  # float32 stands in both rows
    alone = curves[curves["precision"] == "fp32"]
    with pytest.raises(NothingToDrawError):
        qat.exploration.exploration_figure(alone)
    empty = qat.exploration.curves_frame([], dict)
    assert all(table.empty for table in qat.exploration.exploration_tables(empty))
    with pytest.raises(NothingToDrawError):
        qat.exploration.exploration_figure(empty)


def test_quantization_is_compared_with_noise_of_its_size():
    found, arrays = probe_records()
    curves = qat.exploration.curves_frame(found, lambda record: arrays[record["key"]])
    tidy, shown = qat.exploration.noise_tables(curves)
    assert tidy["difference"].tolist() == [pytest.approx(0.1 - 0.02)]
    assert shown.loc["PPO CartPole", "4 bits"] == "+0.080 [0.080, 0.080]"
    told = qat.exploration.noise_text(tidy)
    assert "more than noise of its size in 1 and certainly less in 0 of 1 comparisons" in told
    spread = tidy.assign(low=-0.1)
    assert "in 0 and certainly less in 0 of 1" in qat.exploration.noise_text(spread)
    few, _ = qat.exploration.noise_tables(curves[curves["seed"] < 2])
    assert qat.exploration.noise_text(few).startswith("No policy has three seeds")
    assert qat.exploration.noise_text(few.iloc[:0]).startswith("No policy has three seeds")


def test_a_way_that_shares_no_seed_with_float32_has_no_entropy_beside_it():
    found, arrays = probe_records()
    curves = qat.exploration.curves_frame(found, lambda record: arrays[record["key"]])
    apart = curves.assign(seed=curves["seed"] + 9 * (curves["precision"] == "affine4"))
    tidy, shown = qat.exploration.exploration_tables(apart)
    assert list(tidy["way"]) == list(shown.columns) == ["noise of 4 bits"]
    alone = apart[apart["regularizer"] == "none"]
    assert all(table.empty for table in qat.exploration.exploration_tables(alone))


def test_curves_are_means_over_the_seeds_that_every_way_of_a_panel_has():
    found, arrays = probe_records()
    curves = qat.exploration.curves_frame(found, lambda record: arrays[record["key"]])
    quantized = curves["precision"] == "affine4"
    _, points = qat.exploration.exploration_figure(curves[~quantized | (curves["seed"] != 2)])
    first = points[points["step"] == 10].groupby(qat.gains.WAY)["entropy"].agg(list)
    # 0.6 - 0.001 * 10 + 0.01 * the mean seed: 0.5 of seeds 0 and 1, beside noise 1 of all three.
    assert first[qat.gains.minmax(4)] == pytest.approx([0.595])
    assert first[qat.gains.FP32] == pytest.approx([0.595, 0.6])
    _, points = qat.exploration.exploration_figure(curves[quantized ^ (curves["seed"] == 2)])
    assert set(points["precision"]) == {"fp32"}  # quantization shares no seed with it


def test_actions_without_an_entropy_have_panels_of_their_own():
    found, arrays = probe_records()
    curves = qat.exploration.curves_frame(found, lambda record: arrays[record["key"]])
    ddpg = curves.assign(policy="ddpg-HalfCheetah-v5", entropy=np.nan,
                         action_variance=2 * curves["action_variance"])  # fmt: skip
    ddpg = ddpg[ddpg["regularizer"] == "none"]
    others = [curves.assign(policy=f"ppo-X{i}-v0") for i in range(3)]
    fig, points = qat.exploration.exploration_figure(pd.concat([ddpg, curves, *others]))
    # Five policies quantized, four with noise: rows of four, one, and four panels.
    titles = [ax.get_title() for ax in fig.axes]
    assert titles == ["PPO CartPole", "PPO X0", "PPO X1", "PPO X2", "DDPG HalfCheetah",
                      "PPO CartPole", "PPO X0", "PPO X1", "PPO X2"]  # fmt: skip
    labels = [ax.get_ylabel() for ax in fig.axes if ax.get_ylabel()]
    assert labels == ["entropy (nats)", "variance", "entropy (nats)"]
    drawn = next(line for line in fig.axes[4].get_lines() if line.get_label() == "4 bits")
    four = points[(points["policy"] == "ddpg-HalfCheetah-v5") & (points["precision"] == "affine4")]
    assert list(drawn.get_ydata()) == list(four["action_variance"]) and four["entropy"].isna().all()
    assert fig.axes[0].get_ylim() == fig.axes[5].get_ylim()  # above and below compare


def write(store: ResultStore, study: str, cell: dict, measured: dict, **arrays: np.ndarray) -> None:
    budget = {"episodes": 30, "first_seed": 0, "quant_delay": 5}
    store.write({
        "study": study, "profile": "quick", "schema_version": 1, "cell": cell, "budget": budget,
        "key": Cell(study, cell).key(budget, 1), "measured": measured, "backend": "simulated",
        "source": "measured", "wall_s": 1.0, "provenance": {},
    }, arrays)  # fmt: skip


def test_the_site_has_figure_5_and_its_table(tmp_path):
    store, cell_names = ResultStore(tmp_path / "records"), ("policy", "algo", "env_id", "seed")
    for _, row in planted(knee, n_seeds=1, policies=["ppo-CartPole-v1"]).iterrows():
        cell = {name: row[name] for name in (*cell_names, *qat.gains.WAY)}
        measured = {"returns": row["returns"]}
        if isinstance(row["ptq_returns"], dict):
            measured["ptq_returns"] = row["ptq_returns"]
            ptq = {name: row[name] for name in cell_names} | {"precision": "fp32"}
            write(store, "ptq", ptq | {"ranges": "minmax"}, {"returns": row["returns"]})
        probes = np.linspace(0.1, 1.0, 10)
        write(store, "qat", cell, measured, probe_steps=np.arange(10), entropy=probes,
              action_variance=probes)  # fmt: skip
    names = {path.name for path in site.build(store, tmp_path / "out", "quick")}
    assert {"figure5_qat.svg", "figure5_qat.csv", "qat.tex", "qat_exploration.csv",
            "qat_exploration_curves.png"} <= names
    points = pd.read_csv(tmp_path / "out" / "quick" / "figure5_qat.csv")
    four = points[(points["precision"] == "affine4") & (points["method"] == "minmax")].iloc[0]
    assert four["mean"] == pytest.approx(280, abs=4)
