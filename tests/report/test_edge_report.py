"""The Pi study's report against planted times, bytes and flights."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from planted_edge import (
    NETWORKS,
    RAM,
    RUNTIME,
    SHARE,
    SYSTEM,
    flights,
    imported,
    timed,
)
from quarl_nb.edge.boards import BOARDS, model_inputs
from quarl_nb.errors import QuarlError
from quarl_nb.report import edge
from quarl_nb.report.edge import timings
from quarl_nb.report.stats import wilson
from quarl_nb.report.style import NothingToDrawError
from quarl_nb.rl.air.navigation import N_ACTIONS
from quarl_nb.rl.air.world import OBS_SIZE


def test_times_stand_side_by_side_with_speedups_of_the_same_runtime() -> None:
    rows = timings.latency_rows(timed()).set_index(["policy", "precision", "runtime", "machine"])
    assert len(rows) == 3 * 3 * 2 * 2
    row = rows.loc["Policy II", "int8", "c", timings.HERE]
    assert row["latency_s"] == pytest.approx(2.5e-6) and row["speedup"] == pytest.approx(4)
    assert row["speedup_low"] == pytest.approx(4 * 0.9 / 1.1)
    assert row["speedup_high"] == pytest.approx(4 * 1.1 / 0.9)
    assert row["keys"] == ("256x3/fp32/c", "256x3/int8/c")
    board = rows.loc["Policy III", "fp32", "c", timings.PAPERS_BOARD]
    assert board["source"] == "modelled" and np.isnan(board["low_s"]) and np.isnan(board["speedup"])
    assert board["bound_by"] == "memory" and row["bound_by"] == ""
    assert rows.loc["Policy III", "int8", "c", timings.PAPERS_BOARD]["bound_by"] == "arithmetic"
    assert board["free_bytes"] == RAM - SYSTEM - RUNTIME - 11_000_000


def test_a_board_that_was_imported_is_one_more_machine() -> None:
    pi = "Raspberry Pi 5 Model B"
    boards = pd.DataFrame([imported([22, 64, 64, 64, 25], "fp32", 30, pi),
                           imported([22, 64, 64, 64, 25], "int8", 10, pi),
                           imported([4, 9, 8, 2], "int8", 1, pi)])
    rows = timings.latency_rows(pd.concat([timed(), boards]))
    ours = rows[rows["machine"] == pi].set_index(["network", "precision"])
    assert ours.loc[("64x3", "int8"), "speedup"] == pytest.approx(3)
    assert ours.loc[("64x3", "int8"), "policy"] == "Policy I"
    assert ours.loc[("9-8", "int8"), "policy"] == ""
    shown = edge.tables.table6(rows, pd.DataFrame())
    assert shown.loc[("Policy I", "int8"), ("speed-up over fp32", f"measured, {pi}, C")] == "3×"
    assert (pi, "measured, C", "9-8") in edge.tables.boards_table(rows).index
    jetson = timings.latency_rows(boards.assign(board="NVIDIA Jetson Nano"))
    assert {*edge.tables.boards_table(jetson).index.get_level_values("board")} == {
        "NVIDIA Jetson Nano"}  # fmt: skip
    assert timings.HERE not in edge.tables.boards_table(rows).index.get_level_values("board")


def test_policies_of_a_board_are_told_apart_by_their_sizes_names_and_ranges() -> None:
    pi, sizes = "Raspberry Pi 5 Model B", [22, 64, 64, 64, 25]
    cart = [imported([4, 64, 64, 64, 2], precision, us, pi) | {"policy": "cart"}
            for precision, us in (("fp32", 5), ("int8", 4))]  # fmt: skip
    ours = [imported(sizes, precision, us, pi) | {"policy": name}
            for name, full in (("a", 30), ("b", 60))
            for precision, us in (("fp32", full), ("int8", 10))]  # fmt: skip
    wide = imported(sizes, "int8", 20, pi) | {"policy": "b", "ranges": "mse"}
    rows = timings.latency_rows(pd.DataFrame([*ours, wide, *cart]))
    assert len(rows) == 7
    found = rows.set_index(["policy", "exported", "ranges"])["speedup"].dropna().to_dict()
    assert found == pytest.approx({
        ("", "cart", "minmax"): 1.25, ("Policy I", "a", "minmax"): 3,
        ("Policy I", "b", "minmax"): 6, ("Policy I", "b", "mse"): 3,
    })  # fmt: skip
    shown = edge.tables.boards_table(rows)["speed-up over fp32", "int8"].droplevel([0, 1])
    assert shown.to_dict() == {"64x3": "1.25×", "Policy I (a)": "3×", "Policy I (b)": "6×",
                               "Policy I (b, mse)": "3×"}  # fmt: skip
    columns = edge.tables.table6(rows, pd.DataFrame())["speed-up over fp32"].loc["Policy I", "int8"]
    assert columns.drop("published, Raspberry Pi 3B").to_dict() == {
        f"measured, {pi}, C, {name}": ratio
        for name, ratio in (("a", "3×"), ("b", "6×"), ("b, mse", "3×"))}  # fmt: skip
    memory = edge.rules.resident_memory_smaller(pd.DataFrame([*ours, wide]), factor=3.8)
    assert "1.03 times smaller in C; the weights alone" in memory.measured


def test_table_6_is_of_the_navigation_task() -> None:
    assert (timings.OBSERVATIONS, timings.ACTIONS) == (OBS_SIZE, N_ACTIONS)


def test_what_boards_say_of_themselves_is_not_what_the_model_knows_of_others() -> None:
    pi = "Raspberry Pi 5 Model B"
    boards = pd.DataFrame([
        imported([22, 64, 64, 64, 25], precision, us, pi) | {"extra.board": {"model": pi}}
        for precision, us in (("fp32", 30), ("int8", 10))
    ])  # fmt: skip
    for rows in (edge.modelled.explanation_rows, edge.modelled.emulated_rows):
        assert rows(boards).empty
    assert edge.modelled.board_inputs(boards, {}).empty
    with pytest.raises(NothingToDrawError, match="no modelled board"):
        edge.memory_figure.memory_bars(boards)
    every = pd.concat([timed(), boards], ignore_index=True)
    assert set(edge.modelled.board_inputs(every, {})["machine"]) == {timings.PAPERS_BOARD}
    assert len(edge.modelled.explanation_rows(every)) == 6
    fig, points = edge.memory_figure.memory_bars(every)
    assert pi not in set(points["machine"])  # the panel is of this machine
    alone, _ = edge.memory_figure.memory_bars(timed())
    assert len(fig.axes[1].lines) == len(alone.axes[1].lines)
    frames = {"edge": pd.DataFrame(), "edge_board": boards, "navigation": pd.DataFrame()}
    assert {"table6_edge", "edge_boards"} == {*edge.site.tables_of(frames)}


def test_times_of_two_processors_are_not_compared() -> None:
    records = timed()
    records["provenance.cpu"] = np.where(records["precision"] == "fp32", "theirs", "ours")
    rows = timings.latency_rows(records)
    int8 = rows[rows["precision"] == "int8"]
    assert int8.loc[int8["machine"] == timings.HERE, "speedup"].isna().all()
    assert int8.loc[int8["source"] == "modelled", "speedup"].notna().all()


def test_policies_are_those_of_table_6() -> None:
    assert timings.table6_networks() == NETWORKS


def test_published_times_are_those_of_the_paper() -> None:
    rows = timings.published_times().set_index(["policy", "precision"])
    assert rows.loc[("Policy II", "fp32"), "latency_s"] == pytest.approx(0.13349)
    assert rows.loc[("Policy III", "int8"), "speedup"] == 18.85
    rates = edge.success.published_success().set_index(["policy", "precision"])
    assert rates.loc[("Policy III", "int8"), "fall"] == pytest.approx(0.11)
    # Of the Wilson intervals 77.9 to 91.5 and 65.7 to 82.5 %: 86 - 77.9 and 82.5 - 75 in squares.
    ends = rates.loc[("Policy III", "int8"), ["fall_low", "fall_high"]].tolist()
    assert ends == pytest.approx([-0.0004, 0.2180], abs=1e-4)
    assert pd.isna(rates.loc[("Policy III", "fp32"), "fall"])


def test_newcombes_example_of_a_difference() -> None:
    """Newcombe 1998, Table II: 56 of 70 less 48 of 80."""
    difference = edge.success.weighted_sum([1, -1], [wilson(56, 70), wilson(48, 80)])
    assert [difference.value, difference.low, difference.high] == pytest.approx(
        [0.2, 0.0524, 0.3339], abs=1e-4)


def test_what_swapping_would_have_to_explain_by_hand() -> None:
    rows = edge.modelled.explanation_rows(timed()).set_index(["policy", "precision"])
    assert len(rows) == 6  # int4 was not published
    row = rows.loc[("Policy II", "fp32")]
    assert row["published_s"] == pytest.approx(0.13349) and row["modelled_s"] == pytest.approx(1e-3)
    assert row["flash_bytes"] == pytest.approx(20e6 * 0.13249)
    assert row["flash_over_weights"] == pytest.approx(20e6 * 0.13249 / 600_000)
    assert row["said_to_exceed"] and not row["exceeds"]
    assert not rows.loc[("Policy III", "int8"), "said_to_exceed"]
    text = edge.modelled.explanation_text(rows.reset_index())
    assert text.startswith("None of the policies said to exceed the memory does: the largest, "
                           "Policy III in fp32, makes by the model of a Raspberry Pi 3B a process "
                           "of 71 MB, where 900 MB are free for it.")  # fmt: skip
    assert "by the same model, a decision would have to read the weights from flash" in text
    # 0.6 MB would not fit where 2.75 MB do, whatever else the process holds.
    assert "Policy II in fp32 (0.60 MB of weights) would have to overflow while Policy III in " \
           "int8 (2.75 MB) fits." in text


def test_a_board_that_is_too_small_is_told() -> None:
    rows = edge.modelled.explanation_rows(timed(ram=SYSTEM + RUNTIME + 10_000_000))
    assert list(rows["exceeds"]) == [False, False, False, False, True, False]
    text = edge.modelled.explanation_text(rows)
    assert text.startswith("One of the policies said to exceed the memory does:")
    assert "swap" not in text
    bound = timings.latency_rows(timed(ram=SYSTEM + RUNTIME + 10_000_000))["bound_by"]
    assert "flash" in set(bound)


def test_the_longer_of_memory_and_arithmetic_bounds() -> None:
    records = timed()
    for share, bound in ((0.9, "arithmetic"), (1.1, "memory")):
        records["modelled_memory_s"] = share * records["modelled_compute_s"]
        rows = timings.latency_rows(records)
        assert set(rows.loc[rows["source"] == "modelled", "bound_by"]) == {bound}


def test_table6_has_published_measured_and_modelled() -> None:
    rates = edge.success.success_rows(flights({("int8", "minmax"): 0.8}))
    shown = edge.tables.table6(timings.latency_rows(timed()), rates)
    assert len(shown) == 9
    row = shown.loc[("Policy III", "int8")]
    times, ratios = row["one decision (ms)"], row["speed-up over fp32"]
    assert times["published, Raspberry Pi 3B"] == "11" and ratios.iloc[0] == "18.9×"
    assert times["measured, this machine, C"] == "0.025"
    assert times["modelled, Raspberry Pi 3B"] == "2.5"
    assert ratios["modelled, Raspberry Pi 3B"] == "4×"
    assert row["process (MB)", "measured, this machine, ORT"] == "62.8"
    assert row["weights (kB)", ""] == "2,750"
    assert row["success", "published"] == "75%"
    assert row["success", edge.tables.MEASURED].startswith("80.0% [77.4%, 82.4%]")
    int4 = shown.loc[("Policy III", "int4")]
    assert int4["one decision (ms)", "published, Raspberry Pi 3B"] == ""
    kinds = {where.split(",")[0] for head, where in shown.columns if head.startswith("one")}
    assert kinds == {"published", "measured", "modelled"}


def test_without_records_the_published_table_stands_alone() -> None:
    nothing = pd.DataFrame()
    assert timings.latency_rows(nothing).empty and edge.success.success_rows(nothing).empty
    assert edge.success.success_rows(timed()).empty and timings.latency_rows(flights({})).empty
    shown = edge.tables.table6(nothing, nothing)
    assert shown.loc[("Policy I", "fp32"), ("success", "published")] == "60%"
    for rows in (edge.modelled.explanation_rows, edge.modelled.emulated_rows):
        assert rows(nothing).empty
    assert edge.modelled.board_inputs(nothing, {}).empty
    for table in ("explanation_table", "boards_table", "inputs_table", "emulated_table",
                  "success_table", "falls_table"):
        assert getattr(edge.tables, table)(nothing).empty
    for draw in (edge.memory_figure.memory_bars, edge.success_figures.success_figure,
                 edge.success_figures.success_against_latency):
        with pytest.raises(NothingToDrawError):
            draw(nothing)
    frames = dict.fromkeys(edge.site.STUDIES, nothing)
    assert edge.site.tables_of(frames) == {}


def test_falls_are_those_planted() -> None:
    rows = edge.success.success_rows(flights({
        ("int8", "minmax"): 0.78, ("int8", "per_channel"): 0.9, ("affine5", "qat"): 0.88,
    })).set_index(["policy", "precision", "method"])  # fmt: skip
    assert list(rows.index[:4]) == [
        ("Policy I", "fp32", "minmax"), ("Policy I", "int8", "minmax"),
        ("Policy I", "int8", "per_channel"), ("Policy I", "affine5", "qat"),
    ]  # fmt: skip
    row = rows.loc["Policy II", "int8", "minmax"]
    assert (row["success"], row["episodes"]) == (0.78, 1000)
    assert row["crash"] == pytest.approx(0.22)
    assert row["fall_low"] < row["fall"] < row["fall_high"]
    assert row["fall"] == pytest.approx(0.12)
    assert row["p_loss"] < 0.01 and row["kernel"] == "int8"
    kept = rows.loc["Policy II", "int8", "per_channel"]
    assert kept["fall"] == 0 and kept["p_no_loss"] < 0.01
    assert rows.loc["Policy II", "affine5", "qat"]["kernel"] == "int8"
    shown = edge.tables.success_table(rows.reset_index()).set_index(["policy", "precision"])
    int8 = shown.loc[("Policy I", "int8")]
    assert list(int8["fall, published"]) == ["15", ""]  # what was published is min-max
    assert int8["fall, measured [95 %]"].iloc[0].startswith("+12.0 [+9.9, +14.")


def test_falls_in_short_have_a_row_a_method_and_a_column_a_precision() -> None:
    flown = {("int8", "minmax"): 0.78, ("int8", "per_channel"): 0.9, ("affine5", "qat"): 0.85}
    table = edge.tables.falls_table(edge.success.success_rows(flights(flown)))
    assert list(table) == ["policy", "success in fp32 [95 %]", "method", "int8", "affine5"]
    assert list(table["method"][:3]) == ["PTQ, min-max", "PTQ, per channel", "QAT"]
    assert list(table["policy"][:4]) == ["Policy I", "", "", "Policy II"]
    first = table.iloc[0]
    assert first["success in fp32 [95 %]"].startswith("90.0% [") and first["affine5"] == ""
    assert first["int8"].startswith("+12.0 [+") and table.loc[2, "affine5"].startswith("+5.0 [")


def test_trainings_with_quantization_are_judged_by_how_they_differ() -> None:
    def trained(*rates: float) -> pd.Series:
        """Policy I at these rates; the last is of episodes that the others fail first."""
        parts = [flights({("affine4", "qat"): rate}).assign(seed=i) for i, rate in enumerate(rates)]
        parts[1:] = [part[part["method"] == "qat"] for part in parts[1:]]
        rows = edge.success.success_rows(pd.concat(parts, ignore_index=True))
        return rows[(rows["policy"] == "Policy I") & (rows["method"] == "qat")].iloc[0]

    two = trained(0.8, 0.6)
    assert two["trainings"] == 2 and two["episodes"] == 2000
    assert two["success"] == pytest.approx(0.7) and two["fall"] == pytest.approx(0.2)
    assert np.isnan([two["low"], two["high"], two["fall_low"], two["fall_high"]]).all()
    assert two["p_no_loss"] == two["p_loss"] == 1
    three = trained(0.8, 0.7, 0.6)  # standard error 0.1 / sqrt(3), of which 4.30 hold 95 %
    assert three["high"] - three["success"] == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-3)
    assert three["low"] == pytest.approx(0.7 - 0.2484, rel=1e-3)
    assert three["fall_high"] == pytest.approx(0.2 + 0.2484, rel=1e-3)
    assert trained(0.99, 0.9, 0.99)["high"] == 1.0
    assert trained(0.01, 0.1, 0.01)["low"] == 0.0


def test_two_trainings_stand_in_tables_without_an_interval() -> None:
    rows = edge.success.success_rows(flights({("affine4", "qat"): 0.7}, trainings=2))
    shown = edge.tables.success_table(rows).set_index(["policy", "precision"])
    qat = shown.loc[("Policy I", "affine4")]
    assert qat[f"success, {edge.tables.MEASURED} [95 %]"] == "70.0%"
    assert qat["fall, measured [95 %]"] == "+20.0"
    assert edge.tables.falls_table(rows).loc[0, "affine4"] == "+20.0"


def test_trainings_that_succeed_as_often_are_as_sure_as_one() -> None:
    """They leave Student's t no scale, and fly the same episodes."""
    runs = flights({("affine5", "qat"): 0.95}, base=0.95)
    qat = runs["method"] == "qat"
    runs.loc[qat, "outcomes"] = runs.loc[qat, "outcomes"].map(lambda flown: flown[::-1])
    more = [runs[qat].assign(seed=seed) for seed in (1, 2)]
    rows = edge.success.success_rows(pd.concat([runs, *more], ignore_index=True))
    for _, row in rows[rows["method"] == "qat"].iterrows():
        assert row["trainings"] == 3 and row["fall"] == 0
        assert row["fall_low"] < 0 < row["fall_high"] < 0.03 and row["p_no_loss"] <= 0.05
        assert (row["low"], row["high"]) == pytest.approx((0.9347, 0.9619), abs=1e-3)  # of 1000


