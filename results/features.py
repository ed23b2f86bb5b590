"""Features of an attention call beyond its causal or window mask, as one text of a case: `softcap=50,sinks`.

A feature is one entry of features.toml. Its text is its name, with a value after `=` if it takes one, and the text of a
case lists features in the order of FEATURES. `kernels.features` defines what they compute. Lengths that a feature needs
are drawn here from a seed made of the case, so that operations, bytes and inputs agree. Standard library only.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

from results.paths import toml_of

NUMBER, SHARE, WHOLE = "a number above 0", "a share above 0 and below 1", "a whole number of at least 1"
BLOCKS = "64 or 128 tokens, a colon and the share of blocks left out, such as 128:0.75"
DEVIATION = 1.0  # of the logarithm of lengths of documents and of skewed sequences


@dataclass(frozen=True)
class Feature:
    """One feature; `capability` is its name in `kernels.registry.FEATURES`."""

    name: str
    capability: str
    words: str  # what an implementation is able to compute
    value: str = ""  # NUMBER, SHARE, WHOLE or BLOCKS; empty: no value, or one of `choices`
    choices: tuple[str, ...] = ()
    usual: str = ""  # text with a usual value; empty: the name alone
    needs: str = ""  # text of another feature without which it has no meaning
    of_lengths: bool = False  # gives each sequence a length, so that seqlen_k must be seqlen_q; at most one in a case

    @property
    def example(self) -> str:
        """Return the text with a usual value."""
        return self.usual or self.name

    def read(self, text: str) -> str:
        """Return the value of the feature as a case has it. Raises ValueError with the values that are possible."""
        possible = " or ".join(self.choices) or self.value
        if not possible:
            if text:
                raise ValueError(f"feature {self.name} takes no value, not {text!r}.")
            return ""
        if self.choices:
            if text in self.choices:
                return text
        else:
            size, colon, digits = text.rpartition(":")
            try:
                number = float(digits)
            except ValueError:
                number = 0.0
            most = 1.0 if self.value in (SHARE, BLOCKS) else 1e9
            whole = self.value != WHOLE or (0 < number < most and number == int(number))
            if 0 < number < most and whole and (size in ("64", "128") if self.value == BLOCKS else not colon):
                return f"{size}{colon}{number:.9g}"
        raise ValueError(f"feature {self.name} is {text!r}; possible is {possible}.")


_VALUES = {"number": NUMBER, "share": SHARE, "whole": WHOLE, "blocks": BLOCKS, "": ""}
FEATURES = tuple(
    Feature(name, **said | {"value": _VALUES[said.get("value", "")]}) for name, said in toml_of(__file__).items()
)
_NAMED = {feature.name: feature for feature in FEATURES}


@cache
def parsed(text: str | None) -> Mapping[str, str]:
    """Return the value of each feature of a text, in the order of FEATURES; `softcap=50,sinks` in any order.

    Raises ValueError for an unknown feature or value, or one that is given twice, with what is possible.
    """
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not name and not value and not text:
            continue
        if name not in _NAMED:
            raise ValueError(f"Unknown feature {name!r}. Possible: {', '.join(_NAMED)}.")
        if name in found:
            raise ValueError(f"feature {name} is given twice.")
        found[name] = _NAMED[name].read(value)
    return {name: found[name] for name in _NAMED if name in found}


def canonical(text: str | None) -> str | None:
    """Return the one text of some features, or None for no feature. Raises ValueError as `parsed` does."""
    return ",".join(f"{name}={value}" if value else name for name, value in parsed(text).items()) or None


def capabilities(text: str | None) -> tuple[str, ...]:
    """Return the names of `kernels.registry.FEATURES` that a case's features need."""
    return tuple(_NAMED[name].capability for name in parsed(text))


def words(text: str | None) -> str | None:
    """Return features in words: softcap 50, sinks."""
    return ", ".join(" ".join((name, value)).strip() for name, value in parsed(text).items()) or None


