from __future__ import annotations

from typing import Any

import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.quant import (
    MinMaxObserver,
    MovingAverageObserver,
    MSEObserver,
    PercentileObserver,
    affine_qparams,
    fake_quantize,
    make_observer,
)
from quarl_nb.quant.observer import (
    OBSERVERS,
    SamplingObserver,
    mse_range,
    percentile_range,
)


def ends(observer: torch.nn.Module) -> list[float]:
    return [end.item() for end in observer.range()]  # type: ignore[operator]  # Module.__getattr__


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_minmax_keeps_the_extremes_of_all_batches() -> None:
    observer = MinMaxObserver(8)
    for batch in ([1.0, 2.0], [-3.0, 0.5], [0.0, 0.1]):
        observer(torch.tensor(batch))
    assert ends(observer) == [-3.0, 2.0]


def test_minmax_per_channel() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    observer = MinMaxObserver(8, axis=1)
    observer(x)
    lo, hi = observer.range()
    assert lo.tolist() == [0, 4, 8] and hi.tolist() == [15, 19, 23]
    assert observer.qparams().axis == 1


def test_moving_average_by_hand() -> None:
    observer = MovingAverageObserver(8)
    observer(torch.tensor([-1.0, 1.0]))
    observer(torch.tensor([-2.0, 5.0]))
    assert ends(observer) == pytest.approx([-1.01, 1.04])


def test_percentile_range_drops_as_many_values_as_it_says() -> None:
    rows = torch.stack([torch.arange(1000.0), -torch.arange(1000.0)])[:, torch.randperm(1000)]
    lo, hi = percentile_range(rows, 99.0)
    assert lo.tolist() == [10, -989] and hi.tolist() == [989, -10]
    lo, hi = percentile_range(rows, 99.9)
    assert lo.tolist() == [1, -998] and hi.tolist() == [998, -1]


def test_default_percentile_clips_6_of_65536_and_nothing_of_4096() -> None:
    observer = PercentileObserver(8, max_samples=None)
    observer(torch.arange(65536.0))
    assert ends(observer) == [6.0, 65529.0]
    observer = PercentileObserver(8)
    observer(torch.arange(4096.0))
    assert ends(observer) == [0.0, 4095.0]


def test_a_percentile_of_nearly_50_keeps_the_middle() -> None:
    observer = PercentileObserver(8, percentile=50.000000001)
    observer(torch.tensor([3.0, 1.0, 4.0, 2.0]))
    assert ends(observer) == [2.0, 3.0]


@pytest.mark.parametrize("percentile", ["a", 50.0, 100.1, None])
def test_what_is_no_percentile_is_told(percentile: Any) -> None:
    with pytest.raises(QuarlError, match=f"percentile {percentile!r} is out of range"):
        PercentileObserver(8, percentile=percentile)


def test_percentile_ignores_an_outlier() -> None:
    x = torch.cat([normal(100_000), torch.tensor([1000.0])])
    observer = PercentileObserver(8)
    observer(x)
    assert ends(observer)[1] < 6


def test_sample_is_bounded_uniform_and_repeatable() -> None:
    def run() -> PercentileObserver:
        observer = PercentileObserver(8, percentile=90.0, max_samples=2000)
        for batch in torch.arange(20_000.0).split(1000):
            observer(batch)
        return observer

    first = run()
    assert first._sample().shape == (1, 2000)
    # 10% and 90% of 0..19999; the deviation of a sample quantile of 2000 is 134
    assert ends(first) == pytest.approx([2000, 18000], abs=600)
    assert ends(run()) == ends(first)


def test_the_sample_is_of_the_smallest_keys_of_all() -> None:
    observer, batches = PercentileObserver(8, axis=0, max_samples=50), normal(40, 3, 30)
    keys = []
    for i, batch in enumerate(batches, start=1):
        observer(batch)
        generator = torch.Generator().manual_seed(i)
        keys.append(torch.rand(30, generator=generator, dtype=torch.float64))
        smallest = torch.cat(keys).argsort()[:50]
        assert sum(part.numel() for _, part in observer._parts) <= 100
    expected = torch.cat(list(batches), 1)[:, smallest]
    assert torch.equal(observer._sample(), expected)
    observer(normal(3, 30, seed=1))  # and goes on from there
    assert observer._sample().shape == (3, 50)


def test_by_default_a_quarter_of_a_million_values_are_kept() -> None:
    x = torch.arange(2.0**18 + 1)
    for observer in (PercentileObserver(8), make_observer("percentile", 8)):
        observer(x)
        assert observer._sample().shape == (1, 2**18)
        observer(x)
        assert observer._sample().shape == (1, 2**18)


def squared_error(x: torch.Tensor, lo: torch.Tensor, hi: torch.Tensor, bits: int) -> float:
    return (fake_quantize(x, affine_qparams(lo, hi, bits)) - x).double().square().sum().item()


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_mse_is_never_worse_than_minmax_on_any_channel(bits: int, symmetric: bool) -> None:
    rows = normal(5, 300) ** 3
    lo, hi = mse_range(rows, bits, symmetric)

    def error(lo: torch.Tensor, hi: torch.Tensor) -> torch.Tensor:
        p = affine_qparams(lo, hi, bits, symmetric, axis=0)
        return (fake_quantize(rows, p) - rows).double().square().sum(1)

    assert (error(lo, hi) <= error(rows.amin(1), rows.amax(1))).all()
    assert bits > 4 or (error(lo, hi) < error(rows.amin(1), rows.amax(1))).all()