def test_other_episodes_do_not_compare() -> None:
    records = flights({("int8", "minmax"): 0.8})
    at = records.index[records["precision"] == "int8"][0]
    records.at[at, "budget.first_seed"] = 1
    with pytest.raises(QuarlError, match="int8 and fp32 flew different episodes"):
        edge.success.success_rows(records)
    pair = ("Policy I", "fp32"), ("Policy I", "int8")
    assert edge.success.loss_between(records, *pair) is None
    records = flights({("int8", "minmax"): 0.81})
    loss = edge.success.loss_between(records, *pair)
    assert loss is not None and loss.interval.value == pytest.approx(0.1)


def test_policies_that_stopped_early_stand_below_the_others_and_beside_what_was_published() -> None:
    two = {"Policy I": "64x3", "Policy II": "256x3"}
    early = flights({("int8", "minmax"): 0.5}, base=0.6, networks=two, ending=edge.success.EARLY)
    every = pd.concat([early, flights({("int8", "minmax"): 0.81})], ignore_index=True)
    rows = edge.success.success_rows(every)
    names = [*NETWORKS, *map(edge.success.stopped, two)]
    assert list(rows["policy"].unique()) == names
    found = rows.set_index(["policy", "precision"])["fall"]
    assert found["Policy I", "int8"] == pytest.approx(0.09)
    assert found["Policy I, stopped early", "int8"] == pytest.approx(0.1)
    shown = edge.tables.success_table(rows).set_index(["policy", "precision"])
    assert shown.loc[("Policy II, stopped early", "int8"), "fall, published"] == "14"
    table6 = edge.tables.table6(pd.DataFrame(), rows)
    assert table6.loc[("Policy I", "int8"), ("success", edge.tables.MEASURED)].startswith("81.0%")
    loss = edge.success.loss_between(every, ("Policy I", "fp32"), ("Policy I", "int8"))
    assert loss is not None and loss.interval.value == pytest.approx(0.1)  # 0.09 of 0.9
    fig, points = edge.success_figures.success_figure(every)
    assert [ax.get_title() for ax in fig.axes] == names and len(points) == 10
    _, latencies = edge.success_figures.success_against_latency(pd.concat([timed(), every]))
    assert set(latencies["policy"]) == {*NETWORKS}


