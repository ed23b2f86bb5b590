"""The terms of the pages: the page "Units and terms" explains them, and captions link to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """An entry of the page: a title and what it means, as Markdown."""

    title: str
    text: str


TERMS = {
    "shape": Term(
        "Shape",
        """
A **shape** is what one call computes: batch, heads, sequence lengths, head_dim, data type, mask. On a map, a cell is a
shape. The chip «16k tokens, hidden 2048» holds batch × seqlen at 16,384 and heads × head_dim at 2,048, the grid of the
FlashAttention papers. «B4 H16» is batch 4 with 16 heads.

- **seqlen** counts tokens: 4k is 4,096. **Context** is the length of the cache that a decode step reads.
- **causal**: a query sees itself and the keys before it. **full**: it sees every key.
- **window 1024**: of those keys it sees the nearest 1,024.
- **Mode**: forward, backward, or both; of models prefill, decode and a training step.
- **not stated**: the source does not give the value. It is never taken for a default.
""",
    ),
    "timing": Term(
        "Device time and eager time",
        """
- **Device time** (`kernel`): the time that the kernels take on the device, without launches, with a cold L2 cache.
- **Eager time** (`eager`): the time of a plain Python call, with its host overhead.
- **As published**: the source does not say how it took the time.

Times of different kinds are never compared with each other. A number is the **median** of its samples; its
range goes from the 20th to the 80th percentile (p20–p80), and n counts the samples.
""",
    ),
    "speedup": Term(
        "Speedup",
        """
**Speedup** is the baseline's time over the implementation's, in the same run. Above 1× the implementation is faster.
Several speedups are combined by their geometric mean, and the number of shapes is given. The baseline `torch_naive`
is attention in plain PyTorch that stores the whole score matrix. The chip «vs torch_naive» changes the baseline.
""",
    ),
    "verdict": Term(
        "Ties and verdicts",
        """
Two times are compared through the 90 % confidence interval of their ratio.

| verdict | when |
|---|---|
| SAME | the whole interval lies within ±2 % |
| FASTER, SLOWER | the whole interval lies beyond ±2 %, and chance alone does that in at most one of a hundred |
| UNCLEAR | otherwise: the samples do not decide it |

On a map of winners, **≈** marks a tie: another implementation is within ±2 %. **≳** marks a winner that is ahead but
not certainly. **?** on a hatched cell marks times that are too noisy to decide, or impossible.
""",
    ),
    "flops": Term(
        "TFLOP/s and share of peak",
        """
**FLOPs** count floating-point operations; a multiply-add is two. Attention counts its matrix products over the unmasked
pairs of query and key: two products forward, five backward, so forward takes 4 · batch · heads · pairs · head_dim.
The softmax is not counted. The formula is that of FlashAttention-2 (arXiv:2307.08691, section 4.1) with the exact
number of pairs. It is the same for every implementation.

- **TFLOP/s**: these operations over the time, in units of 10¹².
- **Share of peak** is given twice: of the data sheet, and of the matrix product that the run timed at its start.
  More than 100 % of the second means faster than that product at its clock.
- **Arithmetic intensity**: FLOPs per byte, with each tensor read or written once. The **roofline** is the bound by the
  peak rate and the memory's bandwidth.
- **Joules per TFLOP**: the energy of a call over its operations.
""",
    ),
    "memory": Term(
        "Memory",
        """
Sizes are in MiB (2²⁰ bytes) and GiB (2³⁰ bytes).

- **Peak**: the most that is allocated during a call, inputs included.
- **Beyond inputs**: the peak without inputs and outputs.
- **Saved for backward**: what the forward pass keeps.
- **Predicted**: follows from the algorithm: inputs, outputs, score matrices or row statistics, and workspace.
""",
    ),
    "accuracy": Term(
        "Accuracy",
        """
Errors are taken against the same attention in float64. The **root mean square** is relative to the reference; the
**largest** is an absolute difference. An implementation fails the check, and has no speed, if its error is more than
twice that of `torch_naive` in the same data type plus a rounding floor.
""",
    ),
    "status": Term(
        "Words in place of a number",
        """
| word | meaning |
|---|---|
| OOM | out of device memory |
| shared memory | out of shared memory, registers or threads of one block |
| unsupported | the implementation does not compute this shape |
| incorrect | it failed the check against the reference, so it has no speed |
| timeout, error | it did not end in time, or ended with an error |
| skipped | not tried, with a reason |
| not measured | nobody tried |
""",
    ),
    "source": Term(
        "Where numbers come from",
        """
- **Measured here**: runs of this machine.
- **Included with attnbench**: our own runs, which come with the project.
- **Uploaded**: files that were imported.
- **Published**: other people's reports, read cell by cell.

A **finding** is what a check says about a number: *impossible* contradicts arithmetic or the device, *doubtful* is
possible but not a reliable result. A finding never hides or changes a number.
""",
    ),
}


def link(anchor: str) -> str:
    """Return a «?» for a caption, as Markdown, that opens the explanation of a term in a new tab."""
    return f"[?](units#{anchor} {TERMS[anchor].title!r})".replace("'", '"')
