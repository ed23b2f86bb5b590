from pages.ui.draw import html
from pages.ui.draw.html import Fact


def test_what_a_number_means_is_there_for_the_keyboard_and_for_screen_readers(drawn):
    html.show_facts([Fact("Failures", "2", "OOM 2", "Planned cases without a number.")])
    assert '<button type="button" aria-label="Planned cases without a number.">' in drawn[0]
    assert '<dd>2</dd><dd class="below">OOM 2</dd>' in drawn[0]


def test_a_number_without_a_word_on_it_has_no_empty_mark(drawn):
    html.show_facts([Fact("Best speedup", "none", "", "Highest mean.")])
    assert "<dd>none</dd></div>" in drawn[0]


def test_a_name_from_a_file_never_becomes_markup(drawn):
    html.show_facts([Fact("a", "1", "b", 'over <b>"mine"</b>')])
    assert "<b>" not in drawn[0]
    assert 'aria-label="over &lt;b&gt;&quot;mine&quot;&lt;/b&gt;"' in drawn[0]
