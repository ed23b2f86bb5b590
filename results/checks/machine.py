"""Power, clocks and launches that no such card has."""

from operator import attrgetter

from results.checks.finding import Found, Numbers, flops_range, ms, printed_range, said
from results.gpus import bounds_of

# An empty kernel takes 1.5 to 2.5 us of device time on every GPU since Volta; a call from the host more.
LAUNCH_MS = {"kernel": 1e-3, "eager": 2e-3, None: 1e-3}
OVER_POWER = 1.15  # relative to the limit: millisecond excursions and the idle power of the board
OVER_ENERGY = 2.5  # energy is measured on a hot, throttled card, which is slower than the latency
# Every cell of the shipped energy run takes at least 0.78 of the limit; 0.3 leaves room for cards with a high limit.
LOADED, IDLE = 0.3, 0.3
OVER_CLOCK = 1.25  # relative to the boost clock: factory-overclocked cards
_cell = attrgetter("run_id", "case", "implementation", "mode")


def below_launch(numbers: Numbers) -> Found:
    """Less time than a GPU needs to start a kernel that does nothing."""
    for m in numbers.of("latency_ms"):
        least = LAUNCH_MS[m.timing]
        if numbers.run(m).device_type != "cpu" and printed_range(m)[1] < least:
            yield said("below_launch", m, us=1e3 * least)


def power(numbers: Numbers, rule: str) -> Found:
    """More power than the card may draw, or less than a card that works takes, printed or by energy over time."""
    times = {_cell(m): m for m in numbers.of("latency_ms") if m.timing != "eager"}
    for m in numbers.of("sustained_power_w", "energy_j"):
        time, run = (times.get(_cell(m)) if m.metric == "energy_j" else None), numbers.run(m)
        chip, flops = bounds_of(run.gpu_name), flops_range(m.case, m.mode)
        limit = run.power_limit_w or chip.power_w
        watts = 1e3 * m.value / time.value if time else m.value if m.metric != "energy_j" else 0.0
        share = flops[0] / time.value / 1e9 / chip.tflops(m.case.dtype) if time and flops and chip.known else 0.0
        above = watts > (OVER_ENERGY if time else OVER_POWER) * limit
        idle = share > LOADED and watts < IDLE * limit
        told = above if rule == "above_power" else idle
        if told:
            arithmetic = f"{m.value:.4g} J in {ms(time)} is " if time else ""
            facts = {
                "arithmetic": arithmetic,
                "watts": watts,
                "limit": limit,
                "of_limit": watts / limit,
                "share": share,
            }
            whose = "the limit of its run" if run.power_limit_w else chip.source
            yield said(rule, *((m, time) if time else (m,)), whose=whose, **facts)


def above_clock(numbers: Numbers) -> Found:
    """A higher SM clock than the card has."""
    for m in numbers.rows:
        clock = m.value if m.metric == "sustained_clock_mhz" else m.sm_clock_mhz
        chip = bounds_of(numbers.run(m).gpu_name)
        if m.value and clock and clock > OVER_CLOCK * chip.clock_mhz:
            yield said("above_clock", m, clock=clock, chip=chip)
