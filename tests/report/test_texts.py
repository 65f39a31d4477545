"""Numbers as tables write them."""

from __future__ import annotations

import math

import pandas as pd

from quarl_nb.report.stats import Interval
from quarl_nb.report.texts import (
    AS_PERCENT,
    counted,
    interval_texts,
    percent,
    points,
    return_text,
    span,
)


def test_percentages_have_no_negative_zero() -> None:
    assert [percent(x) for x in (0.1234, -0.0001)] == ["12.3%", "0.0%"]


def test_the_intervals_of_rows_in_words() -> None:
    nan = math.nan
    rows = pd.DataFrame({
        "loss": [0.1234, -0.0001, nan, 1.0], "loss_low": [0.1, -0.0002, nan, nan],
        "loss_high": [0.15, 0.0001, nan, nan], "other": ["a", "b", "c", "d"],
    })  # fmt: skip
    assert interval_texts(rows, "loss", AS_PERCENT) == [
        "12.3% [10.0%, 15.0%]", "0.0% [0.0%, 0.0%]", "", "100.0%"]
    assert interval_texts(rows.head(1), "loss", ".3f") == ["0.123 [0.100, 0.150]"]
    assert interval_texts(rows.head(0), "loss", ".3f") == []


def test_differences_of_shares_in_points() -> None:
    assert points(Interval(0.123, 0.1, 0.1466), ".1f") == "12.3 [10.0, 14.7]"
    assert points(Interval(0.123, math.nan, math.nan), "+.1f") == "+12.3"


def test_mean_returns_in_words() -> None:
    assert return_text(Interval(12.34, 11.0, 13.96)) == "12.3 [11.0, 14.0]"
    assert return_text(Interval(-1234.5, -1300.2, -999.9)) == "-1234 [-1300, -1000]"
    assert return_text(Interval(500.0, math.nan, math.nan)) == "500.0"
    assert return_text(Interval(500.0, 500.0, 500.0)) == "500.0 [500.0, 500.0]"
    assert return_text(Interval(-0.04, -0.2, 0.1)) == "0.0 [-0.2, 0.1]"
    assert return_text(Interval(math.nan, math.nan, math.nan)) == ""


def test_how_many_in_words() -> None:
    assert [counted(n, "run") for n in (0, 1, 1000)] == ["0 runs", "1 run", "1,000 runs"]
    assert [counted(n, "policy", "policies") for n in (1, 2)] == ["1 policy", "2 policies"]
    assert span(pd.Series([3.0, 8, 1])) == "1 to 8" and span(pd.Series([60000, 60000])) == "60,000"
