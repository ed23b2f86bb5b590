"""The memory calculator: the cards that train and serve a model, the longest context, and the parts of the memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st

from pages.ui.draw import charts, messages, tables, text
from pages.ui.draw.charts import Chart, ReferenceLine, Series
from pages.ui.draw.tables import TableColumn
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters.select import named_choice
from pages.ui.shell.data import ask
from results import levels
from results.implementations import facts_of
from results.levels.memory import MemoryLaw
from results.levels.model import config_of
from results.levels.model_memory import OPTIMIZERS, ModelMemory
from results.levels.model_table import model, model_case, models
from results.paths import toml_of
from results.query.declared import declared
from results.recommend import model_fit
from results.records import Case, case_to_json

_FIRST = "llama3-8b"
ATTENTIONS = ("triton_fa2", "gluon_hopper", "torch_sdpa_flash", "torch_sdpa_math", "torch_naive")
DTYPES = ("bfloat16", "float16", "float32")
SEQLENS = tuple(str(512 << at) for at in range(9))
BATCHES = tuple(str(1 << at) for at in range(9))
_WORDS = toml_of(__file__)
_HELP = _WORDS["help"] | {"optimizer": "; ".join(f"{name}: {each.words}" for name, each in OPTIMIZERS.items())}
PART_WORDS = {part: words for part, (words, _) in _WORDS["parts"].items()}


@dataclass(frozen=True)
class ModelQuestion:
    """The question of the reader: a model, its training and its serving."""

    attention: str
    card: str
    training: Case
    serving: Case  # decoding, after a prefill of the same context

    @property
    def prefill(self) -> Case:
        """Return the prompt of the whole context."""
        return replace(self.serving, seqlen_q=self.serving.seqlen_k)

    @property
    def title(self) -> str:
        """Return the usual name of the model."""
        return model(str(self.training.subject)).title


def choose(measured: Sequence[str], gpu: str | None) -> ModelQuestion:
    """Ask for model, attention, card and lengths; measured models and the card of the GPU come first."""
    by_title = sorted(models(), key=lambda name: model(name).title)
    names = sorted(by_title, key=lambda name: name not in measured)
    name = named_choice("Model", "model", names, _FIRST, lambda name: model(name).title, width=165)
    lengths = _lengths(name)
    usual = {length: length if length in lengths else lengths[-1] for length in ("8192", "32768")}
    seqlen = _ask("Train at (tokens)", "train_seqlen", lengths, usual["8192"], width=165)
    context = _ask("Serve at (tokens)", "serve_context", lengths, usual["32768"], width=165)
    card = _ask("Fit into", "card", list(model_fit.CARDS), model_fit.card_of(gpu or "") or "24 GB", width=165)
    attention = _ask("Memory with", "attention", list(ATTENTIONS), width=165)
    with st.popover("Batch, optimizer, dtypes", icon=":material/tune:", key="model_settings"):
        dtype = _ask("dtype", "model_dtype", list(DTYPES))
        training, serving = _training(name, dtype, int(seqlen)), _serving(name, dtype, int(context))
    return ModelQuestion(attention, card, training, serving)


def law_of(attention: str) -> MemoryLaw:
    """Return the memory law of an implementation at level model, or at another level."""
    return facts_of(attention, ask(declared, "model")).memory


def size_of(case: Case) -> str:
    """Return the batch and the length of a case in words."""
    return f"{case.batch} × {text.size(case.seqlen_k)}"


def cards_table(question: ModelQuestion) -> None:
    """Draw for each card whether the model fits, and the longest context that fits."""
    law = law_of(question.attention)
    columns = {
        mode: model_fit.on_cards(case, law, mode)
        for mode, case in (("decode", question.serving), ("prefill", question.prefill), ("train", question.training))
    }
    rows = [
        {
            "card": decode.card + (" ◂" if decode.card == question.card else ""),
            "example": decode.example,
            "serves": _YES[decode.fits and prefill.fits],
            "decode": decode.longest,
            "prefill": prefill.longest,
            "trains": _YES[train.fits],
            "train": train.longest,
        }
        for decode, prefill, train in zip(*columns.values(), strict=True)
    ]
    shown = tables.declared("model_cards", serves=size_of(question.serving), trains=size_of(question.training))
    tables.show_table(rows, shown, "Whether the model fits, by GPU memory")
    messages.say("model_cards", runtime=model_fit.RUNTIME_MB, attention=text.plain(question.attention))


def attentions_table(question: ModelQuestion) -> None:
    """Draw the longest sequences on the chosen card for each attention."""
    usable = model_fit.CARDS[question.card].usable_mb
    rows = [
        {
            "attention": name,
            "kind": "score matrix in memory" if law.confirmed("fwd").matrices else "no score matrix",
            "prefill": levels.largest_seqlen(question.prefill, law, "prefill", usable),
            "train": levels.largest_seqlen(question.training, law, "train", usable),
            "needs": levels.memory_mb(question.training, law, "train"),
        }
        for name, law in zip(ATTENTIONS, map(law_of, ATTENTIONS), strict=True)
    ]
    columns = tables.declared("model_attentions", trains=size_of(question.training))
    tables.show_table(rows, columns, f"Longest sequences on {question.card} by attention")


def parts_chart(question: ModelQuestion) -> None:
    """Draw the parts of the memory at each moment with the limit of the card, and the same numbers as a table."""
    law = law_of(question.attention)
    named = [
        (label + moment.moment, moment)
        for label, case, mode in (
            ("serve: ", question.serving, "decode"),
            ("serve: ", question.prefill, "prefill"),
            ("train: ", question.training, "train"),
        )
        for moment in model_fit.moments(case, law, mode)
    ]
    alt = "Memory in GiB of serving and training, by part"
    chart = parts_bars(named, model_fit.CARDS[question.card].usable_mb, question.card)
    shapes = [f"train {size_of(question.training)}", f"serve {size_of(question.serving)}"]
    title = ChartTitle("Memory by part", (question.title, *shapes, f"attention {question.attention}", "by formula"))
    charts.show(chart, title, key="model_parts", alt=alt)
    parts = [{part: size or None for part, size in model_fit.parts(moment)} for _, moment in named]
    rows = [{"moment": name, "peak": moment.peak, **of} for (name, moment), of in zip(named, parts, strict=True)]
    written = {part: TableColumn(words, text.mib) for part, words in PART_WORDS.items()}
    columns = {"moment": TableColumn("moment"), "peak": TableColumn("all", text.mib), **written}
    with st.expander("Parts of the memory as a table", icon=":material/table_rows:", key="model_parts_table"):
        tables.show_table(rows, columns, "Parts of the memory")


def parts_bars(named: Sequence[tuple[str, ModelMemory]], capacity_mb: float, card: str) -> Chart:
    """Return a bar for each moment, stacked from its parts in GiB, and a dashed line at the card's memory."""
    names, found = [name for name, _ in named], []
    for part, words in PART_WORDS.items():
        sizes = [getattr(moment, part) / 1024 for _, moment in named]
        if any(sizes):
            said = [f"{words}: {size:.3g} GiB" for size in sizes]
            found.append(Series(words, sizes, names, _WORDS["parts"][part][1], said, bars="h"))
    capacity = capacity_mb / 1024
    place = {"x": capacity, "y": 1, "yref": "paper", "xanchor": "center", "yanchor": "bottom"}
    rules, notes = [ReferenceLine(capacity, vertical=True)], [place | {"text": card, "showarrow": False}]
    x, y = charts.titled("Memory (GiB)"), {"autorange": "reversed", "automargin": True}
    return Chart(found, x, y, 190 + 40 * len(names), "y unified", stacked=True, rules=rules, notes=notes)


