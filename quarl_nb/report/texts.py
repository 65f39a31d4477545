"""Numbers in the words of tables."""

from __future__ import annotations

import math
import re

import pandas as pd

from quarl_nb.report.stats import Interval

AS_PERCENT = "z.1%"


def percent(fraction: float) -> str:
    """0.0123 as 1.2%, without a negative zero."""
    return f"{fraction:{AS_PERCENT}}"


def percent_interval(share: Interval) -> str:
    """As 1.2% [0.3%, 2.0%]; without an interval where there is none, empty for NaN."""
    return "" if math.isnan(share.value) else share.text(AS_PERCENT)


def counted(number: int, one: str, several: str = "") -> str:
    """ "1 run", "1,000 runs"; with another plural than by an s "2 policies"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def span(numbers: pd.Series) -> str:
    """ "1 to 8", the smallest and the largest of whole numbers; "8" where all are the same."""
    return " to ".join(f"{int(number):,}" for number in sorted({numbers.min(), numbers.max()}))


def points(share: Interval, form: str) -> str:
    """A share, or a difference of shares, in points: 0.012 as 1.2 by the form ".1f"."""
    return Interval(100 * share.value, 100 * share.low, 100 * share.high).text(form)


def interval_texts(rows: pd.DataFrame, name: str, form: str) -> list[str]:
    """The interval `name` of every row (`Interval.of`), formatted by `form`; "" for NaN."""
    found = [Interval.of(row, name) for _, row in rows.iterrows()]
    return ["" if math.isnan(each.value) else each.text(form) for each in found]


def return_text(mean: Interval) -> str:
    """A mean return, from 1000 on without decimals; "" for NaN."""
    if math.isnan(mean.value):
        return ""
    return mean.text("z.0f" if abs(mean.value) >= 1000 else "z.1f")


def without_tex(sentence: str) -> str:
    """A quoted sentence without the markup of its source: 4x for its TeX, no asterisks."""
    return re.sub(r"\s*\\times", "\u00d7", sentence).replace("$", "").replace("*", "")
