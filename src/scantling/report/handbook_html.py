"""The handbook as a folder of pages that need nothing beside them: no network, one small script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from scantling import __version__
from scantling.claims import claims
from scantling.errors import FieldError
from scantling.laws import LAWS, bounds, priors
from scantling.report.claims import MEANING
from scantling.report.handbook import Page, Shown, Told, option_words, pages, parts, runtime_rows
from scantling.report.handbook_figures import figure, kernels
from scantling.report.lint_text import WORD, quantity_text
from scantling.report.svg import bars
from scantling.report.validate_html import STYLE
from scantling.rules import Finding
from scantling.search.space import limits
from scantling.sources import source, sources
from scantling.units import count_text

MORE_STYLE = """
body { max-width: 900px; } h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; border-bottom: 1px solid var(--line);
  padding-bottom: .6rem; margin-bottom: 1.2rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } pre { overflow-x: auto; padding: .6rem;
  border: 1px solid var(--line); border-radius: 4px; white-space: pre-wrap; }
table.words { width: 100%; } table.words td, table.words th { white-space: normal;
  text-align: left; vertical-align: top; overflow-wrap: anywhere; }
table.words td:first-child, td.key { white-space: nowrap; overflow-wrap: normal; }
.level { font-size: 12px; font-weight: 600; padding: .05rem .4rem; border-radius: 3px;
  border: 1px solid currentColor; white-space: nowrap; }
