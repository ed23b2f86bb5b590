"""The best choice for a typed-in shape, what it rests on, and the rule to take away."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.shell.data import ask_slowly
from results import levels
from results.recommend import rule
from results.recommend.rule import Rule, RuleError
from results.records import attention_case
from results.slice import Filters, of_mask
from results.store.database import Store

_NEIGHBOURS = 5
_NEAR = 1.0  # a factor of two in seqlen; farther than that the answer is a guess and says so


def show(chosen: Filters) -> None:
    """Ask for a shape, answer it, say what the answer rests on, and offer the whole rule."""
    made = ask_slowly(rule_of, chosen)
    if made is None:
        st.info("No rule follows from this slice: nothing in it has a time.", icon=":material/rule:")
        return
    shape = _shape(made, chosen)
    found = rule.choose(made, count=_NEIGHBOURS, **shape)
    _answer(found[0], made, shape)
    table = pd.DataFrame(rule.points_table(found))
    st.dataframe(
        table,
        hide_index=True,
        alt="The measured shapes nearest to it",
        column_config={
            "distance": st.column_config.NumberColumn(
                "distance", format="%.2f", help="0: as many tokens, heads in all and head_dim"
            ),
            "latency_ms": st.column_config.NumberColumn("latency (ms)", format="%.4g"),
            "backend_ms": st.column_config.NumberColumn("backend (ms)", format="%.4g"),
            "ties": st.column_config.TextColumn("equally fast", width="medium"),
        },
    )
    st.caption(
        f"{messages.source_badges(list(made.sources))} The nearest measured shapes: a factor of two counts 1 in "
        "seqlen, 2 in head_dim, ½ in batch times heads. backend: the fastest backend of PyTorch's "
        "scaled_dot_product_attention."
    )
    _downloads(made)


def rule_of(store: Store, chosen: Filters) -> Rule | None:
    """Return the rule of every mode, mask and shape of the GPU; None where nothing has a time."""
    try:
        return rule.rule_of(store, replace(chosen, mode=None, mask=None, shape=None, dtype=(), seqlen=(), head_dim=()))
    except RuleError:
        return None


def _shape(made: Rule, chosen: Filters) -> dict:
    """Ask for a shape, and for dtype, mask and mode among those that were measured, the sidebar's first."""
    kinds = {(p["dtype"], p["mask"], p["mode"]) for p in made.points}
    kinds = sorted(kinds, key=lambda kind: (kind[1] != chosen.mask, kind[2] != chosen.mode, kind))
    with st.container(border=True):
        seqlen, head_dim, batch, heads = st.columns(4)
        sizes = {
            "seqlen": seqlen.number_input("seqlen", 1, 1 << 20, 4096, key="shape_seqlen", bind="query-params"),
            "head_dim": head_dim.number_input("head_dim", 1, 1024, 64, key="shape_head_dim", bind="query-params"),
            "batch": batch.number_input("batch", 1, 1 << 16, 1, key="shape_batch", bind="query-params"),
            "num_heads": heads.number_input("heads", 1, 1024, 16, key="shape_heads", bind="query-params"),
        }
        labels = {
            f"{dtype} · {mask} · {text.MODE_WORDS.get(mode, mode)}": (dtype, mask, mode) for dtype, mask, mode in kinds
        }
        dtype, mask, mode = labels[
            st.selectbox("Data type, mask and mode", list(labels), key="shape_kind", bind="query-params")
        ]
    said = of_mask(mask)
    return sizes | {"dtype": dtype, "mode": mode, "causal": said["causal"], "window_size": said["window_size"] or 0}


def _answer(nearest: tuple, made: Rule, shape: dict) -> None:
    distance, point = nearest
    place = f"seqlen {text.size(point['seqlen'])}, head_dim {point['head_dim']}"
    heads = [f"{name} {point[key]}" for name, key in (("batch", "batch"), ("heads", "num_heads")) if point[key]]
    where = ", ".join([place, *heads])
    backend = f"; within PyTorch: **{point['backend']}**" if point["backend"] else ""
    ties = f", equally fast within 2 %: {text.plain(', '.join(point['ties']))}" if point["ties"] else ""
    st.markdown(f"#### Use {text.plain(point['implementation'])}{backend}")
    kind = "Measured with as many heads in all" if not distance else "The nearest measured shape"
    far = " That is far from yours: measure it before you rely on it." if distance > _NEAR else ""
    st.markdown(f"{kind}: {where}: {text.ms(point['latency_ms'])}{ties}.{_scaled(point, shape)}{far}")


def _scaled(point: dict, shape: dict) -> str:
    """Say what the neighbour's time makes of the typed shape by floating-point operations; nothing if they are equal.

    Nothing either where a size of the neighbour is not said.
    """
    sizes = {name: point[name] for name in ("seqlen", "head_dim", "batch", "num_heads")}
    if not all(sizes.values()):
        return ""
    asked, measured = (_flops(one, shape) for one in (shape, sizes))
    if not asked or not measured or abs(asked / measured - 1) < 0.005:
        return ""
    share = asked / measured
    return f" By operations yours is {share:.3g}× that: about {text.ms(point['latency_ms'] * share)}."


def _flops(sizes: dict, shape: dict) -> float | None:
    case = attention_case(
        **{name: sizes[name] for name in ("seqlen", "head_dim", "batch", "num_heads")},
        dtype=shape["dtype"],
        causal=bool(shape["causal"]),
        window_size=shape["window_size"],
    )
    return levels.flops(case, shape["mode"])


def _downloads(made: Rule) -> None:
    name = "".join(mark if mark.isalnum() else "_" for mark in made.gpu)
    with st.container(horizontal=True):
        for label, ending, write in (("Rule as Python", "py", rule.as_python), ("Rule as JSON", "json", rule.as_json)):
            st.download_button(
                label,
                data=lambda write=write: write(made),
                file_name=f"attention_rule_{name}.{ending}",
                on_click="ignore",
                icon=":material/download:",
                key=f"rule_{ending}",
            )
    st.caption(f"{text.plain(made.basis)} In a terminal: `python -m results rule`.")
