"""THE rollout loop: a policy meets a world. Synthesis, RL and evaluation all play through it.

The loop advances every live rollout by one turn at a time; the environments step side by side. It knows no tokens and no torch: a
policy that has token ids keeps them in its completions. Groups enter whole, so the forks of a group depend on the group alone and
not on what else is in flight.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from star.actions import parse_action
from star.protocols import Algorithm, Conversation, Env, Policy, Step, World
from star.settings import Limits
from star.stepping import Late, Stepping
from star.types import Completion, Message, Query, Score, Stop, ToolCall, Trajectory, Turn

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Group:
    """One query to be played `size` times; rollout ids are `key/first`, `key/first+1`, ..."""

    query: Query
    size: int
    key: str
    first: int = 0


@dataclass(slots=True)
class _Live:
    """A rollout under way."""

    id: str
    query: Query
    env: Env
    prompt: tuple[Message, ...]
    turns: list[Turn] = field(default_factory=list)
    parent: str | None = None
    forked_at: int | None = None

    def conversation(self) -> Conversation:
        return Conversation(self.id, self.query, self.prompt, tuple(self.turns), self.parent)


@dataclass(slots=True)
class _Party:
    """A group under way: its live rollouts, those that ended, and how many may still begin."""

    group: Group
    roots: int
    live: list[_Live] = field(default_factory=list)
    ended: list[Trajectory] = field(default_factory=list)
    begun: int = 0

    @property
    def left(self) -> int:
        return self.group.size - self.begun

    def next_id(self) -> str:
        self.begun += 1
        return f"{self.group.key}/{self.group.first + self.begun - 1}"


@dataclass(slots=True)
class Rollout:
    """Plays groups and judges every trajectory."""

    policy: Policy
    world: World
    limits: Limits
    judge: Callable[[Query, str | None], Score]
    algorithm: Algorithm | None = None
    """None plays every rollout from the query."""
    batch: int = 128
    """Rollouts in flight; a group larger than this enters alone."""
    ended: Callable[[list[Trajectory]], None] = lambda _: None
    """Called with the trajectories of each group as it ends."""
    enough: Callable[[], bool] = lambda: False
    """Once it holds, no further group begins."""

    def run(self, groups: Sequence[Group]) -> list[list[Trajectory]]:
        """Trajectories of each group, in order of their ids. Every rollout that was begun is in the result; a group that did
        not begin, since it was `enough`, has none."""
        waiting = list(reversed(groups))
        parties: list[_Party] = []
        done: dict[tuple[str, int], list[Trajectory]] = {}
        with Stepping(self.limits.tool_seconds) as stepping:
            while waiting or parties:
                self._admit(waiting, parties)
                if parties:
                    self._advance(parties, stepping)
                self._dismiss(parties, done)
        return [done.get((group.key, group.first), []) for group in groups]

    def _admit(self, waiting: list[Group], parties: list[_Party]) -> None:
        """Let groups enter that fit beside those under way."""
        while waiting and (not parties or self._flying(parties) + waiting[-1].size <= self.batch):
            if self.enough():
                waiting.clear()
                break
            parties.append(self._enter(waiting.pop()))

    def _dismiss(self, parties: list[_Party], done: dict[tuple[str, int], list[Trajectory]]) -> None:
        """Fill up groups whose rollouts have all ended, and let go those that are whole."""
        for party in [p for p in parties if not p.live]:
            if party.left:
                self._begin(party, party.left)
                continue
            parties.remove(party)
            order = sorted(party.ended, key=lambda t: int(t.id.rsplit("/", 1)[1]))
            done[party.group.key, party.group.first] = order
            self.ended(order)

    @staticmethod
    def _flying(parties: Sequence[_Party]) -> int:
        """Rollouts that live or may still begin in the groups that have entered."""
        return sum(len(party.live) + party.left for party in parties)

    def _enter(self, group: Group) -> _Party:
        roots = self.algorithm.roots(group.size) if self.algorithm else group.size
        party = _Party(group, roots)
        self._begin(party, roots)
        return party

    def _begin(self, party: _Party, count: int) -> None:
        for _ in range(count):
            name = party.next_id()
            env = self.world.open(party.group.query, name)
            party.live.append(_Live(name, party.group.query, env, env.prompt))

    def _advance(self, parties: Sequence[_Party], stepping: Stepping) -> None:
        """One turn of everything that lives and whose turn is finished."""
        turns = [(party, live) for party in parties for live in party.live]
        completions = self.policy.complete([live.conversation() for _, live in turns])
        said = [(*turn, completion) for turn, completion in zip(turns, completions, strict=True) if completion is not None]
        for party, live, completion in said:
            self._fork(party, live, completion)
        steps = stepping.run([partial(self._step, live, completion) for _, live, completion in said])
        for (party, live, completion), step in zip(said, steps, strict=True):
            self._turn(party, live, completion, self._late(live, completion) if isinstance(step, Late) else step)

    def _fork(self, party: _Party, live: _Live, completion: Completion) -> None:
        """Let the algorithm branch off just before this turn, if a tool response led to it."""
        if self.algorithm is None or not live.turns or not party.left or live.turns[-1].call is None:
            return
        draw = random.Random(f"fork/{live.id}/{len(live.turns)}")
        said = [*(turn.completion for turn in live.turns), completion]
        for _ in range(self.algorithm.forks(said, party.left, draw)):
            branch = replace(live, id=party.next_id(), env=live.env.fork(), turns=list(live.turns))
            branch.parent, branch.forked_at = live.id, len(live.turns)
            party.live.append(branch)

    def _turn(self, party: _Party, live: _Live, completion: Completion, step: Step) -> None:
        live.turns.append(Turn(completion, step.observation, step.call, step.error, step.fault))
        stop: Stop | None = step.stop
        error = completion.error
        if step.stop == "error":
            error = error or step.error
        if stop is None and len(live.turns) >= self.limits.turns:
            stop = "turns"
        if stop is not None:
            party.live.remove(live)
            party.ended.append(self._end(live, stop, step.answer, error))

    def _late(self, live: _Live, completion: Completion) -> Step:
        """The end of a rollout that the environment does not answer."""
        call = parse_action(completion.text)
        name = call.name if isinstance(call, ToolCall) else "no tool"
        seconds = self.limits.tool_seconds
        where = "rollout %s of query %s, turn %d: %s did not return within %g s; the rollout ends"
        logger.warning(where, live.id, live.query.id, len(live.turns) + 1, name, seconds)
        return Step(stop="error", error=f"{name} did not return within {seconds:g} s")

    def _step(self, live: _Live, completion: Completion) -> Step:
        if completion.finish == "error":
            return Step(stop="error", error=completion.error or "the policy failed")
        if completion.finish in ("length", "context"):
            return Step(stop="tokens")
        try:
            return live.env.step(completion.text)
        except Exception as error:  # a failed episode is a row, whatever the environment did
            logger.exception("rollout %s, turn %d: the environment failed", live.id, len(live.turns) + 1)
            return Step(stop="error", error=f"{type(error).__name__}: {error}")

    def _end(self, live: _Live, stop: Stop, answer: str | None, error: str | None) -> Trajectory:
        score = self.judge(live.query, answer)
        return Trajectory(
            live.id, live.query.id, self.policy.name, live.prompt, tuple(live.turns), stop, answer, score, live.parent,
            live.forked_at, error,
        )  # fmt: skip
