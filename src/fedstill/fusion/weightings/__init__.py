"""How much each teacher counts for each sample: the contract, and the common set, a family a file."""

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
