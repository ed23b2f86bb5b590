"""Numbers that head a page, as plain HTML: for the browser four of Streamlit's metrics are as much as the map below."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

import streamlit as st

_STYLE = """<style>
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1rem; }
dl.facts.facts { margin: 0; padding: 0; }
.facts > div { position: relative; padding: 0.9rem 1rem; border-radius: 0.5rem;
  border: 1px solid color-mix(in srgb, currentcolor 20%, transparent); }
.facts dt { display: flex; align-items: center; gap: 0.4rem; font-size: 0.875rem; font-weight: 400; margin: 0; }
.facts dd { margin: 0.1rem 0 0; font-size: 1.6rem; line-height: 1.4; }
.facts dd.below { display: inline-block; margin-top: 0.3rem; padding: 0.1rem 0.5rem; border-radius: 1rem;
  font-size: 0.875rem; background: color-mix(in srgb, currentcolor 7%, transparent); }
.facts button { width: 1.1rem; height: 1.1rem; padding: 0; border: 1px solid currentcolor; border-radius: 50%;
  background: none; color: inherit; font-size: 0.75rem; line-height: 1; cursor: help; opacity: 0.75; }
.facts .note { display: none; position: absolute; z-index: 10; top: 2.4rem; left: 0; min-width: 100%; max-width: 80vw;
  width: 16rem; padding: 0.5rem 0.75rem; border-radius: 0.5rem; font-size: 0.875rem; color: CanvasText;
  background: Canvas; border: 1px solid color-mix(in srgb, currentcolor 20%, transparent);
  box-shadow: 0 2px 8px rgb(0 0 0 / 20%); }
.facts > div:last-child:not(:first-child) .note { left: auto; right: 0; }
.facts button:hover + .note, .facts button:focus + .note { display: block; }
</style>"""


@dataclass(frozen=True)
class Fact:
    """A number with its name, what it means, and a word on it where there is one."""

    label: str
    value: str
    below: str
    help: str


def show(facts: Iterable[Fact]) -> None:
    """The numbers side by side where there is room; what they mean is there under the pointer and for the Tab key."""
    st.html(f'{_STYLE}<dl class="facts">{"".join(map(_tile, facts))}</dl>')


def _tile(fact: Fact) -> str:
    label, value, below, help = (html.escape(text) for text in (fact.label, fact.value, fact.below, fact.help))
    more = f'<button type="button" aria-label="{help}">?</button><span class="note" aria-hidden="true">{help}</span>'
    shown = f'<dd class="below">{below}</dd>' if below else ""
    return f"<div><dt>{label} {more}</dt><dd>{value}</dd>{shown}</div>"
