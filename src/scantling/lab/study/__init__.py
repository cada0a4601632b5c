"""Studies: shapes made equal, swept over rates, compared over seeds, judged."""

from scantling.lab.study.answer import Answer, answer, result_json
from scantling.lab.study.design import Measure, Probed, Rates, Shape, Study
from scantling.lab.study.trial import Data, GroupRunner, Outcome, Pace, Runner, Trial

__all__ = [
    "Answer",
    "Data",
    "GroupRunner",
    "Measure",
    "Outcome",
    "Pace",
    "Probed",
    "Rates",
    "Runner",
    "Shape",
    "Study",
    "Trial",
    "answer",
    "result_json",
]
