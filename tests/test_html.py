"""The page: self-contained, with what the text says."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from jitwatch.render.html import LATE, render_html
from jitwatch.render.terminal import first_line
from tests.samples import report
from tests.test_terminal import failing, inconclusive


class Parsed(HTMLParser):
    """Text by tag, and every tag closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def test_the_page_says_what_the_text_says():
    made = failing()
    page = render_html([made])
    parsed = Parsed(page)
    assert parsed.open == []
    assert parsed.text["h1"] == [first_line(made)]
    assert any(text.startswith("JW103 new constexpr value") for text in parsed.text["pre"])
    assert parsed.text["li"] == list(made.verdict.reasons)
    assert page.count(f'fill="{LATE}"') == sum(bool(r.in_repo_loads) for r in made.requests) > 0


def test_nothing_is_fetched():
    page = render_html([failing(), inconclusive()])
    assert not re.search(r"<script|<link|<img|src=|https?:|url\(", page)


def test_text_from_a_run_is_escaped():
    made = report([], facts={"environment": {"gpu": "<b>&"}}, device="sim:h200")
    assert "<b>" not in render_html([made])
    assert "&lt;b&gt;&amp;" in render_html([made])


def test_a_run_without_requests_has_a_page():
    assert "No request was served." in render_html([report([], requests=[], steps=[])])
