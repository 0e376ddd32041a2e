"""How much each teacher counts for each sample: the contract, and the built-in weightings, one family per file."""

from fedstill.fusion.weightings.contract import (
    WEIGHTINGS,
    Ballot,
    Ready,
    Scored,
    Voting,
    Weighting,
    WeightingContext,
    WeightingKind,
    fault_of,
    make_weighting,
    options_kind,
    report_of,
    weighting,
    weightings,
)

__all__ = [
    "WEIGHTINGS",
    "Ballot",
    "Ready",
    "Scored",
    "Voting",
    "Weighting",
    "WeightingContext",
    "WeightingKind",
    "fault_of",
    "make_weighting",
    "options_kind",
    "report_of",
    "weighting",
    "weightings",
]
