import pytest

from tests.results.compare.calibration import RIGHT, SHORTEST_MS, WRONG, rate, real_noise


@pytest.fixture(scope="module")
def noise():
    found = real_noise()
    assert len(found) > 1000
    return found


@pytest.mark.parametrize("paired", [False, True])
def test_the_same_code_is_called_different_in_one_cell_of_a_hundred_at_most(noise, paired):
    assert rate(noise, WRONG, paired=paired, comparisons=3) <= 0.01


def test_even_cells_whose_rounds_drift_far_are_hardly_ever_called_different(noise):
    assert rate(noise, WRONG, drift=lambda _rng, cell: cell.drift, comparisons=3, seed=1) <= 0.01


@pytest.mark.parametrize("paired", [False, True])
def test_a_slowdown_of_five_percent_is_found_in_nearly_every_kernel_above_50_us(noise, paired):
    kernels = [cell for cell in noise if cell.timing == "kernel" and cell.ms > SHORTEST_MS]
    assert rate(kernels, RIGHT, slowdown=0.05, paired=paired, comparisons=8) >= 0.95
