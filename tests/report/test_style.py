from __future__ import annotations

import pandas as pd
import pytest

from quarl_nb.report.style import (
    PAGE_HEIGHT_IN,
    common_legend,
    new_figure,
    panel_grid,
    save_figure,
)


def drawn(folder, shift: float) -> bytes:
    fig = new_figure(3, 2)
    fig.set_layout_engine("none")
    for left in (1 / 9, 8 / 13):
        ax = fig.add_axes((left, 3 / 17, 4 / 13 + shift, 5 / 7))
        ax.plot([0, 1], [0, 1], "o-")
        ax.fill_between([0, 1], [0, 0], [1, 2])
    svg, *_ = save_figure(fig, pd.DataFrame({"x": [0]}), "figure", {}, folder)
    return svg.read_bytes()


def test_a_panel_moved_by_less_than_is_printed_leaves_the_same_bytes(tmp_path):
    """The layout's solver ends with other last bits from run to run."""
    still = drawn(tmp_path, 0.0)
    assert drawn(tmp_path, 1e-14) == still
    assert drawn(tmp_path, 1e-2) != still
    text = still.decode()
    for name in ("clip0", "clip1"):
        assert text.count(f'<clipPath id="{name}">') == 1 and f'"url(#{name})"' in text
    assert text.count("<clipPath") == 2


def test_no_grid_of_panels_is_higher_than_a_page() -> None:
    assert panel_grid(5, columns=2, height_in=1.0)[0].get_size_inches()[1] == pytest.approx(3.55)
    assert panel_grid(57, columns=3)[0].get_size_inches()[1] == PAGE_HEIGHT_IN


@pytest.mark.parametrize(("n", "columns", "shape"), [
    (1, 3, (1, 2)), (3, 4, (1, 3)), (4, 3, (2, 2)), (5, 4, (2, 3)), (57, 6, (10, 6)),
])  # fmt: skip
def test_panels_stand_in_the_fewest_rows_and_no_more_columns_than_these_take(
    n: int, columns: int, shape: tuple[int, int]
) -> None:
    _, axes = panel_grid(n, columns)
    grids = [ax.get_subplotspec().get_gridspec() for ax in axes]  # type: ignore[union-attr]
    assert [(grid.nrows, grid.ncols) for grid in grids] == [shape] * n


def test_a_label_of_any_panel_is_in_the_common_legend_once() -> None:
    fig, axes = panel_grid(3)
    for ax, labels in zip(axes, (["a"], ["b", "a", "b"], ["c"]), strict=True):
        for label in labels:
            ax.plot([0, 1], label=label)
    common_legend(fig, axes)
    (legend,) = fig.legends
    assert [text.get_text() for text in legend.get_texts()] == ["b", "a", "c"]
