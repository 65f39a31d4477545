"""Tables in LaTeX, cut into parts that a page has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil

import pandas as pd

# Of a page of two columns (7 by 9 in).
LINE = 150  # characters, in the 7 points that the widest parts are shrunk to
PAGE = 45  # lines, in the 10 points of a part that is not shrunk
WRAP = 40  # characters of a cell; longer texts are broken into lines
_GAP = 3  # characters between two columns

# What tables hold and pdflatex has no letter for ("Unicode character not set up for use").
_IN_MATH = {"\u221e": r"\infty", "\u2264": r"\leq", "\u2265": r"\geq", "\u00d7": r"\times",
            "\u2212": "-"}  # fmt: skip
_ESCAPED = str.maketrans({sign: f"\\{sign}" for sign in "%&#_{}$"}
                         | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
                            "\\": r"\textbackslash{}"})  # fmt: skip
_NOT_WIDER = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}"


def latex(shown: pd.DataFrame, name: str, caption: str, index: bool) -> str:
    """Tables over both columns of a page (needs the packages array, booktabs and graphicx).

    One that is wider than `LINE` or longer than `PAGE` comes in parts, each with the caption and
    the columns that tell rows apart (the index, or else the first ones; where these leave no room,
    a number); columns under one heading stay together.

    Args:
        name: the label of the first part is tab:`name`, of the second tab:`name`-2, ...
        index: whether the index is shown.
    """
    caption = caption.translate(_ESCAPED)
    parts = [*_parts(shown, index)]
    tables = []
    for i, part in enumerate(parts, start=1):
        of_several = f" (part {i} of {len(parts)})" if len(parts) > 1 else ""
        label = f"tab:{name}" + f"-{i}" * (i > 1)
        tables.append(_table(part, label, caption + of_several, index))
    return "\n".join(tables)


def _parts(shown: pd.DataFrame, index: bool) -> Iterator[pd.DataFrame]:
    """Left to right, each from top to bottom."""
    texts = shown.astype(str)
    widths = [min(WRAP, max(map(len, [_heading(name), *texts.iloc[:, i]]))) + _GAP
              for i, name in enumerate(shown.columns)]  # fmt: skip
    labels = 0 if index else _label_columns(texts, widths)
    if labels is None:
        numbered = shown.copy()
        depth = shown.columns.nlevels
        numbered.insert(0, ("row", *[""] * (depth - 1)) if depth > 1 else "row",
                        [*range(1, len(shown) + 1)])  # fmt: skip
        yield from _parts(numbered, index)
        return
    labels_width = sum(widths[:labels])
    if index:
        levels = shown.index.to_frame().astype(str)
        labels_width += sum(levels[level].map(len).max() + _GAP for level in levels)
    heights = [max(ceil(len(text) / WRAP) for text in row) for row in texts.to_numpy()]
    blocks, sizes = _blocks(texts, widths, labels)
    for chosen in _packed(sizes, LINE - labels_width):
        columns = [*range(labels), *(i for block in chosen for i in blocks[block])]
        for rows in _packed(heights, PAGE):
            yield shown.iloc[rows, columns]


def _label_columns(texts: pd.DataFrame, widths: Sequence[int]) -> int | None:
    """How many of the first columns tell rows apart; None if no part has room for those and for
    the widest block of the others. 1 of what needs no parts from left to right."""
    if sum(widths) <= LINE:
        return 1
    for n in range(1, texts.shape[1]):
        if sum(widths[:n]) + max(_blocks(texts, widths, n)[1]) > LINE:
            break
        if not texts.iloc[:, :n].duplicated().any():
            return n
    return None


def _blocks(
    texts: pd.DataFrame, widths: Sequence[int], first: int
) -> tuple[list[list[int]], list[int]]:
    """The columns from `first` on that stay together, and how wide each such block is."""
    blocks = [[*block] for _, block in
              groupby(range(first, len(widths)), key=lambda i: _block(texts.columns[i], i))]
    return blocks, [sum(widths[i] for i in block) for block in blocks]


def _packed(sizes: Sequence[int], room: int) -> list[list[int]]:
    """The positions of `sizes` in as few groups of neighbours as `room` allows, of like size."""
    groups = _filled(sizes, room)
    while len(found := _filled(sizes, room - 1)) == len(groups) and room > max(sizes, default=0):
        groups, room = found, room - 1
    return groups


def _filled(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Each group as full as can be; one that alone is larger than `room` is a group."""
    groups: list[list[int]] = [[]]
    left = room
    for i, size in enumerate(sizes):
        if groups[-1] and size > left:
            groups.append([])
            left = room
        groups[-1].append(i)
        left -= size
    return groups


def _heading(name: object) -> str:
    """What stands over one column alone."""
    levels = name if isinstance(name, tuple) else (name,)
    return next((str(level) for level in reversed(levels) if level), "")


def _block(name: object, i: int) -> object:
    """The same for columns under one heading."""
    return name[0] if isinstance(name, tuple) else i


def _table(part: pd.DataFrame, label: str, caption: str, index: bool) -> str:
    styler = part.style.format(escape="latex")
    for axis in (0, 1):
        styler = styler.format_index(escape="latex", axis=axis)
    if not index:
        styler = styler.hide(axis="index")
    levels = part.index.nlevels if index else 0
    columns = [_alignment(part.iloc[:, i]) for i in range(part.shape[1])]
    text = styler.to_latex(
        hrules=True, caption=caption, label=label, position="t", environment="table*",
        column_format="l" * levels + "".join(columns),
        multicol_align="c", multirow_align="naive",
    )  # fmt: skip
    for sign, command in _IN_MATH.items():
        text = text.replace(sign, f"${command}$")
    head, body = text.split(r"\begin{tabular}")
    body = body.replace(r"\end{tabular}", "\\end{tabular}}")
    return f"{head}{_NOT_WIDER}{{%\n\\begin{{tabular}}{body}"


def _alignment(column: pd.Series) -> str:
    """Numbers to the right, long texts in lines of `WRAP` characters (half an em each)."""
    if pd.api.types.is_numeric_dtype(column):
        return "r"
    if column.astype(str).map(len).max() > WRAP:
        return rf">{{\raggedright\arraybackslash}}p{{{WRAP // 2}em}}"
    return "l"