def test_a_policy_of_ones_own_stands_under_its_own_name_beside_those_of_table_6() -> None:
    one = {"Policy I": "64x3"}
    def own(rate: float, version: str, start_time: str) -> pd.DataFrame:
        return flights({("int8", "minmax"): rate}, networks=one).assign(**{
            "policy": "mine", "budget.tensors_sha256": version, "provenance.start_time": start_time,
        })  # fmt: skip

    ours = flights({("int8", "minmax"): 0.81}).assign(**{"provenance.start_time": "2026-01-01"})
    mine = own(0.5, "b2", "2026-02-01")
    older = own(0.7, "a1", "2026-01-01").assign(network="32x2")  # another of that name
    every = pd.concat([mine, older, ours], ignore_index=True)
    rows = edge.success.success_rows(every).set_index(["policy", "precision"])
    assert rows.loc[("Policy I", "int8"), "success"] == 0.81
    assert rows.loc[("mine", "int8"), "success"] == 0.5
    assert len(rows) == 2 * len(NETWORKS) + 2
    loss = edge.success.loss_between(every, ("Policy I", "fp32"), ("Policy I", "int8"))
    assert loss is not None and loss.interval.value == pytest.approx(0.1)
    with pytest.raises(NothingToDrawError, match="of Table 6's policies none has flown"):
        edge.success_figures.success_figure(mine)


