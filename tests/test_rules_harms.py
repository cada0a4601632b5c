"""Every harm is caught by its rule, its base is not, and what mends it makes the rule silent."""

import copy

import pytest

from illegal_configs import HARMS, changed
from scantling.rules import fix, lint, load_rules, mend, setting, subject

NAMES = [f"{h.code}-{i}" for i, h in enumerate(HARMS)]
OWN_FIX = [h for h in HARMS if h.mend is None and h.mend_setting is None]


def found(code, config, options, name):
    report = lint(config, setting(**options), name=name)
    return [f for f in report.findings if f.code == code]


@pytest.mark.parametrize("harm", HARMS, ids=NAMES)
def test_a_harm_is_caught_with_its_code(harm):
    config = changed(harm.base, harm.change)
    assert found(harm.code, config, harm.setting, harm.name)


@pytest.mark.parametrize("harm", HARMS, ids=NAMES)
def test_the_base_without_the_harm_is_silent(harm):
    if not harm.change and harm.base_setting is None:
        pytest.skip("the harm is the name")
    options = harm.setting if harm.base_setting is None else harm.base_setting
    assert not found(harm.code, harm.base, options, harm.name)


@pytest.mark.parametrize("harm", HARMS, ids=NAMES)
def test_what_mends_it_makes_the_rule_silent(harm):
    config = changed(harm.base, harm.change)
    options = harm.setting if harm.mend_setting is None else harm.mend_setting
    if harm in OWN_FIX:
        mended = fix(subject(config, setting(**options), name=harm.name))
        one = next(f for f in mended.before.findings if f.code == harm.code)
        if one.level == "info":
            config = mend(mended.before.subject, one).config
        else:
            assert harm.code in {f.code for f in mended.applied}
            config = mended.config
    else:
        config = changed(config, harm.mend or {})
    assert not found(harm.code, config, options, harm.name)


@pytest.mark.parametrize("harm", OWN_FIX, ids=[h.code for h in OWN_FIX])
def test_a_fix_keeps_what_it_promised(harm):
    """Parameters within 1 %, or the dimensions it names; and the input is not written to."""
    config = changed(harm.base, harm.change)
    before = copy.deepcopy(config)
    mended = fix(subject(config, setting(**harm.setting), name=harm.name))

    assert config == before
    for one in mended.applied:
        if "params" in one.fix.keeps and mended.price:
            was, now = mended.price["params"]
            assert abs(now / was - 1) <= 0.01
        part = mended.after.subject.part
        for field in set(one.fix.keeps) - {"params"}:
            assert part.whole(field) == mended.before.subject.part.whole(field)


def test_there_is_a_harm_for_every_rule_but_those_that_need_more_than_a_config():
    """SC012 needs a checkpoint, SC952 a spec; the rest are notes of fact."""
    elsewhere = {"SC012", "SC123", "SC407", "SC952"}
    assert set(load_rules()) - {h.code for h in HARMS} == elsewhere
