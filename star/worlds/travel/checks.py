"""The judge: eight commonsense and five hard constraints on a travel plan, in three modes.

A check takes a plan as it was read and returns why it fails, or an empty text. There is one set of checks; where the
modes differ, a check reads a switch of `Rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from star.types import Mode, Score
from star.worlds.travel import commonsense, hard, route, whereabouts
from star.worlds.travel.database import Database
from star.worlds.travel.reading import Reading, read
from star.worlds.travel.request import Request, Unreadable
from star.worlds.travel.rules import RULES, Rules
from star.worlds.travel.sandbox import sandbox

Check = Callable[[Reading], str]
WishCheck = Callable[[Reading, object], str]
"""Also takes what the traveller wishes."""

COMMONSENSE: dict[str, Check] = {
    "is_reasonable_visiting_city": route.is_reasonable_visiting_city,
    "is_valid_restaurants": commonsense.is_valid_restaurants,
    "is_valid_attractions": commonsense.is_valid_attractions,
    "is_valid_accommodation": commonsense.is_valid_accommodation,
    "is_valid_transportation": commonsense.is_valid_transportation,
    "is_valid_information_in_current_city": whereabouts.is_valid_information_in_current_city,
    "is_valid_information_in_sandbox": whereabouts.is_valid_information_in_sandbox,
    "is_not_absent": commonsense.is_not_absent,
}
WISHES: dict[str, WishCheck] = {
    "valid_room_rule": hard.valid_room_rule,
    "valid_cuisine": hard.valid_cuisine,
    "valid_room_type": hard.valid_room_type,
    "valid_transportation": hard.valid_transportation,
}
HARD = ("valid_cost", *WISHES)
GATES = ("is_not_absent", "is_valid_information_in_sandbox")
"""Commonsense constraints without which the hard ones earn nothing."""


def judge(facts: Mapping[str, object], plan: object, database: Database, mode: Mode = "strict", query_id: str = "") -> Score:
    """Score a plan: text that holds JSON, a list of days, or anything else. Nothing in a plan makes this raise.

    Hard verdicts are raw; `Score.hard_counts` says whether they count. `Score.total_cost` is in US dollars for the
    whole party, None if it cannot be computed.
    """
    request = Request.of(facts)
    found, reason = read(request, plan, sandbox(database, mode))
    if found is None:
        return _undelivered(request, RULES[mode], reason, query_id)
    reasons: dict[str, str] = {}
    common: dict[str, bool | None] = {name: _holds(name, check, found, reasons) for name, check in COMMONSENSE.items()}
    cost, within = _cost(found, reasons)
    wishes: dict[str, bool | None] = {"valid_cost": within}
    for name, wanted in WISHES.items():
        wishes[name] = _granted(name, wanted, found, reasons)
    return Score(query_id, mode, common, wishes, all(common[name] for name in GATES), cost, reasons)


def _cost(plan: Reading, reasons: dict[str, str]) -> tuple[float | None, bool]:
    """Cost of the plan, None if unknown, and whether the budget holds; note the reason if it does not."""
    cost: float | None = None
    try:
        cost = hard.total_cost(plan)
        reason = hard.valid_cost(plan, cost)
    except Unreadable as error:
        reason = str(error)
    if reason:
        reasons["valid_cost"] = reason
    return cost, not reason


def _undelivered(request: Request, rules: Rules, reason: str, query_id: str) -> Score:
    """Everything fails that applies to the query."""
    wishes = {name: False if hard.applies(name, request, rules) else None for name in HARD}
    failed = [*COMMONSENSE, *(name for name in HARD if wishes[name] is False)]
    reasons = dict.fromkeys(failed, f"no plan: {reason}")
    return Score(query_id, rules.mode, dict.fromkeys(COMMONSENSE, False), wishes, False, None, reasons, delivered=False)


def _holds(name: str, check: Check, plan: Reading, reasons: dict[str, str]) -> bool:
    """Run one check and note the reason if it fails."""
    try:
        reason = plan.broken or check(plan)
    except Unreadable as error:
        reason = str(error)
    if reason:
        reasons[name] = reason
    return not reason


def _granted(name: str, check: WishCheck, plan: Reading, reasons: dict[str, str]) -> bool | None:
    """Run the check of a wish, if there is one, and note the reason if it fails."""
    try:
        wish = hard.wish_of(name, plan.request, plan.box.rules)
        if wish is None:
            return None
        reason = plan.broken or check(plan, wish)
    except Unreadable as error:
        reason = plan.broken or str(error)
    if reason:
        reasons[name] = reason
    return not reason