def test_a_policy_that_never_succeeds_has_no_fall() -> None:
    rows = edge.success.success_rows(flights({("int8", "minmax"): 0.0}, base=0.0))
    assert rows["fall"].isna().all() and (rows["p_no_loss"] == 1).all()


def test_memory_figure_plots_boards_and_processes() -> None:
    fig, points = edge.memory_figure.memory_bars(timed())
    boards = points[points["source"] == "modelled"]
    assert list(boards["precision"]) == ["fp32", "int8", "int4"]
    assert set(boards["policy"]) == {"Policy III"}
    bars = [bar for bar in fig.axes[0].patches if bar.get_width() > 0]
    assert len(bars) == 9 and sum(b.get_width() for b in bars[:3]) == pytest.approx(
        (SYSTEM + RUNTIME + 11_000_000) / RAM)  # fmt: skip
    assert len(points[points["source"] == "measured"]) == 18
    assert all("measured" in ax.get_title() or "modelled" in ax.get_title() for ax in fig.axes)


def test_success_figure_has_a_panel_a_policy() -> None:
    rates = {("int8", "minmax"): 0.8, ("affine4", "minmax"): 0.1, ("affine4", "qat"): 0.7}
    fig, points = edge.success_figures.success_figure(flights(rates))
    assert [ax.get_title() for ax in fig.axes] == [*NETWORKS]
    assert [tick.get_text() for tick in fig.axes[0].get_xticklabels()] == [
        "fp32", "int8", "affine4"]  # fmt: skip
    assert len(points) == 12
    one = {"Policy II": "256x3"}
    fig, _ = edge.success_figures.success_figure(flights(rates, networks=one))
    assert len(fig.axes) == 1


