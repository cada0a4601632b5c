"""The handbook: a page a rule, with live numbers, that needs nothing beside it."""

import re

import pytest
from click.testing import CliRunner

from scantling import cli
from scantling.report.handbook import pages
from scantling.report.handbook_figures import released_models
from scantling.report.handbook_html import write
from scantling.report.trends import released_traits
from scantling.rules import load_rules, select
from scantling.rules.setting import facts
from scantling.sources import sources

WITHOUT_EXAMPLE = {"SC012", "SC123", "SC407", "SC952"}
"""A checkpoint, a spec, or the weights of a config say it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("book")
    write(where)
    return where


def test_every_rule_has_a_page_with_statement_exceptions_and_sources(folder):
    for code, rule in load_rules().items():
        text = (folder / f"{code}.html").read_text("utf-8")
        assert rule.slug in text
        assert "<h2>Exceptions</h2>" in text
        assert rule.sources
        for key in rule.sources:
            assert f'href="sources.html#{key}"' in text
        assert ("$ scantling lint" in text) == (code not in WITHOUT_EXAMPLE)


def test_every_link_inside_leads_somewhere(folder):
    texts = {p.name: p.read_text("utf-8") for p in folder.glob("*.html")}
    anchors = {name: set(re.findall(r' id="([^"]+)"', text)) for name, text in texts.items()}
    links = {link for text in texts.values() for link in re.findall(r'href="([^"]+)"', text)}
    for link in links:
        if not link.startswith("http"):
            name, _, anchor = link.partition("#")
            assert name in texts, link
            assert not anchor or anchor in anchors[name], link
    assert set(sources()) <= anchors["sources.html"]


def test_pages_load_nothing_from_elsewhere(folder):
    for path in folder.glob("*.html"):
        text = path.read_text("utf-8")
        assert not re.search(r"<(link|img|iframe|script)[^>]+(src|href)=", text)
        assert "@import" not in text
        assert "url(" not in text


def test_the_share_of_models_is_what_counting_their_dimensions_gives():
    """SC603 by hand: width over depth outside the prior, encoder-decoders left out."""
    low, high = facts()["prior"]["aspect"]["inner"]
    broken = {
        m.traits.name for m in released_models()
        if m.spec.encoder is None
        and not low <= int(m.spec.d_model) / int(m.spec.n_layer) <= high
    }  # fmt: skip
    (page,) = pages(select(["SC603"]))
    told = page.told[0]

    assert set(told.findings) == broken
    assert told.followed.share == 1 - len(broken) / len(released_traits())
    assert sum(told.counts.values()) == len(released_traits())


def test_a_page_says_which_options_its_rule_asks_for():
    found = {p.rule.code: p.needs for p in pages(select(["SC201", "SC306", "SC603"]), ())}

    assert found == {"SC201": ("tp",), "SC306": ("gpu", "dtype"), "SC603": ()}


def test_the_command_writes_the_handbook_and_says_what_is_wrong(tmp_path):
    run, place = CliRunner(), str(tmp_path / "book")
    done = run.invoke(cli.group, ["rules", "--handbook", place], standalone_mode=False)
    assert done.return_value == 0, done.output
    assert (tmp_path / "book" / "index.html").is_file()
    some = run.invoke(cli.group, ["rules", "SC101", "--handbook", place], standalone_mode=False)
    assert "is of all rules" in str(some.exception)
