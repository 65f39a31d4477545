from __future__ import annotations

import pandas as pd

from quarl_nb.report.style import new_figure, save_figure


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
