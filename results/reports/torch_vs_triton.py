"""Answers to the claims of report torch_vs_triton."""

from results.derive import geometric_mean
from results.reports import declared
from results.reports.claims import span_words
from results.reports.own import OwnNumbers

_PICKS = declared.picks("torch_vs_triton")


def gap(numbers: OwnNumbers) -> str | None:
    """Return the mean speedups at the smallest and the largest d_model, and at the shortest and longest sequence."""
    found, parts = _PICKS["forward"].ratios(numbers), []
    for name, word in (("head_dim", "d_model"), ("seqlen_q", "seq_len")):
        sizes = sorted({getattr(case, name) for case, _ in found})
        if len(sizes) > 1:
            first, last = (
                geometric_mean(ratio for case, ratio in found if getattr(case, name) == size)
                for size in (sizes[0], sizes[-1])
            )
            parts.append(f"{word} {sizes[0]} to {sizes[-1]}: {first:.2f} to {last:.2f}x")
    return ", ".join(parts) or None


def backward(numbers: OwnNumbers) -> str | None:
    """Return how many backward passes ran, and their speedups."""
    ratios = [ratio for _, ratio in _PICKS["backward"].ratios(numbers)]
    return f"{len(ratios)} backward cases ran, {span_words(ratios)}" if ratios else None