def test_what_the_first_policy_of_the_success_figure_lacks_is_in_its_legend() -> None:
    flown = flights({("int8", "minmax"): 0.8})
    lacks = (flown["policy"] == "Policy I") & (flown["precision"] == "fp32")
    fig, _ = edge.success_figures.success_figure(flown[~lacks])
    (legend,) = fig.legends
    assert sorted(text.get_text() for text in legend.get_texts()) == [
        "PTQ, min-max", "fp32", "published"]  # fmt: skip


def test_success_takes_the_time_of_the_kernel_that_holds_the_width() -> None:
    rates = {("int8", "minmax"): 0.8, ("affine8", "qat"): 0.9, ("affine5", "qat"): 0.85,
             ("fp16", "minmax"): 0.9}  # fmt: skip
    records = pd.concat([timed(), flights(rates)], ignore_index=True)
    fig, points = edge.success_figures.success_against_latency(records)
    ours = points[(points["policy"] == "Policy II") & (points["source"] == "measured")]
    found = ours.set_index("precision")["latency_s"].to_dict()
    # fp16 has no kernel, nor have the 256 levels of affine8.
    assert found == pytest.approx({"fp32": 1e-5, "int8": 2.5e-6, "affine5": 2.5e-6})
    assert (points["source"] == "published").sum() == 6
    assert "measured" in fig.axes[0].get_title() and "modelled" in fig.axes[1].get_title()


