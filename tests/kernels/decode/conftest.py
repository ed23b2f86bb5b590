"""Caches poisoned where nothing may be read, the float64 answer, and the error budget of the decoding kernels."""

import math
from dataclasses import dataclass, field

import pytest
import torch

from kernels import reference
from kernels.decode.triton_decode.tuning import DecodeTile

NOWHERE = 2_147_480_000  # a page that does not exist
SMALL = DecodeTile(16, 4, 2, per_sm=2, least_keys=16)  # of many shares, though a test's cache is short


@dataclass
class Problem:
    """Random queries and caches of a shape; NaN beyond each length."""

    heads: tuple[int, int]
    lengths: list[int]
    capacity: int
    head_dim: int
    seqlen_q: int = 1
    dtype: torch.dtype = torch.float16
    head_dim_v: int | None = None
    magnitude: float = 1.0
    heavy: bool = False
    options: dict = field(default_factory=dict)  # of decode
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)
        self.head_dim_v = self.head_dim_v or self.head_dim

        def draw(*shape):
            x = torch.randn(*shape, generator=generator)
            if self.heavy:
                x = x * torch.randn(*shape, generator=generator).exp()
            return (x * self.magnitude).to(self.dtype).to(self.device)

        batch, (num_heads, num_kv_heads) = len(self.lengths), self.heads
        self.q = draw(batch, num_heads, self.seqlen_q, self.head_dim)
        self.k = draw(batch, num_kv_heads, self.capacity, self.head_dim)
        self.v = draw(batch, num_kv_heads, self.capacity, self.head_dim_v)
        for x in (self.k, self.v):
            for sequence, length in enumerate(self.lengths):
                x[sequence, :, length:] = float("nan")
        self.cache_seqlens = torch.tensor(self.lengths, dtype=torch.int32, device=self.device)

    def expected(self, k=None, v=None):
        """out and lse in float64 for the caches given, else the problem's own."""
        k, v = self.k if k is None else k, self.v if v is None else v
        kept = {name: self.options[name] for name in ("causal", "window_size", "softmax_scale") if name in self.options}
        kept = {"causal": True, "softmax_scale": self.head_dim**-0.5, **kept}
        outs, lses = [], []
        for sequence, length in enumerate(self.lengths):
            one = slice(sequence, sequence + 1)
            q = self.q[one].double()
            if length == 0:
                outs.append(q.new_zeros(*q.shape[:3], self.head_dim_v))
                lses.append(q.new_full(q.shape[:3], float("-inf")))
                continue
            answer = reference.attention(q, k[one, :, :length].double(), v[one, :, :length].double(), **kept)
            outs.append(answer.out)
            lses.append(answer.lse)
        return torch.cat(outs), torch.cat(lses)

    def check(self, answer, expected=None, slack=1.0):
        """Assert that out and lse are the expected ones up to the rounding of the dtype."""
        out, lse = answer
        expected_out, expected_lse = expected or self.expected()
        assert out.dtype == self.q.dtype
        assert out.shape == expected_out.shape
        eps = torch.finfo(self.dtype).eps
        top = expected_out.abs().max().item()
        error = (out.double() - expected_out).abs().nan_to_num(nan=float("inf")).max().item()
        none = expected_lse == float("-inf")
        score_eps = 1e-7 * expected_lse[~none].abs().max().item() if not none.all() else 0.0  # scores are float32
        assert error <= slack * 4 * (eps + score_eps) * max(top, 1e-3), f"out: error {error:.2e} of {top:.2e}"
        assert torch.equal(lse == float("-inf"), none)
        assert not out[none].any()
        seen = expected_lse[~none]
        allowed = 4e-6 * max(1.0, seen.abs().max().item() if seen.numel() else 0.0) * math.sqrt(self.head_dim)
        error = (lse.double()[~none] - seen).abs().max().item() if seen.numel() else 0.0
        assert error <= slack * allowed, f"lse: error {error:.2e}, allowed {allowed:.2e}"


def paged(problem, page, layout, seed=0):
    """The problem's caches in shuffled pages, NaN in those unused, and the table, nowhere where unused."""
    batch, heads, capacity, _ = problem.k.shape
    width = -(-capacity // page)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(batch * width + 3, generator=generator)[: batch * width].view(batch, width)
    caches = []
    for x in (problem.k, problem.v):
        pages = x.new_full((batch * width + 3, page, heads, x.shape[3]), float("nan"))
        room = x.new_full((batch, heads, width * page, x.shape[3]), float("nan"))
        room[:, :, :capacity] = x
        pages[order.to(x.device)] = room.view(batch, heads, width, page, -1).permute(0, 2, 3, 1, 4)
        caches.append(pages if layout == "NHD" else pages.transpose(1, 2).contiguous())
    table = order.to(torch.int32)
    for sequence, length in enumerate(problem.lengths):
        table[sequence, -(-length // page) :] = NOWHERE
    return (*caches, table.to(problem.device))


@pytest.fixture
def make(device):
    """Makes a Problem on the device of this machine."""

    def problem(heads, lengths, capacity, head_dim, **keywords):
        return Problem(heads, lengths, capacity, head_dim, device=device, **keywords)

    return problem
