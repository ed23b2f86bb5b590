"""A dataclass of constants as one argument of a kernel."""

import dataclasses
import pickle

import pytest

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from triton.experimental.gluon import language as gl

from kernels.attention.gluon_hopper.configs import BackwardConfig
from kernels.attention.gluon_hopper.tuning import backward_tiles
from kernels.constants import Constants

CONFIG = BackwardConfig(
    **{name: getattr(backward_tiles("sums", 128), name) for name in ("block_m", "block_n")},
    head_dim=128,
    head_dim_v=128,
    slots=2,
    causal=True,
    has_window=False,
    masked=True,
)


def test_every_field_is_a_constexpr() -> None:
    constants = Constants(CONFIG)
    for field in dataclasses.fields(CONFIG):
        found = getattr(constants, field.name)
        assert isinstance(found, gl.constexpr)
        assert found.value == getattr(CONFIG, field.name)


def test_equal_configs_are_one_key_of_a_cache_and_reach_another_process() -> None:
    other = Constants(dataclasses.replace(CONFIG, causal=False))
    assert len({Constants(CONFIG), Constants(dataclasses.replace(CONFIG)), other}) == 2
    assert str(Constants(CONFIG)) != str(other)  # Triton's cache on disk goes by the text
    assert pickle.loads(pickle.dumps(Constants(CONFIG))) == Constants(CONFIG)
