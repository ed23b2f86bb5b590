"""Inputs, errors and the error budget that the tests of the kernels share."""

import functools
import importlib.util
import os
from collections.abc import Callable

import pytest
import torch

if not torch.cuda.is_available():  # Triton reads it when a kernel is decorated, so before anything imports triton
    os.environ["TRITON_INTERPRET"] = "1"

from kernels import feature_calls, reference, routes
from kernels.attention import torch_naive

if "TRITON_INTERPRET" in os.environ and importlib.util.find_spec("triton"):
    from tests.kernels import quick_interpreter

    quick_interpreter.quicken()

NAMES = ("out", "dq", "dk", "dv")
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
in_both_places = pytest.mark.gpu if torch.cuda.is_available() else lambda test: test  # the mark skips without a GPU
NEEDS_HOPPER = [pytest.mark.gpu, pytest.mark.skipif(not ON_HOPPER, reason="needs a GPU of compute capability 9.0")]


def on_hopper(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on a Hopper GPU alone."""
    return functools.reduce(lambda marked, mark: mark(marked), NEEDS_HOPPER, test)


@pytest.fixture
def device() -> str:
    """Where this machine can run the kernels for real, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class Problem:
    """Random inputs of a shape, the float64 answer, and how far an implementation may be from it."""

    def __init__(self, shape, dtype, device, *, causal=False, window_size=0, softmax_scale=None, magnitude=1.0, seed=0):
        batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim = shape
        generator = torch.Generator().manual_seed(seed)

        def draw(heads, seqlen):
            x = torch.randn(batch, heads, seqlen, head_dim, generator=generator) * magnitude
            return x.to(dtype).to(device)

        self.q, self.dout = draw(num_heads, seqlen_q), draw(num_heads, seqlen_q)
        self.k, self.v = draw(num_kv_heads, seqlen_k), draw(num_kv_heads, seqlen_k)
        self.keywords = {"causal": causal, "window_size": window_size, "softmax_scale": softmax_scale}

    def expected(self):
        answer = reference.gradients(self.q, self.k, self.v, self.dout, **self.keywords)
        return {name: getattr(answer, name) for name in NAMES}

    def run(self, attention):
        """out, dq, dk and dv of an implementation, on inputs with the strides that they have now."""
        q, k, v = (x.detach().requires_grad_() for x in (self.q, self.k, self.v))
        out = attention(q, k, v, **self.keywords)
        grads = torch.autograd.grad(out, (q, k, v), self.dout)
        return dict(zip(NAMES, (out.detach(), *grads), strict=True))

    def check(self, attention, slack=1.0):
        """Assert that every error is at most twice that of torch_naive in the same dtype, plus a rounding floor."""
        expected, got, naive = self.expected(), self.run(attention), self.run(torch_naive.attention)
        largest = max(expected[name].abs().max().item() for name in NAMES)
        for name in NAMES:
            floor = 4 * slack * torch.finfo(self.q.dtype).eps * max(largest, 1e-3)
            error, allowed = (largest_error(x[name], expected[name]) for x in (got, naive))
            assert got[name].dtype == self.q.dtype
            assert error <= 2 * allowed + floor, (
                f"{name}: error {error:.2e}, torch_naive {allowed:.2e}, floor {floor:.2e}"
            )


def largest_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference; NaN counts as infinite."""
    return (got.double() - expected).abs().nan_to_num(nan=float("inf")).max().item()


@pytest.fixture
def in_program(monkeypatch):
    """Makes a function into the names of what a compiled program would call for attention on Hopper."""
    monkeypatch.setattr(routes, "takes", lambda q, k, v: True)
    monkeypatch.setattr(routes, "_table", lambda name, device: routes.family("sm_90")[name])
    most = torch.compiler.assume_constant_result(lambda call, dtype, *rest: routes.most_operations(call, *rest))
    monkeypatch.setattr(routes, "most_in_program", most)
    found: list[str] = []

    def backend(module, example_inputs):
        names = (getattr(node.target, "__name__", "").partition(".")[0] for node in module.graph.nodes)
        found.extend(name for name in names if "attention" in name)
        return lambda *inputs: inputs[-1:]

    torch.compiler.reset()
    return lambda call, *tensors: (torch.compile(call, fullgraph=True, backend=backend)(*tensors), found)[1]


@pytest.fixture
def problem(device):
    """Makes a Problem on the device of this machine."""

    def make(shape, dtype, **keywords):
        return Problem(shape, dtype, device, **keywords)

    return make


@pytest.fixture(
    params=["definition", pytest.param("kernels", marks=pytest.mark.gpu if torch.cuda.is_available() else ())]
)
def front(request, monkeypatch, device):
    """The CPU, where features are computed by their definition, or where the kernels with features run."""
    if request.param == "definition":
        return "cpu"
    call = pytest.importorskip("kernels.attention.triton_fa2.features.call")
    tile = pytest.importorskip("kernels.attention.triton_fa2.tuning")
    if device == "cpu":
        monkeypatch.setattr(feature_calls, "takes", lambda *asked: True)
        monkeypatch.setattr(call, "tiles", lambda *row: (tile.Tile(16, 16, 4, 1),))
    return device
