from __future__ import annotations

import torch

from quarl_nb.rl.denormals import denormals_as_zero


def test_a_denormal_product_is_zero_inside_and_itself_again_outside() -> None:
    def product() -> float:
        return (torch.tensor([2.0**-100]) * 2.0**-30).item()

    assert product() == 2.0**-130
    with denormals_as_zero():
        with denormals_as_zero():
            assert product() == 0
        assert product() == 0  # as it was before the inner one
    assert product() == 2.0**-130