def test_success_rates_of_one_per_cent_have_ticks_that_differ() -> None:
    """Whole per cents were printed at halves: 98%, 98%, 99%, 100%, 100%."""
    records = pd.concat([timed(), flights({("int8", "minmax"): 0.99}, base=0.992)],
                        ignore_index=True)  # fmt: skip
    fig, _ = edge.success_figures.success_against_latency(records)
    fig.axes[0].set_ylim(0.97, 1)
    ticks = [tick.get_text() for tick in fig.axes[0].get_yticklabels()]
    assert "99.5%" in ticks and len(set(ticks)) == len(ticks)


def test_emulated_cores_tell_instructions_and_bytes() -> None:
    rows = pd.DataFrame([{
        "key": precision, "profile": "full", "network": "64x3", "precision": precision,
        "runtime": "c", "machine": "emulated Cortex-A53", "source": "measured",
        "instructions": 2400 * share, "code_bytes": 3000, "constant_bytes": 40_000 * share,
        "writable_bytes": 0, "stack_bytes": 500, "observations": 64, "actions_as_recorded": 64,
    } for precision, share in SHARE.items()])  # fmt: skip
    found = edge.modelled.emulated_rows(pd.concat([rows, timed()]))
    assert list(found["precision"]) == ["fp32", "int8", "int4"]
    assert found["least_s"].iloc[0] == pytest.approx(2400 / 2.4e9)  # two a cycle at 1.2 GHz
    shown = edge.tables.emulated_table(found)
    assert list(shown["instructions, measured"]) == ["2,400", "600", "300"]
    assert set(shown["actions as simulated"]) == {"100%"}
    assert list(shown["constant (kB), measured"]) == ["40.0", "10.0", "5.0"]
    assert shown["stack (kB), measured"].iloc[0] == "0.5"
    assert set(shown["they hold"]) == {edge.tables.PRINTING}  # older records do not tell
    anew = rows.assign(printing_counted=False)
    assert not edge.modelled.emulated_rows(anew)["printing_counted"].any()
    anew["printing_counted"] = [False, False, None]
    told = edge.tables.emulated_table(edge.modelled.emulated_rows(anew))["they hold"]
    assert list(told) == ["a decision", "a decision", edge.tables.PRINTING]
    assert timings.latency_rows(rows).empty  # an emulator tells no time


