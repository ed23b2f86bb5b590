"""The answer: attention, its time, memory and the card, for training, prefill and decoding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st

from pages.ui.draw import messages, tables, text
from pages.ui.filters.select import named_choice
from pages.ui.models import calculator, measured
from pages.ui.models.calculator import ModelQuestion, law_of, size_of
from pages.ui.models.measured import MeasuredModel
from pages.ui.shell.data import ask
from results import derive, levels
from results.gpus import GPUS, rows_named, title
from results.levels.model import unmasked_flops
from results.levels.model_table import model
from results.recommend import cards, model_fit
from results.recommend.model_attention import LayerTime
from results.records import Case, case_to_json

_FAR = 4.0  # a time scaled by a larger factor is rough


@dataclass(frozen=True)
class StepAnswer:
    """The needs of one step of the question on a card."""

    what: str
    case: Case
    mode: str
    needs_mb: float
    longest: int
    time: LayerTime | None
    least_ms: float | None  # lower bound for the whole model by the GPU's datasheet

    @property
    def layers(self) -> int:
        """Return how many layers attend."""
        return self.case.num_layers or 1


def steps(question: ModelQuestion, gpu: str) -> list[StepAnswer]:
    """Return the training step, the prompt and the decoding step, with times if the GPU has any."""
    asked = (
        (f"train {size_of(question.training)}", question.training, "train"),
        (f"prompt {size_of(question.prefill)}", question.prefill, "prefill"),
        (f"decode at {size_of(question.serving)}", question.serving, "decode"),
    )
    law, usable = law_of(question.attention), model_fit.CARDS[question.card].usable_mb
    return [
        StepAnswer(
            what,
            case,
            mode,
            levels.memory_mb(case, law, mode) or 0.0,
            levels.largest_seqlen(case, law, mode, usable) or 0,
            ask(cards.attention_time, gpu, case, mode),
            derive.least_ms(unmasked_flops(case_to_json(case), mode), levels.bytes_moved(case, mode), gpu, case.dtype),
        )
        for what, case, mode in asked
    ]


def choose_gpu(measured: Sequence[str]) -> str:
    """Ask for the GPU: those with times of attention first, then the other cards of the table.

    Another GPU also sets the memory that the model must fit into.
    """
    own = {row for gpu in measured for row in rows_named(gpu)}
    names = [*measured, *(row for row in GPUS if row not in own)]
    about = "Measured GPUs first. The times of other cards are estimated from their nearest relative."
    return named_choice("GPU", "kernels_of", names, names[0], title_of, width=230, help=about, on_change=_take_memory)


def title_of(gpu: str) -> str:
    """Return the name of a measured GPU or of a row of the table for readers."""
    return title(gpu) if gpu in GPUS else gpu


def _take_memory() -> None:
    st.session_state["card"] = model_fit.card_of(st.session_state["kernels_of"]) or st.session_state.get("card")


def show(question: ModelQuestion, gpu: str, timed: MeasuredModel | None) -> None:
    """Draw the answer of the chosen settings in one card, the memory bars, and a folded row for each step."""
    found = steps(question, gpu)
    with st.container(border=True, key="model_answer"):
        st.markdown(f"## {headline(question, found)}")
        measured.headline(question, timed, gpu)
        st.markdown(fastest_attention(found, gpu))
    calculator.parts_chart(question)
    with st.expander("Every step: attention, time, memory and card", icon=":material/table_rows:", key="model_steps"):
        columns = tables.declared("model_steps", gpu=title_of(gpu), card=question.card)
        rows = [_row(step, question, timed) for step in found]
        tables.show_table(rows, columns, "Attention, time, memory and fit by step")
        messages.say("model_steps", contents=_contents(question), origin=_origin(question, found, gpu))
        limit = model(str(question.serving.subject)).max_context
        if max(question.serving.seqlen_k, question.training.seqlen_k) > limit:
            said = "memory and time beyond that are still computed"
            st.caption(f"The model was made for at most {limit:,} tokens; {said}.")


def fastest_attention(found: Sequence[StepAnswer], gpu: str) -> str:
    """Return a sentence on the fastest attention of each step on a GPU; the only measured one is not a winner."""
    known = [f"{step.mode} {text.plain(_attention(step))}" for step in found if step.time]
    if not known:
        return (
            f"No attention kernel of this dtype and head_dim was measured on {text.plain(title_of(gpu))} or a relative."
        )
    return f"Fastest attention by itself on {text.plain(title_of(gpu))}: {'; '.join(known)}."


def _attention(step: StepAnswer) -> str:
    """Name the fastest attention of a step; say if it was uploaded, or had no rival."""
    if step.time is None:
        return "not measured"
    notes = [f"estimated from {step.time.estimated_by}"] * bool(step.time.estimated_by)
    notes += ["uploaded"] * (step.time.source == "upload") + ["the only one measured"] * (step.time.compared < 2)
    return step.time.implementation + f" ({', '.join(notes)})" * bool(notes)


def headline(question: ModelQuestion, found: Sequence[StepAnswer]) -> str:
    """Return a sentence on the memory of training and serving, and whether the card fits it."""
    train, *serve = found
    largest = max(serve, key=lambda step: step.needs_mb)
    up_to, case = min(step.longest for step in serve), question.training
    activations = " with recomputed activations" if case.checkpointing else " compiled" if case.compiled else ""
    parts = [
        f"training {size_of(case)}{activations} takes {text.mib(train.needs_mb)} and "
        f"{_verdict(train, question.card, _recomputed_mb(question))}",
        f"serving {size_of(question.serving)} takes {text.mib(largest.needs_mb)} and {_verdict(largest, question.card)}"
        + (f", up to {text.about_tokens(up_to)} tokens" if _fits(largest, question.card) else ""),
    ]
    return f"{text.plain(question.title)}: {'; '.join(parts)}"


def _verdict(step: StepAnswer, card: str, recomputed_mb: float | None = None) -> str:
    """Say whether a step fits a card, else which card it fits, and whether recomputed activations make it fit."""
    if _fits(step, card):
        return f"fits {card}"
    smallest = _smallest(step)
    otherwise = f"fits {smallest}" if smallest else "nor any larger card"
    if recomputed_mb and recomputed_mb <= model_fit.CARDS[card].usable_mb:
        otherwise += f"; with recomputed activations {text.mib(recomputed_mb)}, which fits {card}"
    return f"does not fit {card} ({otherwise})"


def _fits(step: StepAnswer, card: str) -> bool:
    return step.needs_mb <= model_fit.CARDS[card].usable_mb


def _smallest(step: StepAnswer) -> str | None:
    return next((name for name in model_fit.CARDS if _fits(step, name)), None)


def _row(step: StepAnswer, question: ModelQuestion, timed: MeasuredModel | None) -> dict:
    best, whole = timed and timed.fastest_of(step.case, step.mode), "not at this shape"
    if best:
        whole = f"{text.ms(best['latency_ms'])} on {timed.gpu} with {measured.attention_of(best)}"
    return {
        "what": step.what,
        "attention": _attention(step),
        "time": _time(step),
        "least": "–" if step.least_ms is None else f"≥ {text.ms(step.least_ms)}",
        "measured": whole,
        "memory": step.needs_mb,
        "fits": "yes" if _fits(step, question.card) else "no",
        "longest": step.longest,
        "smallest": _smallest(step) or "none",
    }


def _time(step: StepAnswer) -> str:
    if step.time is None:
        return "–"
    rough = "" if 1 / _FAR <= step.time.factor <= _FAR else " (rough)"
    return f"≈ {text.ms(step.layers * step.time.layer_ms)}{rough}"


def _contents(question: ModelQuestion) -> str:
    """Describe the parts of the memory with the numbers of the model."""
    config = model(str(question.training.subject))
    law = law_of(question.attention)
    train = max(model_fit.moments(question.training, law, "train"), key=lambda moment: moment.peak, default=None)
    serve = next(iter(model_fit.moments(question.serving, law, "decode")), None)
    if train is None or serve is None:
        return f"Only the growth of the memory of {text.plain(question.attention)} is known."
    activations = "recomputed" if question.training.checkpointing else "kept"
    return (
        f"{_count(config.parameters)} parameters: weights {text.mib(serve.weights)}, optimizer "
        f"({text.plain(question.training.optimizer)}) {text.mib(train.optimizer)}, activations {activations} "
        f"{text.mib(train.activations)}. {config.heads} query heads on {config.kv_heads} KV heads: KV cache "
        f"{text.mib(serve.cache)} at {text.size(question.serving.seqlen_k)}."
    )


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.3g} billion" if parameters >= 1e9 else f"{parameters / 1e6:.3g} million"


def _recomputed_mb(question: ModelQuestion) -> float | None:
    """Return the memory of training with activation checkpointing, if the question keeps activations."""
    if question.training.checkpointing:
        return None
    case = replace(question.training, checkpointing=True, compiled=False)
    return levels.memory_mb(case, law_of(question.attention), "train")


def _origin(question: ModelQuestion, found: Sequence[StepAnswer], gpu: str) -> str:
    """Name the GPU of the times and their scale factors; warn if it is not the chosen card."""
    known = [step for step in found if step.time]
    if not known:
        return fastest_attention(found, gpu)
    of = "B{0.batch} H{0.num_heads} KV{0.num_kv_heads} at {1}".format
    factors = {step.mode: (text.significant(step.time.factor), step.time.measured) for step in known}
    scaled = ", ".join(f"{mode} × {by} of {of(case, text.size(case.seqlen_k))}" for mode, (by, case) in factors.items())
    unknown = [step.mode for step in found if step.time is None]
    lacks = f" Not measured there: {', '.join(unknown)}." * bool(unknown)
    example = model_fit.CARDS[question.card].example
    same = model_fit.card_of(gpu) == question.card
    other = "" if same else f" They are not times of a {question.card} card such as the {example}."
    origins = " and ".join(sorted({step.time.estimated_by or gpu for step in known}))
    sheets = f", estimated for the {title_of(gpu)} by the data sheets" * (origins != gpu)
    return f"Times are of {text.plain(origins)}, scaled to this shape{sheets}: {text.plain(scaled)}.{lacks}{other}"
