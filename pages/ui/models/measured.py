"""Measurements of a model: generation, training, and memory with its formula."""

from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st

from pages.ui import frontier
from pages.ui.draw import charts, colours, messages, tables, text
from pages.ui.draw.charts import Chart, Series
from pages.ui.draw.titles import ChartTitle, of_runs
from pages.ui.filters.select import named_choice, rows_of_one
from pages.ui.models.calculator import ModelQuestion, law_of
from pages.ui.shell.data import ask
from results import levels
from results.levels import level_of
from results.levels.model import FLOP_CONVENTIONS
from results.levels.model_table import model
from results.query import models
from results.recommend import model_fit
from results.records import Case

LEVEL = level_of("model")
COMMAND = "python -m runner run models --set subject={subject}"
_STEP_COLUMNS = tables.declared("training_steps")
_CALL_WORDS = tables.declared("model_calls")


@dataclass(frozen=True)
class MeasuredModel:
    """The rows of one model on one GPU."""

    subject: str
    gpu: str
    calls: pd.DataFrame  # results.query.models.CALLS

    def title(self, what: str, rows: pd.DataFrame, *more: str) -> ChartTitle:
        """Return the title of a chart of these rows."""
        named = model(self.subject).title if self.subject in LEVEL.subjects else self.subject
        return ChartTitle(what, (named, self.gpu, *more), of_runs(rows["run_id"].unique()))

    def of(self, *modes: str) -> pd.DataFrame:
        """Return the rows of those modes that state a batch and a context; a foreign run may state neither."""
        return self.calls[self.calls["mode"].isin(modes)].dropna(subset=["batch", "seqlen_k"])

    def timed(self, case: Case, mode: str) -> pd.DataFrame:
        """Return the fully timed rows of a mode with the settings of a case, at any batch and length.

        The settings are the dtypes and, for training, the optimizer and checkpointing.
        """
        rows = self.of(mode)
        here = (rows["dtype"] == case.dtype) & rows["latency_ms"].notna() & ~rows["extrapolated"].astype(bool)
        if mode == "train":
            recomputed = rows["checkpointing"].map(is_on).astype(bool)
            here &= (rows["optimizer"] == case.optimizer) & (recomputed == bool(case.checkpointing))
        else:
            here &= rows["cache_dtype"].fillna(case.dtype) == (case.cache_dtype or case.dtype)
        return rows[here]

    def fastest_of(self, case: Case, mode: str) -> dict | None:
        """Return the fastest timed row with exactly the settings, batch and length of a case, if there is one."""
        rows = self.timed(case, mode)
        rows = rows[(rows["batch"] == case.batch) & (rows["seqlen_k"] == case.seqlen_k)]
        return None if rows.empty else rows.loc[rows["latency_ms"].idxmin()].to_dict()


def choose(subject: str, first: str | None) -> MeasuredModel | None:
    """Ask for the GPU of a measured model; return None if no run measured it.

    The default is the GPU `first` if it measured the model.
    """
    gpus = ask(models.gpus, subject)
    if not gpus:
        return None
    usual = first if first in gpus else gpus[0]
    gpu = named_choice("Model measured on", "model_gpu", gpus, usual, width=230) if len(gpus) > 1 else usual
    return MeasuredModel(subject, gpu, ask(models.calls, subject, gpu))


def nothing_here(question: ModelQuestion) -> None:
    """Say that no run measured the model, and how to measure it."""
    st.subheader("How fast is it?")
    messages.nothing_measured("models", title=text.plain(question.title), subject=question.training.subject)
    with st.container(horizontal=True):
        for name in ask(models.subjects)[:3]:
            label = model(name).title if name in LEVEL.subjects else name
            key, wanted = f"offer_model_{name}", {"model": name}
            st.button(f"Show {text.plain(label)}", key=key, on_click=st.session_state.update, args=(wanted,))


def headline(question: ModelQuestion, found: MeasuredModel | None, gpu: str) -> None:
    """Name the fastest generation and training with the settings of the question, at the nearest measured shape."""
    if found is None:
        st.markdown("No run measured the whole model yet.")
        return
    parts, lacking = [], []
    for mode, case, verb in (("decode", question.serving, "generates"), ("train", question.training, "trains at")):
        best = _nearest(found.timed(case, mode), case.batch, case.seqlen_k)
        if best is not None:
            shape = f"{best['batch']} × {text.size(best['seqlen_k'])}"
            far = (best["batch"], best["seqlen_k"]) != (case.batch, case.seqlen_k)
            rate = f"**{best['tokens_per_s']:,.0f} tokens/s**"
            where = f"{shape}, the nearest measured shape" if far else shape
            parts.append(f"{verb} {rate} with {text.plain(attention_of(best))} ({where})")
        elif not found.of(mode).empty:
            lacking.append(f" No run measured {_settings_words(case, mode)} there.")
    elsewhere = "" if found.gpu == gpu else ", another GPU"
    if parts:
        st.markdown(f"Measured on {text.plain(found.gpu)}{elsewhere}: it {' and '.join(parts)}.{''.join(lacking)}")
    elif lacking:
        st.markdown(f"On {text.plain(found.gpu)}:{''.join(lacking)}")
    elif found.calls["extrapolated"].any():
        st.markdown(f"The whole model was not timed on {text.plain(found.gpu)}; extrapolated times are below.")
    else:
        st.markdown("No call of it ended with a time.")


