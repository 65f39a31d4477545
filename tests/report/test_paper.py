"""The transcription of the published tables: sums taken from the seed text, spots, places."""

from __future__ import annotations

import math

import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.report import carbon, paper

# Column sums of Table 4, added up from the text of the paper itself (awk over its rows).
TABLE4_SUMS = {
    ("a2c", "fp32"): 15324, ("a2c", "fp16"): 15262, ("a2c", "int8"): 15675,
    ("dqn", "fp32"): 6029, ("dqn", "fp16"): 6141, ("dqn", "int8"): 6051,
    ("ppo", "fp32"): 27496, ("ppo", "fp16"): 27638, ("ppo", "int8"): 27065,
    ("ddpg", "fp32"): 4633, ("ddpg", "fp16"): 4662, ("ddpg", "int8"): 4514,
}


def value(table: str, **where: object) -> object:
    rows = paper.published(table)
    for column, wanted in where.items():
        rows = rows[rows[column] == wanted]
    assert len(rows) == 1
    return rows["value"].iloc[0]


@pytest.mark.parametrize(
    ("table", "count"),
    [("table2", 11 * 6), ("table3", 11 * 3), ("table4", 108), ("table5", 10), ("table6", 15),
     ("table7", 5)],
)
def test_every_number_has_its_own_place(table: str, count: int) -> None:
    rows = paper.published(table)
    assert len(rows) == count
    assert rows["source"].is_unique
    assert rows["source"].str.contains(f"Table {table[-1]}, row ").all()


def test_table4_sums() -> None:
    sums = paper.published("table4").groupby(["algo", "precision"])["value"].sum()
    assert sums.to_dict() == TABLE4_SUMS


def test_table2_sums() -> None:
    sums = paper.published("table2").groupby(["quantity", "precision"])["value"].sum().round(2)
    assert sums.to_dict() == {
        ("reward", ""): 6721.07, ("time_to_reward", "fp32"): 48466.79,
        ("time_to_reward", "fp16"): 46299.76, ("time_to_reward", "int8"): 22584.27,
        ("speedup", "fp16"): 15.77, ("speedup", "int8"): 29.75,
    }


def test_spot_values() -> None:
    assert value("table4", environment="Breakout", algo="dqn", precision="int8") == 78
    assert value("table4", environment="Walker2D", algo="ppo", precision="fp16") == 2273
    assert value("table4", environment="MountainCar", algo="ddpg", precision="int8") == 92
    assert value("table3", task="Humanoid Walk", quantity="pull_period") == "100"
    assert value("table3", task="Hopper Stand", quantity="difficulty") == "Easy"
    assert value("table5", hyperparameter="quant_delay") == "500000"
    assert value("table6", policy="Policy III", quantity="inference_time",
                 precision="int8") == 11.036
    assert value("table7", characteristic="CPU Frequency") == "1.2"


def agreement(ratio: float, shown: float) -> str:
    """How a ratio was printed: "rounded" to its two decimals, "truncated" to them, or neither."""
    if round(ratio, 2) == shown:
        return "rounded"
    return "truncated" if math.floor(ratio * 100) / 100 == shown else "neither"


def test_published_speedups_follow_from_the_published_times_but_four() -> None:
    rows = paper.published("table2").pivot(
        index="task", columns=["quantity", "precision"], values="value"
    )
    times, shown = rows["time_to_reward"], rows["speedup"]
    found = {
        (task, precision): agreement(times["fp32"][task] / times[precision][task], ratio)
        for precision in shown for task, ratio in shown[precision].items()
    }  # fmt: skip
    assert {at: how for at, how in found.items() if how != "rounded"} == {
        ("Acrobot (Gym)", "int8"): "truncated",  # 5.4158 printed as 5.41
        ("Mountain Car (Gym)", "fp16"): "truncated",  # 1.3254 printed as 1.32
        ("Mountain Car (Gym)", "int8"): "truncated",  # 2.2283 printed as 2.22
        ("Humanoid Stand", "int8"): "neither",  # 1.5011 printed as 1.51
    }
    assert len(found) == 22


def test_table6_speedups_follow_from_its_times() -> None:
    rows = paper.published("table6").pivot(
        index="policy", columns=["quantity", "precision"], values="value"
    )
    ratio = rows["inference_time"]["fp32"] / rows["inference_time"]["int8"]
    assert (abs(ratio - rows["speedup"]["int8"]) < 0.011).all()


def test_every_published_environment_is_mapped() -> None:
    rows = paper.published_ptq()
    assert rows["env_id"].notna().all() and len(rows) == 108
    mountain = rows[rows["environment"] == "MountainCar"]
    assert set(mountain["env_id"]) == {"MountainCarContinuous-v0"}
    for table in (2, 3):
        names = set(paper.published(f"table{table}")["task"])
        assert names == set(paper.environments(table)["name"])


def test_carbon_has_every_ratio_of_the_seeds() -> None:
    rows = paper.published("carbon")
    assert rows["source"].is_unique and rows["source"].str.match(r"00[02] ").all()
    assert sorted(rows["value"]) == [1.9, 1.9, 1.9, 2.8, 3.76, 3.8, 3.8, 50]
    assert carbon.tables.published_ratios() == (1.9, 2.8, 3.76)


def test_unknown_table_is_named() -> None:
    with pytest.raises(QuarlError, match="unknown table 'table9'.*table2"):
        paper.published("table9")
