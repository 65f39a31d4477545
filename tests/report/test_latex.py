"""Tables in LaTeX: that every part fits a page, and that the parts are the whole table."""

from __future__ import annotations

import re

import pandas as pd

from quarl_nb.report.latex import LINE, PAGE, WRAP, latex


def bodies(text: str) -> list[list[list[str]]]:
    """The cells of every part's rows below the heading."""
    parts = re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL)
    return [[line.removesuffix(r" \\").split(" & ") for line in part.splitlines()]
            for part in parts]  # fmt: skip


def numbered(rows: int, columns: int, width: int) -> pd.DataFrame:
    """Each cell another text of `width` letters."""
    cells = [[f"{row}x{column}".ljust(width, "o") for column in range(columns)]
             for row in range(rows)]  # fmt: skip
    return pd.DataFrame(cells, columns=[f"c{i}" for i in range(columns)])


def test_a_small_table_is_one() -> None:
    text = latex(numbered(3, 4, 5), "small", "5 % of a_b & {c}: $1 ~ #2^\\", False)
    assert text.count(r"\begin{table*}") == 1
    assert (r"\caption{5 \% of a\_b \& \{c\}: \$1 \textasciitilde{} "
            r"\#2\textasciicircum{}\textbackslash{}}") in text
    assert r"\label{tab:small}" in text and r"\begin{tabular}{llll}" in text
    assert [len(row) for row in bodies(text)[0]] == [4, 4, 4]


def test_parts_fit_a_page_and_hold_every_cell_once() -> None:
    table = numbered(2 * PAGE + 5, 30, 12)
    parts = bodies(latex(table, "t", "c", False))
    assert len(parts) == 4 * 3  # (150 - 15) / 15 = 9 of the 29 columns beside the first one
    for part in parts:
        assert len(part) <= PAGE and all(len(row) * (12 + 3) <= LINE for row in part)
    shown = [cell for part in parts for row in part for cell in row[1:]]
    assert sorted(shown) == sorted(table.iloc[:, 1:].to_numpy().ravel())
    assert {len(part[0]) for part in parts} == {6, 9}  # not 10 and 3
    for columns in range(4):  # each part of the columns is the whole table from top to bottom
        firsts = [row[0] for part in parts[3 * columns : 3 * columns + 3] for row in part]
        assert firsts == table["c0"].tolist()


def test_parts_are_told_apart() -> None:
    text = latex(numbered(PAGE + 1, 2, 5), "t", "c", False)
    assert r"\caption{c (part 1 of 2)}" in text and r"\caption{c (part 2 of 2)}" in text
    assert r"\label{tab:t}" in text and r"\label{tab:t-2}" in text


def test_an_index_is_in_every_part() -> None:
    table = numbered(2, 30, 12).set_axis(pd.Index(["here", "there"], name="place"))
    parts = bodies(latex(table, "t", "c", True))
    assert len(parts) > 1
    assert all([row[0] for row in part] == ["here", "there"] for part in parts)


def test_every_part_has_the_columns_that_tell_rows_apart() -> None:
    """Network and batch, where a network has several rows; one alone where none do."""
    table = numbered(4, 20, 12)
    table["c0"], table["c1"] = ["a", "a", "b", "b"], ["1", "8", "1", "8"]
    parts = bodies(latex(table, "t", "c", False))
    assert len(parts) > 1
    assert all([row[:2] for row in part] == [["a", "1"], ["a", "8"], ["b", "1"], ["b", "8"]]
               for part in parts)  # fmt: skip
    # Labels may take what the widest of the other columns leaves: here all but 15 of 150.
    table.iloc[:, 2:8] = "same"
    table.iloc[:, 8] = [str(i) for i in range(4)]
    table["c0"] = table["c1"] = "same"
    for part in bodies(latex(table, "t", "c", False)):
        assert [row[8] for row in part] == [*"0123"]


def test_rows_that_no_part_has_room_to_tell_apart_are_numbered() -> None:
    table = numbered(4, 20, 12)
    alike = pd.concat([table.iloc[:1]] * 3, ignore_index=True)
    parts = bodies(latex(alike, "t", "c", False))
    assert len(parts) > 1 and all([row[0] for row in part] == [*"123"] for part in parts)
    shown = [cell for part in parts for cell in part[0][1:]]
    assert shown == table.iloc[0].tolist()


def test_columns_under_one_heading_stay_together() -> None:
    table = numbered(1, 24, 12)
    table.columns = pd.MultiIndex.from_tuples([(f"g{i // 4}", f"c{i % 4}") for i in range(24)])
    text = latex(table.set_axis(pd.Index(["a"], name="n")), "t", "c", True)
    widths = [len(part[0]) - 1 for part in bodies(text)]
    assert widths == [8, 8, 8]  # nine would fit
    assert text.count(r"\multicolumn{4}{c}{g") == 6


def test_long_texts_are_wrapped_and_count_as_their_lines() -> None:
    table = pd.DataFrame({"name": ["a"] * 10, "text": ["x" * (10 * WRAP)] * 10, "n": range(10)})
    text = latex(table, "t", "c", False)
    assert text.count(r"\begin{tabular}{l>{\raggedright\arraybackslash}p{20em}r}") == 3
    assert [len(part) for part in bodies(text)] == [4, 4, 2]


def test_a_row_taller_than_a_page_is_kept() -> None:
    table = pd.DataFrame({"name": ["a", "b"], "text": ["x" * (WRAP * (PAGE + 1)), "y"]})
    assert [[row[0] for row in part] for part in bodies(latex(table, "t", "c", False))] == [
        ["a"], ["b"]
    ]  # fmt: skip


def test_rows_of_one_label_need_no_package_of_their_own() -> None:
    index = pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")], names=["one", "two"])
    text = latex(numbered(2, 1, 3).set_axis(index), "t", "c", True)
    assert "multirow" not in text and [row[0] for row in bodies(text)[0]] == ["a", ""]
