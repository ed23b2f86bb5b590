"""Which run counts for a case: all numbers of the case come from that run, as two runs differ by more than their code.

    1. a preferred condition, such as the baseline next to another implementation (COMPARES)
    2. code_age   runs other than uploads, then the code that was measured last on the GPU: older never replaces newer
    3. measured   most implementations with a number, so that a partial run hides no complete run of the same code
    4. age        the newest run

The view `run_ages` (store/schema.sql) holds both ages; runs have the same code if GPU, kernels, PyTorch, Triton and
protocol are the same. The order is declared once, in `_ORDER`. `counting_run` gives it as SQL, `standing` as a sort
key, and `surpasses` as the condition by which the store leaves out runs that can never count.
"""

from collections.abc import Collection, Mapping

_ORDER = {"code_age": 1, "measured": -1, "age": 1}  # column -> 1 if the least counts, -1 if the most counts
_AGES = tuple(column for column in _ORDER if column != "measured")
# The number of implementations for which a run has a number in a case or cell.
MEASURED = "count(DISTINCT implementation) FILTER (status = 'ok') OVER (PARTITION BY run_id, {of}) AS measured"


# Conditions on a run's numbers of a case: two implementations, one of them the baseline; and any two.
COMPARES = ("has_baseline AND measured > 1", "measured > 1")


def counting_run(of: str, *preferred: str) -> str:
    """Return the SQL condition that keeps the rows of the run that counts for each case or cell `of`.

    Runs that meet the `preferred` conditions come first, in the order of the conditions. The rows need the columns
    `run_id`, `code_age`, `measured` and `age`.
    """
    order = [f"{condition} DESC" for condition in preferred]
    order += [column if sign > 0 else f"{column} DESC" for column, sign in _ORDER.items()]
    return f"run_id = first_value(run_id) OVER (PARTITION BY {of} ORDER BY {', '.join(order)})"


def compared_run(of: str) -> str:
    """Return `counting_run` for a comparison; the rows also need the column `has_baseline`."""
    return counting_run(of, *COMPARES)


def standing(measured: Collection[str], baseline: str | None, ages: Mapping[str, int]) -> tuple[int, ...]:
    """Return the sort key of a run in a comparison of one case; the run with the least key counts.

    `measured` names the implementations with a number; `ages` holds the run's `code_age` and `age`.
    """
    facts = {**ages, "measured": len(measured)}
    two = len(measured) > 1
    lacks = (not (two and baseline in measured), not two)  # the conditions of COMPARES
    return (*lacks, *(sign * facts[column] for column, sign in _ORDER.items()))


def surpasses(one: str, other: str) -> str:
    """Return the SQL condition that a run precedes another if it has measured at least what the other has."""
    first, second = (", ".join(f"{table}.{column}" for column in _AGES) for table in (one, other))
    return f"({first}) < ({second})"