def reason_against(case: Mapping[str, Any]) -> str | None:
    """Return why the features of a case do not go with its other fields, or None; unstated fields go with all."""
    found = parsed(case.get("features"))
    lengths = [name for name in found if _NAMED[name].of_lengths or found[name] == "padding"]
    seqlens, window = {case.get("seqlen_q"), case.get("seqlen_k")} - {None}, case.get("window_size")
    if found and case.get("level") not in (None, "op"):
        return f"features are of cases of level op, not of level {case['level']}."
    if len(lengths) > 1:
        return f"features {' and '.join(lengths)} exclude each other; each decides which keys a sequence has."
    if lengths and len(seqlens) > 1:
        return f"feature {lengths[0]} needs seqlen_q and seqlen_k to be equal."
    if found.get("mask") and "varlen" in found:
        return "features mask and varlen exclude each other; a mask needs a batch."
    if "prefix" in found and (case.get("causal") is False or window):
        return "feature prefix needs a causal mask without a window."
    for name in found:
        other, _, value = _NAMED[name].needs.partition("=")
        if other and found.get(other) != value:
            return f"feature {name} needs {_NAMED[name].needs}."
    if "blocks" in found and (window or any(seqlen % int(found["blocks"].split(":")[0]) for seqlen in seqlens)):
        return "feature blocks needs a seqlen that is a multiple of the block, and no window."
    if "ahead" in found and (case.get("causal") or window == 0):
        return "feature ahead needs a window_size and no causal mask; it counts the keys after the query that are seen."
    return None


def listed_blocks(case: Mapping[str, Any]) -> tuple[int, list[int]] | None:
    """Return the tokens of a block and how many key blocks each query block of a head lists; None without `blocks`.

    `blocks=128:0.75` leaves out this share of the blocks that a query block sees, rounded. Its own block is always
    listed, so that some query sees each key; `runner.levels.op` draws the others.
    """
    size, _, share = parsed(case.get("features")).get("blocks", "").partition(":")
    if not size:
        return None
    blocks = int(case["seqlen_k"]) // int(size)
    seen = range(1, blocks + 1) if case.get("causal") else [blocks] * blocks
    return int(size), [max(1, round((1 - float(share)) * each)) for each in seen]


def lengths_of(case: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return by row of the batch the lengths that a feature of a case gives; empty without such a feature.

    `mask=padding`: the tokens of each row, from 1 to seqlen with equal probability, as up to half of all tokens are
    padding when BERT is trained on Wikipedia (arXiv 2107.02027, section 1). `documents=600`: documents of a log-normal
    length with this mean are packed until a row is full, and the last one is cut. `varlen=skewed`: one row of packed
    sequences of log-normal lengths whose mean is seqlen; `varlen=uniform`: all have that length.
    """
    found = parsed(case.get("features"))
    layout = next(((name, found[name]) for name in ("mask", "documents", "varlen", "prefix") if name in found), None)
    if layout is None or layout == ("mask", "bias"):
        return ()
    return _lengths(*layout, int(case["batch"]), int(case["seqlen_k"]))


@cache
def _lengths(name: str, value: str, batch: int, seqlen: int) -> tuple[tuple[int, ...], ...]:
    source = random.Random(f"{name}={value}/{batch}/{seqlen}")
    if name == "mask":
        return tuple((1 + int(source.random() * seqlen),) for _ in range(batch))
    if name == "prefix":
        return ((min(int(value), seqlen),),) * batch
    if name == "documents":
        return tuple(tuple(_filled(seqlen, _log_normal(float(value), source))) for _ in range(batch))
    if value == "uniform":
        return ((seqlen,) * batch,)
    draws = _log_normal(float(seqlen), source)
    drawn = [next(draws) for _ in range(batch)]
    scale = batch * seqlen / sum(drawn)
    found = [max(1, int(length * scale)) for length in drawn]
    found[found.index(max(found))] += batch * seqlen - sum(found)
    return (tuple(found),)


def _log_normal(mean: float, source: random.Random) -> Iterator[float]:
    normal = NormalDist(sigma=DEVIATION)
    while True:
        yield mean * math.exp(normal.inv_cdf(source.random() or 0.5) - DEVIATION**2 / 2)


def _filled(seqlen: int, draws: Iterator[float]) -> Iterator[int]:
    left = seqlen
    while left:
        length = min(left, max(1, round(next(draws))))
        left -= length
        yield length