def test_mse_finds_the_best_of_a_brute_force_grid() -> None:
    x = normal(500)
    lo, hi = mse_range(x[None], 4, symmetric=True)
    largest = x.abs().max().item()

    def error(ratio: float) -> float:
        scale = largest * ratio / 7
        return ((x / scale).round().clamp(-7, 7) * scale - x).double().square().sum().item()

    best = min(range(1, 101), key=lambda i: error(i / 100))
    assert torch.maximum(-lo, hi).item() == pytest.approx(largest * best / 100, rel=1e-5)


def test_mse_clips_a_one_sided_outlier_and_keeps_the_other_end() -> None:
    x = torch.cat([normal(5000).clamp(-2, 2), torch.tensor([20.0])])
    observer = MSEObserver(4)
    observer(x)
    lo, hi = ends(observer)
    assert lo < -1.0 and hi < 15.0
    # Shrinking both ends alike, as the first pass does, is worse than moving each on its own.
    together = min(squared_error(x, -2 * r, 20 * r, 4) for r in torch.arange(1, 101) / 100)
    assert squared_error(x, *observer.range(), 4) < together


def test_mse_clips_all_but_a_hundredth_of_the_range_where_that_is_best() -> None:
    # Levels -s, 0, s: an error of 99^2 in one value, against 1 in each of 10,000.
    lo, hi = mse_range(torch.cat([torch.ones(10_000), torch.tensor([100.0])])[None], 2, True)
    assert (lo.item(), hi.item()) == (0.0, 1.0)


@pytest.mark.parametrize("sign", [-1, 1])
def test_mse_shrinks_both_ends_and_then_each_from_there(sign: int) -> None:
    x = sign * torch.cat([normal(2000), torch.tensor([-4.0, 300.0])])
    best_lo, best_hi = x.min(), x.max()
    for shrink_lo, shrink_hi in ((1, 1), (1, 0), (0, 1)):
        ranges = [
            (best_lo * (r if shrink_lo else 1), best_hi * (r if shrink_hi else 1))
            for r in torch.arange(1, 101) / 100
        ]
        best_lo, best_hi = min(ranges, key=lambda ends: squared_error(x, *ends, 3))
    lo, hi = mse_range(x[None], 3, symmetric=False)
    assert (lo.item(), hi.item()) == pytest.approx((best_lo.item(), best_hi.item()), rel=1e-6)


@pytest.mark.parametrize("sign", [-1, 1])
def test_mse_of_values_of_one_sign_begins_at_zero(sign: int) -> None:
    lo, hi = (sign * end for end in mse_range(sign * (normal(2, 300).abs() + 1), 4, False))
    zero, far = (lo, hi) if sign > 0 else (hi, lo)
    assert zero.tolist() == [0.0, 0.0] and (far > 1).all()


def test_mse_channels_are_independent() -> None:
    rows = torch.stack([normal(200), 100 * normal(200, seed=1), torch.zeros(200)])
    lo, hi = mse_range(rows, 4, symmetric=False)
    for i, row in enumerate(rows):
        single = mse_range(row[None], 4, symmetric=False)
        assert (lo[i], hi[i]) == (single[0][0], single[1][0])
    assert (lo[2], hi[2]) == (0, 0)


@pytest.mark.parametrize("name", OBSERVERS)
def test_bad_values_are_refused(name: str) -> None:
    observer = make_observer(name, 8)
    with pytest.raises(QuarlError, match="has not seen"):
        observer.range()
    for bad in (float("nan"), float("inf")):
        with pytest.raises(QuarlError, match="NaN or infinite"):
            observer(torch.tensor([1.0, bad]))
    with pytest.raises(QuarlError, match="empty"):
        observer(torch.empty(0))
    assert not observer.observed


def test_names_and_percentiles_are_checked() -> None:
    with pytest.raises(QuarlError, match="did you mean 'minmax'"):
        make_observer("minmx", 8)
    for percentile in (0.9999, 50.0, 100.0001):
        with pytest.raises(QuarlError, match="50 to 100"):
            PercentileObserver(8, percentile=percentile)
    observer = PercentileObserver(8, percentile=100.0)
    observer(torch.arange(4.0))
    assert ends(observer) == [0.0, 3.0]


def test_state_survives_a_checkpoint() -> None:
    observer = MovingAverageObserver(8, axis=0)
    observer(normal(3, 10))
    fresh = MovingAverageObserver(8, axis=0)
    fresh.load_state_dict(observer.state_dict())
    observer(normal(3, 10, seed=1))
    fresh(normal(3, 10, seed=1))
    assert torch.equal(fresh.qparams().scale, observer.qparams().scale)


@pytest.mark.parametrize("kind", [PercentileObserver, MSEObserver])
def test_a_checkpoint_holds_no_sample_and_says_so(kind: type[SamplingObserver]) -> None:
    observer, fresh = kind(8), kind(8)
    observer(normal(100))
    fresh.load_state_dict(observer.state_dict())
    with pytest.raises(QuarlError, match="has not seen any tensor; run calibration data"):
        fresh.qparams()
    fresh(normal(100))
    assert ends(fresh) == ends(observer)


def test_all_values_of_a_large_weight_count() -> None:
    observer = make_observer("percentile", 8, max_samples=None)
    observer(torch.arange(2.0**19))
    assert ends(observer)[1] == 2.0**19 - 53  # 0.01 % of 524,288 lie above


def test_mse_of_tiny_values_is_that_of_ordinary_ones() -> None:
    rows = normal(3, 300) ** 3
    tiny, plain = (mse_range(x, 3, symmetric=False) for x in (rows * 2.0**-80, rows))
    for a, b in zip(tiny, plain, strict=True):
        assert torch.equal(a * 2.0**80, b)
