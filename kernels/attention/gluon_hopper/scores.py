"""Softcap or ALiBi slopes on gluon_hopper's kernels for whole sequences, in bfloat16.

A softcap turns products into tanh(products x softmax_scale / softcap), by an instruction that takes no more time than
an exponential; slopes are subtracted from products. What follows stays as it is, with another factor of the scores.
"""

from __future__ import annotations

from typing import Any

import torch

from ...features import Features
from ...plans import Masks
from .configs import SCORES
from .plan import GluonHopperPlan, plan_of

LEAST_SOFTCAP = 2.0  # below it, P in 16 bits does not tell the tanh (backward.py)


class WithScores:
    """The forward and backward of a plan with softcap or slopes, as `triton_fa2`'s FeatureCall has them."""

    prepare = None

    def __init__(self, features: Features, plan: GluonHopperPlan) -> None:
        self.features, self._plan = features, plan
        self._slopes: tuple[torch.Tensor, ...] = ()
        if (slopes := features.alibi_slopes) is not None:
            over = slopes.detach().float() / plan.softmax_scale
            self._slopes = (over.expand(plan.batch, plan.num_heads).contiguous(),)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
        return self._plan.forward(q, k, v, *self._slopes)

    def backward(self, *saved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        """Return dq, dk, dv, and None for sinks; saved: q, k, v, out, lse and dout."""
        return *self._plan.backward(*saved, *self._slopes), None


def with_scores(features: Features, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks) -> Any:
    """Return gluon_hopper's plan with softcap or slopes, or None if it does not take the tensors."""
    if 0 < features.softcap < LEAST_SOFTCAP or q.dtype != torch.bfloat16 or q.shape[3] != v.shape[3] or masks[2] <= 0:
        return None
    if len(features.asked) > 1 or q.shape[3] not in SCORES.get(features.asked[0], ()):
        return None
    of_scores = {"bend": masks[2] / features.softcap} if features.softcap else {"alibi": True}
    plan = plan_of(q, k, v, *masks, **of_scores)
    return None if plan is None else WithScores(features, plan)