def test_every_input_of_the_model_is_listed_with_its_source() -> None:
    found = edge.modelled.board_inputs(timed(), {})
    assert list(found["input"]) == ["ram_bytes", "system_bytes", "flash"]
    assert edge.tables.inputs_table(found)["value (SI units, bytes)"].iloc[0] == "1,000,000,000"
    assert "assumed: a card" in set(found["source"])
    known = {timings.PAPERS_BOARD: model_inputs(BOARDS[timings.PAPERS_BOARD])}
    every = edge.tables.inputs_table(edge.modelled.board_inputs(timed(), known)).set_index("input")
    values = every["value (SI units, bytes)"]
    assert values["macs_per_cycle_int8"] == "1.580" and values["runtime_bytes_c"] == "1,700,000"
    assert values["ram_bytes"] == "1,000,000,000"  # the record's own
    assert every.loc["macs_per_cycle_fp32", "source"].startswith("llvm-mca")
    assert {*every.index} == {*known[timings.PAPERS_BOARD]} - {"cpu"}


def test_the_site_writes_what_is_recorded() -> None:
    nothing = pd.DataFrame()
    frames = {"edge": timed(), "edge_board": nothing, "navigation": flights({})}
    assert set(edge.site.tables_of(frames)) == {
        "table6_edge", "edge_explanation", "edge_boards", "edge_success"}  # fmt: skip
    assert all(drawing.draw()[1].size for drawing in edge.site.drawings_of(frames).values())
    explained = edge.site.tables_of(frames)["edge_explanation"]
    assert "modelled" in explained.caption
    assert [name for name in explained.shown if "modelled" not in name] == [
        "policy", "precision", "published (ms)", "weights (MB)", "exceeds memory, published"]
    alone = frames | {"edge": nothing}
    assert set(edge.site.tables_of(alone)) == {"edge_success"}