.level.error { color: var(--out); } .level.warning { color: #a86a00; }
.level.info { color: var(--in); }
.finding { border-left: 4px solid var(--line); padding: .1rem .8rem; margin: .7rem 0; }
.finding.error { border-color: var(--out); } .finding.warning { border-color: #d99a2b; }
.finding.info { border-color: var(--in); } .finding p { margin: .15rem 0; }
.limit { stroke: var(--out); stroke-dasharray: 5 4; stroke-width: 1.4; fill: none; }
svg .told { fill: var(--out); } figure { margin: .75rem 0; } .hit { fill-opacity: .6; }
figcaption { color: var(--soft); font-size: 13px; }
.ask { display: flex; flex-wrap: wrap; gap: .5rem; margin: 1rem 0; }
.ask input, .ask select { font: inherit; padding: .35rem .5rem; color: inherit;
  background: var(--paper); border: 1px solid var(--line); border-radius: 4px; }
.ask input { flex: 1 1 14rem; } [hidden] { display: none; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem .9rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 600px) { td.wide-only, th.wide-only { display: none; }
  dl { display: block; } dt { margin-top: .4rem; } }
@media (prefers-color-scheme: dark) { .level.warning { color: #e0a848; } }
"""

SCRIPT = """
const rows = [...document.querySelectorAll('tr[data-text]')];
const ask = document.getElementById('words'), theme = document.getElementById('theme');
const level = document.getElementById('level'), left = document.getElementById('left');
function show() {
  const words = ask.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let n = 0;
  for (const row of rows) {
    const fits = words.every(w => row.dataset.text.includes(w))
      && (!theme.value || row.dataset.theme === theme.value)
      && (!level.value || row.dataset.levels.split(' ').includes(level.value));
    row.hidden = !fits; n += fits;
  }
  left.textContent = n + ' of ' + rows.length;
}
for (const one of [ask, theme, level]) one.addEventListener('input', show);
show();
"""

NO_EXAMPLE = "<h2>Example</h2><p>None: a config alone does not show it.</p>"
MOST_MODELS = 12
"""Models listed of those that a rule speaks of; the rest are counted."""


def write(folder: Path, progress: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Write the handbook of all rules into a folder, which is made where it is missing.

    Args:
        folder: Where to; files of the same names are written over.
        progress: Told what is being worked out.

    Returns:
        The files, the index first.

    Raises:
        FieldError: If the folder cannot be written.
    """
    every = pages(progress=progress)
    texts = {
        "index.html": _index(every), "claims.html": _claims(), "priors.html": _priors(),
        "laws.html": _laws(), "kernels.html": _kernels(), "sources.html": _sources(),
    }  # fmt: skip
    for before, page, after in zip([None, *every[:-1]], every, [*every[1:], None], strict=True):
        texts[f"{page.rule.code}.html"] = rule_page(page, before, after)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        why = f"cannot be written: {error.strerror}"
        raise FieldError("--handbook", str(folder), why) from None
    return [folder / name for name in texts]


# ---------------------------------------------------------------- the frame


def _document(title: str, body: str, script: str = "") -> str:
    links = (("index", "Rules"), ("claims", "Claims"), ("priors", "Priors"), ("laws", "Laws"),
             ("kernels", "Kernels"), ("sources", "Sources"))  # fmt: skip
    nav = "".join(f'<a href="{name}.html">{text}</a>' for name, text in links)
    script = f"<script>{script}</script>" if script else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · scantling handbook</title>
<style>{STYLE}{MORE_STYLE}</style>
</head>
<body>
<nav>{nav}</nav>
<main>
{body}
</main>
<p class="note">scantling {__version__}; what is computed was computed when this was built.</p>
{script}
</body>
</html>
"""


def marked(text: str) -> str:
    """A paragraph of a docstring: code between double backquotes, rules by code as links.

    Example:
        >>> marked("``tp`` as in SC201, x < 2")
        '<code>tp</code> as in <a href="SC201.html">SC201</a>, x &lt; 2'
    """
    plain = escape(" ".join(text.split()), quote=False)
    plain = re.sub(r"``(.+?)``", r"<code>\1</code>", plain)
    return re.sub(r"\b(SC\d{3})\b", r'<a href="\1.html">\1</a>', plain)


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return f"<pre>{escape(text)}</pre>"
    return f"<p>{marked(text)}</p>"


def _level(level: str) -> str:
    return f'<span class="level {level}">{WORD[level]}</span>'


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "words") -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>")  # fmt: skip


# ---------------------------------------------------------------- the index


def _index(every: Sequence[Page]) -> str:
    themes = list(dict.fromkeys(p.rule.theme for p in every))
    options = "".join(f'<option value="{t}">{t.replace("_", " ")}</option>' for t in themes)
    levels = "".join(f'<option value="{level}">{word}</option>' for level, word in WORD.items())
    rows = "".join(_index_row(p) for p in every)
    spoken = sum(any(one.findings for one in p.told) for p in every)
    body = f"""<h1>Rules for the shapes of language models</h1>
<p>{len(every)} rules of <code>scantling lint</code>: what each says, why, what it is worth, who
breaks it on purpose, and where it comes from. {spoken} of them speak of some released model.
An <em>error</em> cannot run or is illegal on the chip and runtime named; a <em>warning</em> costs
time, memory or quality; a <em>note</em> is worth knowing and never to be obeyed.</p>
<div class="ask"><input id="words" type="search" placeholder="search: kv heads, vocabulary, SC3 …"
aria-label="search"><select id="theme" aria-label="theme"><option value="">every theme</option>
{options}</select><select id="level" aria-label="level"><option value="">every level</option>
{levels}</select><span id="left" class="note"></span></div>
<div class="wide"><table class="words"><thead><tr><th>code</th><th>rule</th>
<th class="wide-only">asks for</th><th class="wide-only">models that follow</th></tr></thead>
<tbody>{rows}</tbody></table></div>
<h2>Runtimes that rules know</h2>
{_table(("name", "version", "pads the vocabulary to", "stages", "page", "kernels"),
        [tuple(map(escape, row)) for row in runtime_rows()])}"""  # fmt: skip
    return _document("Rules", body, SCRIPT)


def _index_row(page: Page) -> str:
    rule = page.rule
    text = escape(f"{rule.code} {rule.slug} {rule.theme} {rule.page}".lower())
    needs = ", ".join(f"--{n}" for n in page.needs)
    share = min(one.followed.share for one in page.told)
    return (f'<tr data-text="{text}" data-theme="{rule.theme}" data-levels="'
            f'{" ".join(page.levels)}"><td><a href="{rule.code}.html">{rule.code}</a></td>'
            f"<td>{marked(rule.title)} {' '.join(map(_level, page.levels))}<br>"
            f'<span class="note">{rule.slug}</span></td><td class="wide-only">{needs}</td>'
            f'<td class="wide-only">{share:.0%}</td></tr>')  # fmt: skip


# ---------------------------------------------------------------- one rule


def rule_page(page: Page, before: Page | None = None, after: Page | None = None) -> str:
    """The page of a rule, with links to its neighbours."""
    rule = page.rule
    statement, _, _ = parts(rule.page)
    needs = ", ".join(f"<code>--{n}</code>" for n in page.needs)
    reads = "a config, legal or not" if rule.reads == "config" else "a legal model"
    sections = [
        f"<p class='note'>{rule.code} · {rule.slug} · {rule.theme.replace('_', ' ')}</p>",
        f"<h1>{marked(statement)}</h1>",
        f"<p>{' '.join(map(_level, page.levels))}</p>" if page.levels else "",
        *(_paragraph(text) for text in page.body),
        figure(rule.code),
        "<h2>When it speaks</h2>",
        f"<dl><dt>reads</dt><dd>{reads}</dd><dt>asks for</dt><dd>{needs or 'no option'}</dd></dl>",
        NO_EXAMPLE if page.shown is None else _example(page.shown),
        f"<h2>Exceptions</h2><p>{marked(page.exceptions)}</p>" if page.exceptions else "",
        _released(page.told),
        _cited("Sources", rule.sources),
        _neighbours(before, after),
    ]  # fmt: skip
    return _document(f"{rule.code} {rule.slug}", "\n".join(filter(None, sections)))


def _finding(f: Finding) -> str:
    lines = [f"<p>{_level(f.level)} <code>{escape(f.field)}</code>: {escape(f.message)}</p>"]
    if f.fix is not None:
        own = " <span class='note'>(--fix does it)</span>" if f.fix.automatic else ""
        lines.append(f"<p>fix: {escape(f.fix.text)}{own}</p>")
    if f.gain is not None:
        why = f"<span class='note'>{escape('; '.join(f.gain.why))}</span>" if f.gain.why else ""
        lines.append(f"<p>gain: <strong>{escape(quantity_text(f.gain))}</strong> {why}</p>")
    return f'<div class="finding {f.level}">{"".join(lines)}</div>'


def _example(one: Shown) -> str:
    e = one.example
    typed = escape(f"scantling lint config.json {option_words(e.setting)}".rstrip())
    inside = escape(_json_lines(e.config))
    changes = ", ".join(f"<code>{escape(k)}</code> {_value(v)}" for k, v in e.change.items())
    told = f"A sound <code>{escape(str(e.base['model_type']))}</code> config"
    told += f" with {changes}:" if changes else ", as it stands:"
    if e.name != "config":
        told = told[:-1] + f", called {escape(e.name)}:"
    silent = f"<p>Silent with {escape(one.mended)}.</p>" if one.mended else ""
    findings = "".join(map(_finding, one.findings))
    whole = f"<details><summary>The whole config</summary><pre>{inside}</pre></details>"
    return f"<h2>Example</h2><p>{told}</p><pre>$ {typed}</pre>{findings}{silent}{whole}"


def _value(value: Any) -> str:
    text = "left out" if value is None else str(value)
    return escape(text if len(text) <= 60 else text[:57] + "…")


def _json_lines(config: dict[str, Any]) -> str:
    import json

    lines = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in config.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _released(told: Sequence[Told]) -> str:
    return "<h2>What released models do</h2>" + "".join(map(_case, told))


def _case(one: Told) -> str:
    row, n = one.followed, len(one.findings)
    title = one.case.title
    command = option_words(one.case.options)
    typed = f" (<code>{escape(command)}</code>)" if command else ""
    if not n:
        return f"<p>Followed by every one, {title}, or not asked.</p>"
    years = [(f"{year}: {one.counts[year]}", share) for year, share in row.by_year.items()]
    latest = list(one.findings.items())[::-1][:MOST_MODELS]
    cells = [(escape(name), f"{_level(f.level)} {escape(f.message)}") for name, f in latest]
    more = f"<p class='note'>and {n - len(latest)} more</p>" if n > len(latest) else ""
    picture = bars(f"year: models; share that follows, {title}", years, percent=True)
    return (f"<p>{row.share:.1%} follow it {title}{typed}; it speaks of {n}, the latest first.</p>"
            f"<figure>{picture}</figure>{_table(('model', 'finding'), cells)}{more}")  # fmt: skip


def _cited(title: str, keys: Sequence[str]) -> str:
    rows = []
    for key in keys:
        one = source(key)
        link = f'<a href="sources.html#{key}">{escape(key)}</a>'
        note = f"<br><span class='note'>{escape(one.note)}</span>" if one.note else ""
        rows.append((link, f"{escape(one.title)}<br>{_where(one.where)}{note}"))
    return f"<h2>{title}</h2>{_table(('key', 'what and where'), rows)}"


def _where(text: str) -> str:
    """Where a source lies, linked where that is an address."""
    plain = escape(text)
    plain = re.sub(r"https?://[^\s,;)]+", lambda m: f'<a href="{m[0]}">{m[0]}</a>', plain)
    arxiv = r"(?<![/\w])arXiv[: ](\d{4}\.\d{4,5})"
    return re.sub(arxiv, r'<a href="https://arxiv.org/abs/\1">arXiv \1</a>', plain)


def _neighbours(before: Page | None, after: Page | None) -> str:
    links = [f'<a href="{p.rule.code}.html">{mark} {p.rule.code} {p.rule.slug}</a>'
             for p, mark in ((before, "←"), (after, "→")) if p is not None]  # fmt: skip
    return f'<p class="ask">{"".join(links)}</p>'


# ---------------------------------------------------------------- the other pages


def _claims() -> str:
    options = "".join(f'<option value="{v}">{v}</option>' for v in MEANING)
    every = list(claims().values())
    areas = "".join(f'<option value="{a}">{a}</option>' for a in dict.fromkeys(
        c.area for c in every))  # fmt: skip
    rows = []
    for one in every:
        text = escape(f"{one.id} {one.statement} {one.right} {one.found}".lower())
        mark = " †" if one.to_be_confirmed else ""
        right = f"{marked(one.right)}" + (f"<br><span class='note'>{marked(one.found)}</span>"
                                          if one.found else "")  # fmt: skip
        rows.append(f'<tr id="{one.id}" data-text="{text}" data-theme="{one.area}" '
                    f'data-levels="{one.verdict}"><td>{one.id}</td><td>{marked(one.statement)}</td>'
                    f'<td class="key">{one.verdict}{mark}</td><td>{right}</td></tr>')  # fmt: skip
    body = f"""<h1>Claims</h1>
<p>What is said of the dimensions of language models, and what is right.
For those marked † no source was read again: no rule rests on them.</p>
<div class="ask"><input id="words" type="search" placeholder="search" aria-label="search">
<select id="theme" aria-label="area"><option value="">every area</option>{areas}</select>
<select id="level" aria-label="verdict"><option value="">every verdict</option>{options}</select>
<span id="left" class="note"></span></div>
<div class="wide"><table class="words"><thead><tr><th>id</th><th>said</th><th>verdict</th>
<th>right, and the evidence</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>"""
    return _document("Claims", body, SCRIPT)


def _priors() -> str:
    rows = [
        (escape(axis), f"{escape(p.title)}<br><code>{escape(p.form)}</code>",
         f"{p.centre:+.3f}<br>{p.low:+.3f} to {p.high:+.3f}", p.grade,
         "<br>".join(f"{escape(k)} {escape(limits(bounds()[k].low, bounds()[k].high))}"
                     for k in p.bounds), ", ".join(map(_key, p.sources)))
        for axis, p in priors().items()
    ]  # fmt: skip
    preface = ("<h1>Priors</h1><p>What published ablations say of an axis that the laws do not "
               "price: nats a token at about 1 B, equal body and tokens; positive is worse. "
               "Interval: 5 to 95 %.</p>")  # fmt: skip
    headings = ("axis", "term", "nats", "grade", "hard bounds", "sources")
    return _document("Priors", preface + _table(headings, rows))


def _key(key: str) -> str:
    return f'<a href="sources.html#{key}">{escape(key)}</a>'


def _laws() -> str:
    parts_ = ["<h1>Laws</h1><p>Loss from plain features, each valid for one recipe.</p>"]
    for one in LAWS.values():
        domain = "; ".join(f"{axis} {count_text(low)} to {count_text(high)}"
                           for axis, (low, high) in one.domain.items())  # fmt: skip
        parts_.append(
            f"<h2>{escape(one.name)}</h2><p>{escape(one.title)}</p><pre>{escape(one.form)}</pre>"
            f"<dl><dt>N counts</dt><dd>the {one.counts}</dd><dt>recipe</dt>"
            f"<dd>{escape(one.recipe)}</dd><dt>domain</dt><dd>{escape(domain)}</dd>"
            f"<dt>errors</dt><dd>{escape(one.errors.text)}</dd><dt>source</dt>"
            f"<dd>{_key(one.source)}</dd></dl>"
        )
    return _document("Laws", "".join(parts_))


def _kernels() -> str:
    headings, rows = kernels()
    body = ("<h1>Kernels of attention and head widths</h1><p>What each takes of equal widths of "
            "keys and values; <em>padded</em> runs at the next width it has. "
            'Rules: <a href="SC331.html">SC331</a> to <a href="SC336.html">SC336</a>.</p>'
            + _table(headings, [tuple(map(escape, row)) for row in rows], "parts"))  # fmt: skip
    return _document("Kernels", body)


def _sources() -> str:
    rows = "".join(
        f'<tr id="{key}"><td>{escape(key)}</td><td>{escape(one.title)}'
        f"{f' ({one.year})' if one.year else ''}<br>{_where(one.where)}"
        f"<br><span class='note'>{escape(one.note)}</span></td></tr>"
        for key, one in sorted(sources().items())
    )
    body = (f"<h1>Sources</h1><p>{len(sources())} sources, by the keys that rules, laws and "
            f'claims name.</p><div class="wide"><table class="words"><tbody>{rows}</tbody></table>'
            "</div>")  # fmt: skip
    return _document("Sources", body)
