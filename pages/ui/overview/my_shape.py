"""The best choice for a shape, its estimated time, the nearest measured shapes, and the rule as a file."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, tables, text
from pages.ui.filters import select
from pages.ui.overview import my_card, usage
from pages.ui.run import one_shape
from pages.ui.shell.data import ask_slowly
from results import levels
from results.recommend import rule
from results.recommend.cards import Relative
from results.recommend.rule import RuleError, ShapeRule
from results.records import Case, RecordError, attention_case
from results.slice import Filters, of_mask
from results.store.database import Store

_NEIGHBOURS = 5
_NEAR = 1.0  # a factor of two in seqlen; beyond this distance the answer is a guess and says so
_SIZES = ("seqlen", "head_dim", "batch", "num_heads", "num_kv_heads")
Neighbour = tuple[float, Mapping[str, Any]]  # its distance, and the point of the rule


def show(chosen: Filters) -> None:
    """Ask for a shape, answer it, show the nearest measured shapes, and offer the whole rule."""
    made, subject = ask_slowly(rule_of, chosen), my_card.estimate_of(chosen)
    if made is None and (other := my_card.stand_in(chosen)):
        made, subject = ask_slowly(rule_of, other[0]), (str(chosen.gpu), other[1])
    if made is None:
        st.info("No rule follows from this selection: nothing in it has a time.", icon=":material/rule:")
        return
    shape = _shape(made, chosen)
    try:
        case = attention_case(
            **{name: shape[name] for name in (*_SIZES, "dtype", "window_size")}, causal=bool(shape["causal"])
        )
    except RecordError as error:
        st.error(text.plain(error), icon=":material/error:")
        return
    found = rule.choose(made, count=_NEIGHBOURS, **shape)
    _answer(found, case, shape["mode"], subject)
    usage.show(found[0][1]["implementation"], "op", causal=bool(shape["causal"]), window_size=shape["window_size"])
    with st.container(horizontal=True):
        stated = replace(case, causal=shape["causal"])
        one_shape.show("Measure this shape", stated, mode=shape["mode"])
        messages.link("models", "A whole model: weights, KV cache, training, serving", "model_training")
    _neighbours(made, found, case, shape["mode"])
    name = "".join(mark if mark.isalnum() else "_" for mark in made.gpu)
    with st.container(horizontal=True):
        for label, ending, write in (("Rule as Python", "py", rule.as_python), ("Rule as JSON", "json", rule.as_json)):
            messages.offer(label, f"attention_rule_{name}.{ending}", partial(write, made), f"rule_{ending}")
    gpu, basis = text.plain(made.gpu), text.plain(made.basis)
    messages.say("rule_files", timing=text.TIMED[made.timing], count=len(made.points), gpu=gpu, basis=basis)


def rule_of(store: Store, chosen: Filters) -> ShapeRule | None:
    """Return the rule of every mode, mask and shape of the GPU; None if nothing has a time."""
    try:
        return rule.rule_of(store, replace(chosen, mode=None, mask=None, shape=None, dtype=(), seqlen=(), head_dim=()))
    except RuleError:
        return None


def _shape(made: ShapeRule, chosen: Filters) -> dict[str, Any]:
    """Ask for a shape, and for a measured dtype, mask and mode; those of the filters come first."""
    unordered = {(p["dtype"], p["mask"], p["mode"]) for p in made.points}
    kinds = sorted(unordered, key=lambda kind: (kind[1] != chosen.mask, kind[2] != chosen.mode, kind))
    with st.container(border=True):
        sizes = {}
        for column, (name, said) in zip(st.columns(5), text.WORDS["shape_sizes"].items(), strict=True):
            key = f"shape_{name.removeprefix('num_')}"
            sizes[name] = column.number_input(min_value=1, key=key, bind="query-params", **{"value": None} | said)
        labels = {
            f"{dtype} · {mask} · {text.MODE_WORDS.get(mode, mode)}": (dtype, mask, mode) for dtype, mask, mode in kinds
        }
        kind = select.bound(st.selectbox, "Data type, mask and pass", "shape_kind", list(labels))
    dtype, mask, mode = labels[kind]
    said = of_mask(mask)
    return sizes | {"dtype": dtype, "mode": mode, "causal": said["causal"], "window_size": said["window_size"] or 0}


def _answer(found: Sequence[Neighbour], case: Case, mode: str, subject: tuple[str, Relative] | None) -> None:
    """Answer with the nearest shape; for a card without times also by the data sheets of it and its relative."""
    distance, point = found[0]
    backend = point["backend"] and f" Within PyTorch: scaled_dot_product_attention with SDPBackend.{point['backend']}"
    st.markdown(f"## Use {text.plain(point['implementation'])}.{text.plain(backend or '')}")
    place = _place(point)
    if not distance:
        whole = all(point[name] == getattr(case, name) for name in ("batch", "num_heads"))
        kind = "Measured at this shape" if whole else f"Measured with as many heads in all ({place})"
        if unknown := [word for word, name in (("batch", "batch"), ("heads", "num_heads")) if not point[name]]:
            kind = f"Measured at {place}, by a source that does not state {' and '.join(unknown)}"
        sentences = [f"{kind}: {text.ms(point['latency_ms'])}."]
    else:
        sentences = [_estimate(found, case, mode), f"Nearest measured shape: {place}: {text.ms(point['latency_ms'])}."]
    if subject:
        card, other = subject
        sentence = f"These are times of {other.gpu}"
        if there := scaled_ms(point, case, mode):
            sentence += f"; by the data sheets the {card} takes about {text.ms(other.compute * there)} (an estimate)"
        sentences.append(f"{sentence}.")
    if point["ties"]:
        sentences.append(f"Equally fast within 2 %: {', '.join(point['ties'])}.")
    if distance > _NEAR:
        sentences.append("That is far from yours: measure it before you rely on it.")
    st.markdown(" ".join(text.plain(sentence) for sentence in sentences if sentence))


def _place(point: Mapping[str, Any]) -> str:
    sizes = [f"seqlen {text.size(point['seqlen'])}", f"head_dim {point['head_dim']}"]
    named = (("batch", "batch"), ("heads", "num_heads"), ("kv heads", "num_kv_heads"))
    return ", ".join([*sizes, *(f"{name} {point[key]}" for name, key in named if point[key])])


def _estimate(found: Sequence[Neighbour], case: Case, mode: str) -> str:
    """Estimate the time of the shape from the neighbors by floating-point operations, with their range."""
    times = [time for _, point in found if (time := scaled_ms(point, case, mode)) is not None]
    if not times:
        return ""
    count = len(times)
    span = f" ({text.significant(min(times))} to {text.ms(max(times))} by the {count} nearest)" if count > 1 else ""
    return f"Yours takes about {text.ms(times[0])}{span}: measured times, scaled by floating-point operations."


def scaled_ms(point: Mapping[str, Any], case: Case, mode: str) -> float | None:
    """Return a measured time scaled to another shape by floating-point operations; None if a size is not stated."""
    sizes = {name: point[name] for name in ("seqlen", "head_dim", "batch", "num_heads")}
    if not all(sizes.values()):
        return None
    measured = attention_case(
        **sizes, dtype=str(case.dtype), causal=bool(case.causal), window_size=case.window_size or 0
    )
    asked, there = levels.flops(case, mode), levels.flops(measured, mode)
    return point["latency_ms"] * asked / there if asked and there else None


def _neighbours(made: ShapeRule, found: Sequence[Neighbour], case: Case, mode: str) -> None:
    """Draw the measured shapes behind the answer."""
    names = ("implementation", "estimate_ms", "latency_ms", *_SIZES, "backend", "backend_ms", "ties", "distance")
    rows = [
        {
            **point,
            "estimate_ms": scaled_ms(point, case, mode),
            "ties": ", ".join(point["ties"]) or None,
            "distance": distance,
        }
        for distance, point in found
    ]
    tables.grid(pd.DataFrame(rows)[[*names]], "The nearest measured shapes", tables.declared("nearest_shapes"))
    messages.say("nearest_shapes", badges=messages.source_badges(list(made.sources)))