def generation(found: MeasuredModel) -> None:
    """Draw tokens a second by context, and every step as a table."""
    steps = found.of("decode")
    if steps.empty:
        return
    st.subheader("Generation")
    timed = steps.assign(batch=steps["batch"].map(str))
    timed, batch = rows_of_one(timed, "batch", "latency_ms", "generation_batch", "Sequences at a time")
    names = sorted(timed["implementation"].unique())
    chart = rate_lines(timed, colours.palette(names))
    alt = f"Tokens per second by context at batch {batch}, one line an attention"
    charts.show(chart, found.title("Generated tokens/s by context", timed, f"batch {batch}"), key="generation", alt=alt)
    messages.say("generation", bytes=LEVEL.bytes_source)
    _calls_table(timed.drop(columns="batch"), "Decoding steps: rate, share of the copy bandwidth, memory")
    known = steps[~steps["extrapolated"] & (steps["cache_dtype"].fillna(steps["dtype"]) == steps["dtype"])]
    known = known.assign(seqlen=known["seqlen_k"], seqlen_q=1)
    frontier.section(known, "generation", found.title)


def prefill(found: MeasuredModel) -> None:
    """Draw the speed of prefills."""
    rows = found.of("prefill")
    if rows.empty:
        return
    st.subheader("Prefill")
    _calls_table(rows, "Prefills: rate and memory")
    st.caption("Prompts read in one call; logits of the last token only.")


def rate_lines(rows: pd.DataFrame, palette: dict[str, str]) -> Chart:
    """Return tokens/s by context: lines with filled marks for measured numbers, open marks for extrapolated ones."""
    rows = rows.rename(columns={"seqlen_k": "seqlen"})
    known, guessed = (rows[rows["extrapolated"] == kind].to_dict("records") for kind in (False, True))
    found = charts.lines(known, "tokens_per_s", palette, _hover)
    for line in charts.lines(guessed, "tokens_per_s", palette, _hover, line="dot", width=1.5):
        found.append(replace(line, name=f"{line.name}, extrapolated", symbol=f"{line.symbol}-open"))
    drawn = [value for line in found for value in line.y]
    axis = charts.from_zero(max(drawn, default=1.0)) | charts.titled("tokens/s")
    return charts.by_size(found, "context", rows["seqlen"], axis)


def training(found: MeasuredModel) -> None:
    """Draw every training step with its parts, rates and MFU by the chosen convention."""
    if found.of("train").empty:
        return
    st.subheader("Training")
    convention = named_choice("Operations counted by", "mfu", list(FLOP_CONVENTIONS), "palm", width=260)
    steps = ask(models.training_steps, found.subject, found.gpu, convention)
    shapes = [f"{row.batch} × {text.size(row.seqlen_k)}" for row in steps.itertuples()]
    rows = [row | _in_words(row) for row in steps.assign(shape=shapes).to_dict("records")]
    tables.show_table(rows, _STEP_COLUMNS, "Training steps, their parts, rates and memory")
    messages.say("training", convention=convention, counted=FLOP_CONVENTIONS[convention])
    messages.download("Download training", "training", lambda: steps, "training_csv")


def memory(found: MeasuredModel, question: ModelQuestion) -> None:
    """Draw measured peaks and the formula by context."""
    known = found.of(*found.calls["mode"].unique())
    known = known[known["peak_memory_mb"].notna() & ~known["extrapolated"]]
    if known.empty:
        return
    st.subheader("Memory by context")
    rows = known[known["mode"].isin(("decode", "prefill", "train"))]
    title = found.title("Peak memory by context", rows, f"formula with {question.attention}")
    charts.show(memory_lines(rows, question), title, key="model_memory", alt="Peak memory by context and formula")
    ratios = rows["of_formula"].dropna()
    within = f"{(abs(ratios - 1) <= 0.05).sum()} of {len(ratios)} measured peaks are within 5 % of their formula. "
    st.caption("Marks: measured. Dotted: by formula. Dashed: the card. " + within * bool(len(ratios)))