def test_two_policies_of_one_name_are_told_apart() -> None:
    rows = [imported([22, 64, 25], precision, us, "Pi") for precision, us in
            (("fp32", 100.0), ("int8", 50.0), ("fp32", 10.0), ("int8", 2.0))]  # fmt: skip
    for i, row in enumerate(rows):
        row["key"] = str(i)
        row["extra.export"] |= {"tensors_sha256": "ab"[i // 2] * 64}
    found = edge.timings.latency_rows(pd.DataFrame(rows))
    speedups = found[found["precision"] == "int8"].set_index("exported")["speedup"]
    assert speedups.to_dict() == pytest.approx({"p (aaaaaaaa)": 2, "p (bbbbbbbb)": 5})
    (alone,) = edge.timings.latency_rows(pd.DataFrame(rows[:2]))["exported"].unique()
    assert alone == "p"


def test_flash_makes_up_for_no_time_that_the_model_explains() -> None:
    records = timed()
    slow = records.assign(modelled_latency_s=1e3 * records["modelled_latency_s"])
    rows = edge.modelled.explanation_rows(slow)
    assert (rows["ratio"] < 1).all() and (rows["flash_bytes"] == 0).all()


def test_of_several_records_of_one_place_the_last_counts() -> None:
    twice = pd.concat([timed(), timed().assign(latency_p50_s=7.0)], ignore_index=True)
    rows = timings.latency_rows(twice)
    assert len(rows) == 3 * 3 * 2 * 2
    assert (rows.loc[rows["source"] == "measured", "latency_s"] == 7).all()


def test_fp32_is_the_same_whatever_ranges_it_was_exported_with() -> None:
    sizes = [22, 64, 64, 64, 25]
    rows = timings.latency_rows(pd.DataFrame([
        imported(sizes, "fp32", 40, "Pi"), imported(sizes, "int8", 10, "Pi") | {"ranges": "mse"},
        imported(sizes, "fp32", 30, "Pi") | {"ranges": "mse"},
    ]))  # fmt: skip
    assert rows[["precision", "ranges"]].to_numpy().tolist() == [["fp32", ""], ["int8", "mse"]]
    assert rows["speedup"].iloc[1] == pytest.approx(3)


def test_rows_are_in_one_order_however_records_come() -> None:
    board = pd.DataFrame([imported([22, 4096, 512, 1024, 25], "int8", 1, "Pi")])  # of 7 bytes
    records = pd.concat([board, timed()[::-1]], ignore_index=True)
    rows = timings.latency_rows(records)
    assert list(rows["network"].unique()) == [*NETWORKS.values()]
    ours = rows[rows["machine"] != "Pi"].head(12)
    assert list(ours["source"]) == 6 * ["measured"] + 6 * ["modelled"]
    assert list(ours["runtime"]) == 2 * [*3 * ["c"], *3 * ["onnxruntime"]]
    assert list(ours["precision"]) == 4 * ["fp32", "int8", "int4"]


def test_crashes_and_flights_out_of_time_are_told_apart() -> None:
    records = flights({}, networks={"Policy I": "64x3"})
    records["outcomes"] = 700 * "s" + 200 * "c" + 100 * "t"
    rows = edge.success.success_rows(records)
    assert rows.loc[0, ["success", "crash", "timeout"]].tolist() == pytest.approx([0.7, 0.2, 0.1])
    shown = edge.tables.success_table(rows).iloc[0]
    assert (shown["crashes"], shown["out of time"]) == ("20.0%", "10.0%")


def test_fewer_episodes_do_not_compare() -> None:
    records = flights({("int8", "minmax"): 0.8}, networks={"Policy I": "64x3"})
    records["outcomes"] = records["outcomes"].where(records["precision"] == "fp32", "ssc")
    with pytest.raises(QuarlError, match="int8 and fp32 flew different episodes"):
        edge.success.success_rows(records)
    pair = ("Policy I", "fp32"), ("Policy I", "int8")
    assert edge.success.loss_between(records, *pair) is None
    never = flights({("int8", "minmax"): 0.8}, networks={"Policy I": "64x3"}, base=0.0)
    assert edge.success.loss_between(never, *pair) is None


def test_min_max_ranges_stand_in_table_6_and_for_a_policy_against_another() -> None:
    flown = flights({("int8", "per_channel"): 0.5, ("int8", "minmax"): 0.81})
    loss = edge.success.loss_between(flown, ("Policy I", "fp32"), ("Policy I", "int8"))
    assert loss is not None and loss.interval.value == pytest.approx(0.1)
    rows = edge.success.success_rows(flown)
    row = rows.set_index(["policy", "precision", "method"]).loc["Policy I", "int8", "minmax"]
    assert row["keys"] == ("Policy I/int8/minmax", "Policy I/fp32/minmax")
    shown = edge.tables.table6(pd.DataFrame(), rows)
    assert shown.loc[("Policy I", "int8"), ("success", edge.tables.MEASURED)].startswith("81.0%")


def test_no_loss_over_trainings_is_of_five_per_cent_of_fp32() -> None:
    """Falls 0.01 apart and 0.025, 5 % of 0.5, from the margin: t = 0.025 / (0.01 / sqrt(3))."""
    t = 0.025 / (0.01 / 3**0.5)
    p = (1 - t / (2 + t**2) ** 0.5) / 2  # Student's, 2 degrees of freedom
    for rates, name in (((0.51, 0.5, 0.49), "p_no_loss"), ((0.46, 0.45, 0.44), "p_loss")):
        parts = [flights({("affine4", "qat"): rate}, base=0.5, networks={"Policy I": "64x3"})
                 .assign(seed=seed) for seed, rate in enumerate(rates)]  # fmt: skip
        parts[1:] = [part[part["method"] == "qat"] for part in parts[1:]]
        rows = edge.success.success_rows(pd.concat(parts, ignore_index=True))
        assert rows.loc[rows["method"] == "qat", name].tolist() == pytest.approx([p])


def test_of_modelled_boards_table_6_has_the_papers_alone() -> None:
    records = timed()
    other = records[records["source"] == "modelled"].assign(machine="Raspberry Pi 5")
    rows = timings.latency_rows(pd.concat([records, other], ignore_index=True))
    heads = {where for _, where in edge.tables.table6(rows, pd.DataFrame()).columns}
    assert "modelled, Raspberry Pi 3B" in heads and "modelled, Raspberry Pi 5" not in heads


def test_what_swapping_would_have_to_explain_is_shown_in_megabytes() -> None:
    rows = edge.modelled.explanation_rows(timed())
    shown = edge.tables.explanation_table(rows).set_index(["policy", "precision"])
    row = shown.loc[("Policy II", "fp32")]
    assert row.filter(like="MB").tolist() == ["0.600", "61", "839", "2.65"]
    assert (row["published (ms)"], row["modelled (ms)"]) == ("133", "1")
    assert row["published / modelled"] == "133" and row["over its weights, modelled"] == "4.4"


def test_a_process_that_does_not_tell_its_bytes_has_none_in_tables() -> None:
    told = [edge.tables.megabytes(size) for size in (0.0, np.nan, 1_234_567.0)]
    assert told == ["", "", "1.23"]


def test_one_policy_a_board_needs_no_name() -> None:
    sizes = [22, 64, 64, 64, 25]
    rows = timings.latency_rows(pd.DataFrame([
        imported(sizes, "fp32", 30, board) | {"policy": name}
        for board, name in (("Pi A", "a"), ("Pi B", "b"))]))  # fmt: skip
    assert list(edge.tables.boards_table(rows).index) == [
        ("Pi A", "measured, C", "Policy I"), ("Pi B", "measured, C", "Policy I")]
