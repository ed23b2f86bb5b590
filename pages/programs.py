"""Which attention should each call of my program use on my card, and how do I use it?"""

from pages.ui import programs
from pages.ui.shell import layout, page_body


def show() -> None:
    """Draw the answer for one recording on one card, its calls, its fallbacks and the commands."""
    program, card = programs.choose()
    times = programs.times_of(program, card)
    programs.use_it(card, times)
    programs.answer(program, card, times)
    programs.table(program, times)
    programs.fallbacks(program, times)
    programs.landscape(program, card, f"{programs.command_of('tune', program)} --tiles")
    if not any(found and found.relative for found in times):
        programs.commands(program)
    programs.new_lengths()


layout.header("programs")
page_body.show(show)