def memory_lines(rows: pd.DataFrame, question: ModelQuestion) -> Chart:
    """Return measured peaks of each mode and batch as marks, the formula dotted, and the card dashed."""
    capacity, law = model_fit.CARDS[question.card].usable_mb / 1024, law_of(question.attention)
    asked = {"decode": question.serving, "prefill": question.prefill, "train": question.training}
    contexts = sorted({512 << at for at in range(9)} | {int(context) for context in rows["seqlen_k"]})
    found = []
    for place, (mode, case) in enumerate(asked.items()):
        colour = colours.SPARE_COLOURS[place]
        formula = [
            levels.memory_mb(replace(case, seqlen_q=1 if mode == "decode" else n, seqlen_k=n), law, mode) / 1024
            for n in contexts
        ]
        name = f"{mode}, batch {case.batch}, by formula"
        said = [f"{name}: {size:.3g} GiB" for size in formula]
        found.append(Series(name, contexts, formula, colour, said, line="dot", width=1.5))
        for batch, own in rows[rows["mode"] == mode].groupby("batch"):
            own = own.sort_values("seqlen_k")
            said = [f"{row.implementation}: {text.mib(row.peak_memory_mb)}" for row in own.itertuples()]
            name, peaks = f"{mode}, batch {batch}, measured", own["peak_memory_mb"] / 1024
            found.append(Series(name, own["seqlen_k"].tolist(), peaks.tolist(), colour, said, symbol="circle"))
    ends = [contexts[0], contexts[-1]]
    found.append(charts.reference(question.card, ends, [capacity] * 2, f"{question.card}: {capacity:.3g} GiB"))
    axis = charts.log_ticks(charts.TENS, "{:g}".format) | charts.titled("GiB")
    return charts.by_size(found, "context", contexts, axis)


def numbers(found: MeasuredModel) -> None:
    """Draw every call as a table, with the command that measures them."""
    shown = found.calls.dropna(axis="columns", how="all")
    tables.grid(shown, f"Every measured call of {found.subject}", _CALL_WORDS)
    name = found.title("Calls of the model", found.calls).file_name
    messages.download("Download numbers", name, lambda: found.calls, "models_csv")
    st.code(COMMAND.format(subject=found.subject), language=None)


def _calls_table(rows: pd.DataFrame, alt: str) -> None:
    columns = tables.declared("model_rates")
    found = [row | _in_words(row) for row in rows.to_dict("records")]
    tables.show_table(found, {name: column for name, column in columns.items() if name in found[0]}, alt)


def _nearest(rows: pd.DataFrame, batch: int, context: int) -> dict | None:
    """Return the fastest measured row at the nearest batch and context."""
    rows = rows.dropna(subset="tokens_per_s")
    if rows.empty:
        return None
    apart = [abs(row.batch / batch - 1) + abs(row.seqlen_k / context - 1) for row in rows.itertuples()]
    near = rows[[distance == min(apart) for distance in apart]]
    return near.loc[near["tokens_per_s"].idxmax()].to_dict()


def _in_words(row: dict) -> dict[str, str | None]:
    """Return settings and status of a row in words; a status of ok needs none."""
    depth = row["num_layers"]
    whole = model(row["subject"]).layers if row.get("subject") in LEVEL.subjects else None
    error = "" if text.missing(row["method_error"]) else f" (method {row['method_error']:.1f} % off)"
    settings = (
        f"extrapolated{error}" if row["extrapolated"] else None,
        None if text.missing(depth) or depth == whole else f"{int(depth)} layers",
        None if text.missing(row["optimizer"]) or row["optimizer"] == "none" else row["optimizer"],
        "checkpointing" if is_on(row["checkpointing"]) else None,
        "compiled" if is_on(row["compiled"]) else None,
        None if text.missing(row["dtype"]) else row["dtype"],
    )
    status = None if row["status"] == "ok" else text.status(row["status"])
    note = row["note"] if status or row["extrapolated"] else None
    return {"settings": ", ".join(part for part in settings if part), "status": status, "note": note}


def attention_of(row: dict) -> str:
    """Return the attention of a measured row, with what else made it fast, and whether it was uploaded."""
    return ", ".join(
        [row["implementation"], *["compiled"] * is_on(row["compiled"]), *["uploaded"] * (row["source"] == "upload")]
    )


def _settings_words(case: Case, mode: str) -> str:
    """Name the settings of a case that a measurement of its mode must have."""
    if mode != "train":
        return f"decoding in {case.dtype} with a cache in {case.cache_dtype or case.dtype}"
    activations = "recomputed" if case.checkpointing else "kept"
    return f"training in {case.dtype} with {case.optimizer} and activations {activations}"


def is_on(value: object) -> bool:
    """Return whether a row has a setting; an absent value means off."""
    return not text.missing(value) and bool(value)


def _hover(row: dict) -> str:
    share = "" if text.missing(row["percent_of_copy"]) else f", {row['percent_of_copy']:.0f} % of copy"
    return f"{row['tokens_per_s']:,.3g} tokens/s{share}"