def formulas(question: ModelQuestion) -> None:
    """Draw the formulas with this model's numbers in them."""
    case = case_to_json(question.training)
    config = config_of(case)
    with st.expander("Formulas", icon=":material/function:", key="model_formulas"):
        rows = [{"part": part, "bytes": words} for part, words in _WORDS["formulas"].items()]
        tables.show_table(rows, tables.declared("formulas"), "Formulas of the memory's parts")
        st.caption(_WORDS["moments"])
        gated = "gated" if config.architecture.gated_mlp else "not gated"
        messages.say("model_formulas", title=text.plain(config.title), c=config, gated=gated)


def _lengths(name: str) -> list[str]:
    """Return the lengths up to the last position of a model."""
    longest = levels.level_of("model").longest({"level": "model", "subject": name})
    return [length for length in SEQLENS if longest is None or int(length) <= longest]


def _ask(label: str, key: str, choices: Sequence[str], default: str | None = None, width: int | None = None) -> str:
    return named_choice(label, key, choices, default, help=_HELP.get(key), width=width or "stretch")


def _training(name: str, dtype: str, seqlen: int) -> Case:
    batch = _ask("Training batch", "train_batch", list(BATCHES), "1")
    optimizer = _ask("Optimizer", "optimizer", list(OPTIMIZERS), "adamw_bf16")
    saved = _ask("Activations", "activations", list(_SAVED), "kept")
    kept = {"checkpointing": saved == "recomputed", "compiled": saved == "compiled"}
    return model_case(name, batch=int(batch), seqlen=seqlen, dtype=dtype, optimizer=optimizer, **kept)


def _serving(name: str, dtype: str, context: int) -> Case:
    batch = _ask("Sequences served at a time", "serve_batch", list(BATCHES), "1")
    stored = _ask("KV cache", "kv_dtype", [_AS_DTYPE, "float8_e4m3fn"])
    cache = {"dtype": dtype, "cache_dtype": None if stored == _AS_DTYPE else stored}
    case = model_case(name, batch=int(batch), seqlen=context, query_tokens=1, **cache)
    expanded = model(name).latent and _ask("Latent", "latent", ["cached", "expanded"]) == "expanded"
    return replace(case, latent_dim=0) if expanded else case


_YES = {True: "yes", False: "no"}
_AS_DTYPE = "as dtype"
_SAVED = ("kept", "compiled", "recomputed")
