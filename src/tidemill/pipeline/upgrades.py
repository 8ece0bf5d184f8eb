"""Move the state of running views to another format, after repeating steps in a shadow (DBSP-43, DBSP-4).

A shadow of each group starts from a pinned version, in the new format and with the code of this release. It
repeats the steps that the group commits, and compares the digests. When it has repeated enough, a round
stops all groups at one step. The shadows catch up, and the groups continue with their state. If one digest
differs, no group is changed. The way back is the same, with the earlier format.

*Enough* is input on every dataset and 1,000 changed rows. If the pipeline has less input, the circuits of all
views are compared with plain Spark again, on generated data.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tidemill import __version__
from tidemill.cluster import nodes
from tidemill.cluster.leases import Lease
from tidemill.crash import Crashed
from tidemill.errors import GroupDiverged, RoundNotReady, ShadowDiffers, ShadowNotReady, UsageError
from tidemill.publish.attempts import Hold
from tidemill.runner.certifier import Certifier
from tidemill.runner.job_tags import JobTags
from tidemill.runner.program import Program
from tidemill.runner.runner import step_computer
from tidemill.spark.sessions import pin
from tidemill.store import Tx
from tidemill.views.certify.tester import ViewTester, batches_of
from tidemill.views.chain.layer_task import CODE
from tidemill.views.spark.execution import size_of
from tidemill.views.steps import divergence, groups, shadow, versions
from tidemill.views.steps.commits import StepBatch, StepResult
from tidemill.views.steps.coordinator import Coordinator
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.inputs import InputReader, ManifestReader
from tidemill.views.steps.shadow import Shadow
from tidemill.views.steps.stepper import Compute
from tidemill.views.trace.version import FORMAT
from tidemill.views.trace.version_file import read_version, write_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.pipeline.pipeline import Pipeline

LEAST_ROWS = 1000
"""How many changed rows a shadow repeats at least, unless its views are compared on generated data."""

ROUND_S = 600.0
POLL_S = 0.2
SAY_EVERY_S = 5.0

Say = Callable[[str], object]
T = TypeVar("T")


class UpgradedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What an upgrade did with a group.

    - before, format: the format of its state before and now; 0 without state.
    - steps, rows: how many steps with work its shadow repeated, and how many changed rows they read.
    - compared: with too little input, how many views were compared with plain Spark on generated data.
    - changed: whether the group continues with the state of its shadow.
    """

    group: str
    before: int
    format: int
    steps: int = 0
    rows: int = 0
    compared: int = 0
    changed: bool = False


class Upgraded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an upgrade.

    - step: the step at which the groups were stopped; 0 if there was nothing to change.
    """

    groups: tuple[UpgradedGroup, ...]
    step: int = 0

    @property
    def changed(self) -> bool:
        """Whether a group has new state."""
        return any(group.changed for group in self.groups)


def upgrade(
    pipeline: "Pipeline",
    *,
    to: int = FORMAT,
    wait_s: float = 60.0,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> Upgraded:
    """Move the state of all groups to a format, if their shadows repeat the same rows.

    Raises `ShadowDiffers`, and changes nothing, if a shadow computes other rows.

    - to: the format; groups that have it are left alone.
    - wait_s: how long to wait for steps with enough input, before views are compared on generated data.
    - dry_run: repeat and compare, but change nothing.
    """
    if not 1 <= to <= FORMAT:
        raise UsageError(f"there is no format {to} of state", hint=f"use 1 to {FORMAT}")
    if to > 1:
        _refuse_older_nodes(pipeline)
    stored = {group.spec.name: format_of(pipeline, group) for group in groups_of(pipeline)}
    chosen = [name for name, form in stored.items() if form not in (0, to)]
    same = tuple(
        UpgradedGroup(group=name, before=form, format=form)
        for name, form in stored.items()
        if name not in chosen
    )
    if not chosen:
        return Upgraded(groups=same)
    with _shadows(pipeline, chosen, dict.fromkeys(chosen, to), say) as repeated:
        repeated.follow(wait_s)
        step = 0 if dry_run else repeated.take_over()
        done = tuple(
            UpgradedGroup(
                group=name,
                before=stored[name],
                format=stored[name] if dry_run else to,
                steps=repeated.shadows[name].steps,
                rows=repeated.shadows[name].rows,
                compared=repeated.compared.get(name, 0),
                changed=not dry_run,
            )
            for name in chosen
        )
    return Upgraded(groups=tuple(sorted((*same, *done), key=lambda group: group.group)), step=step)


def repeat(pipeline: "Pipeline", *, say: Say = lambda _: None) -> dict[str, GroupDiverged]:
    """Repeat the steps since the last version of each group; mark groups that give other rows (DBSP-29).

    Return the error of each group that has diverged. Groups whose steps cannot be repeated are left out.
    """
    context, diverged = pipeline.context, {}
    keys, name = context.keys, pipeline.name
    for group in groups_of(pipeline):
        own, form = group.spec.name, format_of(pipeline, group)
        ready = context.store.run(lambda tx, group=group: shadow.can_begin(tx, keys, name, group))  # type: ignore[misc]
        if not form or not ready:
            say(f"group {own}: the steps since its last version cannot be repeated")
            continue
        with _shadows(pipeline, [own], {own: form}, say) as repeated:
            try:
                repeated.catch_up()
            except ShadowDiffers as error:
                diverged[own] = repeated.mark_diverged(own, error)
    return diverged


def go_back(pipeline: "Pipeline", group: str, *, wait_s: float = ROUND_S, say: Say = lambda _: None) -> int:
    """Replace the state of a group by that of its last version, and repeat the steps since then (DBSP-24).

    The output of these steps is compared with the committed one. Return how many steps were repeated. Raises
    `ShadowNotReady` if they cannot be repeated, and `ShadowDiffers` if they give other rows.
    """
    context = pipeline.context
    keys, name = context.keys, pipeline.name
    stored = context.store.run(lambda tx: groups.read(tx, keys, name, group))
    if not context.store.run(lambda tx: shadow.can_begin(tx, keys, name, stored)):
        raise ShadowNotReady(
            f"the steps of group {group!r} since its last version cannot be repeated",
            hint="the next step can build its state from all lots: tidemill doctor --repair",
        )
    pinned = context.store.run(lambda tx: versions.listed(tx, keys, name, group))[-1]
    form = read_version(context.objects, pinned.version).format
    with _shadows(pipeline, [group], {group: form}, say) as repeated:
        repeated.catch_up()
        repeated.take_over(wait_s)
        return repeated.shadows[group].steps


def groups_of(pipeline: "Pipeline") -> list[ViewGroup]:
    """Return the stored groups of a pipeline."""
    context = pipeline.context
    return context.store.run(lambda tx: groups.listed(tx, context.keys, pipeline.name))


def format_of(pipeline: "Pipeline", group: ViewGroup) -> int:
    """Return the format of a group's state; 0 if it has none."""
    return read_version(pipeline.context.objects, group.version).format if group.version else 0


def _refuse_older_nodes(pipeline: "Pipeline") -> None:
    """Raise `ShadowNotReady` while a node runs another release, which may not read a new format."""
    context = pipeline.context
    alive = context.store.run(lambda tx: nodes.alive(nodes.read_all(tx, context.keys.cluster), tx.now()))
    older = [node for node in alive if node.release not in ("", __version__)]
    others = sorted({f"{node.id} ({node.release})" for node in older})
    if others:
        raise ShadowNotReady(
            f"these nodes run another release, which may not read the new format: {', '.join(others)}",
            hint=f"upgrade them to {__version__} first",
        )


@contextlib.contextmanager
def _shadows(
    pipeline: "Pipeline", names: list[str], formats: dict[str, int], say: Say
) -> "Iterator[_Shadows]":
    """Begin a shadow of each group, and give up those that do not take over."""
    plan, context = pipeline.plan(), pipeline.context
    with context.spark() as spark:
        pin(spark)
        certifier = Certifier(context.scope, lambda: context.node, spark, plan.program)
        certifier.start()
        try:
            certifier.wait(ROUND_S)
            compute = step_computer(
                context.scope, spark, context.storage, plan.program, JobTags(spark), certifier
            )
            repeated = _Shadows(pipeline, plan.program, spark, compute, say)
            try:
                repeated.begin(names, formats)
                yield repeated
            except Crashed:  # the next upgrade gives up what a dead process has left
                raise
            except BaseException:
                repeated.discard(names)
                raise
            repeated.discard(names)
        finally:
            certifier.stop()


class _Shadows:
    """The shadows of some groups of a pipeline, in this process."""

    def __init__(
        self, pipeline: "Pipeline", program: Program, spark: "SparkSession", compute: Compute, say: Say
    ) -> None:
        self._pipeline = pipeline.name
        self._context = pipeline.context
        self._keys = pipeline.context.keys
        self._scope = pipeline.context.scope
        self._program = program
        self._spark = spark
        self._compute = compute
        self._say = say
        self._inputs = InputReader(
            self._context.store, self._keys.lots, ManifestReader(self._context.objects)
        )
        self._holds: dict[str, list[tuple[Hold, str]]] = {}
        self._failed_at = 0
        self.shadows: dict[str, Shadow] = {}
        self.compared: dict[str, int] = {}

    # --- begin and end

    def begin(self, names: list[str], formats: dict[str, int]) -> None:
        """Begin a shadow of each group.

        If the steps since the last version cannot be repeated, pin a new version first.
        """
        self._clear(names)
        if not all(self._can_begin(name) for name in names):
            step = Coordinator(self._scope, self._pipeline, wait_s=ROUND_S).run_round(lambda _: None)
            self._say(f"all groups have pinned a version at step {step:,}")
        for name in names:
            attempt = self._scope.new_attempt()
            begun, hold = self._scope.step(
                "views.shadow-begin",
                lambda tx, name=name, attempt=attempt: shadow.begin(  # type: ignore[misc]
                    tx, self._keys, self._pipeline, name, self._scope.node, attempt, attempt
                ),
            )
            self.shadows[name] = begun
            self._holds[name] = [(hold, begun.version)]
            self._copy_state(begun, formats[name])

    def _clear(self, names: list[str]) -> None:
        """Give up the shadows that a dead process left; refuse those of another living process."""
        for name in names:
            if self._run(lambda tx, name=name: self._is_foreign(tx, name)):  # type: ignore[misc]
                raise ShadowNotReady(
                    f"another process repeats the steps of group {name!r}", hint="wait until it has ended"
                )
        self.discard(names)

    def _is_foreign(self, tx: Tx, name: str) -> bool:
        return shadow.is_foreign(tx, self._keys, self._pipeline, name, self._scope.node)

    def _can_begin(self, name: str) -> bool:
        keys, pipeline = self._keys, self._pipeline
        return self._run(
            lambda tx: shadow.can_begin(tx, keys, pipeline, groups.read(tx, keys, pipeline, name))
        )

    def _copy_state(self, begun: Shadow, form: int) -> None:
        """Write the version file with which a shadow begins: the same run files, in another format."""
        objects = self._context.objects
        version = read_version(objects, begun.origin)
        write_version(objects, begun.version, replace(version, format=form, code=CODE))

    def discard(self, names: list[str]) -> None:
        """Give up the shadows that have not taken over."""
        for name in names:
            while self._scope.step(
                "views.shadow-discard",
                lambda tx, name=name: shadow.discard(tx, self._keys, self._pipeline, name),  # type: ignore[misc]
            ):
                continue

    # --- repeat

    def follow(self, wait_s: float) -> None:
        """Repeat steps until there was enough input, or compare the views on generated data instead."""
        clock = self._scope.clock
        give_up = clock.monotonic() + wait_s
        say_at = clock.monotonic()
        while True:
            self.catch_up()
            lacking = [name for name, copy in self.shadows.items() if self._lacks(copy)]
            if not lacking:
                return
            now = clock.monotonic()
            if now >= give_up:
                break
            if now >= say_at:
                self._say(f"waiting for steps: {'; '.join(self._lacks(self.shadows[n]) for n in lacking)}")
                say_at = now + SAY_EVERY_S
            clock.sleep(min(POLL_S, give_up - now))
        for name in lacking:
            self._say(f"group {name}: too little input; comparing its views on generated data")
            self._compare_generated(name)

    def catch_up(self) -> None:
        """Repeat all steps that the groups have committed."""
        for name in self.shadows:
            while (batch := self._next(name)) is not None:
                self._repeat(name, batch)

    def _next(self, name: str) -> StepBatch | None:
        return self._run(lambda tx: shadow.next_batch(tx, self._keys, self._pipeline, self.shadows[name]))

    def _repeat(self, name: str, batch: StepBatch) -> None:
        keys, pipeline, copy = self._keys, self._pipeline, self.shadows[name]
        self._failed_at = batch.step
        if not batch.has_work:
            self.shadows[name] = self._scope.step(
                "views.shadow-pass", lambda tx: shadow.skip(tx, keys, pipeline, copy, batch)
            )
            return
        attempt = self._scope.new_attempt()
        opened, hold = self._scope.step(
            "views.shadow-open", lambda tx: shadow.open_step(tx, keys, pipeline, copy, batch, attempt)
        )
        self.shadows[name] = opened
        result = StepResult.of(hold, self._compute(batch, attempt))
        rows = self._changed_rows(batch)
        moved = self._scope.step(
            "views.shadow-advance",
            lambda tx: shadow.advance(tx, keys, pipeline, opened, batch, result, rows),
        )
        self.shadows[name] = moved
        self._holds[name].append((hold, "" if result.state is None else result.state.version))
        self._say(f"group {name}: step {batch.step:,} has the same digests ({rows:,} changed rows)")

    def _changed_rows(self, batch: StepBatch) -> int:
        """Return how many rows of lots a batch adds or removes."""
        changes = [
            self._inputs.between(base, batch.before[base], batch.positions[base])
            for base in batch.moved
            if base.version != "alarm"
        ]
        return sum(size_of((*change.plus, *change.minus)).rows for change in changes)

    def _lacks(self, copy: Shadow) -> str:
        """Return what a shadow has not repeated yet; empty if it has repeated enough."""
        bases = copy.uncovered(self._pipeline)
        if bases:
            names = ", ".join(str(base.name) for base in bases)
            return f"group {copy.spec.name} had no input of {names}"
        if copy.rows < LEAST_ROWS:
            return f"group {copy.spec.name} had {copy.rows:,} of {LEAST_ROWS:,} changed rows"
        return ""

    def _compare_generated(self, name: str) -> None:
        """Compare the circuits of a group's views with plain Spark."""
        tests = [
            self._program.tests[view]
            for view in sorted(self.shadows[name].spec.names)
            if view in self._program.tests
        ]
        with ViewTester(self._spark, self._scope.clock, tests) as tester:
            for batch in chain.from_iterable(batches_of(tests)):
                for test, certificate in zip(batch, tester.run(batch), strict=True):
                    if not certificate.equal and not certificate.refused:
                        raise ShadowDiffers(
                            f"view {test.view} of group {name!r} differs from plain Spark on generated data"
                        )
        self.compared[name] = len(tests)

    # --- take over

    def take_over(self, wait_s: float = ROUND_S) -> int:
        """Stop all groups in a round, and let them continue with the state of their shadows."""
        coordinator = Coordinator(self._scope, self._pipeline, wait_s=wait_s)
        step = coordinator.run_round(lambda _: None, stopped=self._switch)
        self._say(f"all groups stopped at step {step:,}, and continue with the new state")
        return step

    def _switch(self, lease: Lease, step: int) -> None:
        self.catch_up()
        keys, pipeline = self._keys, self._pipeline
        if any(copy.step != step for copy in self.shadows.values()):
            raise RoundNotReady("a shadow has not reached the step at which its group was stopped")
        for name, copy in self.shadows.items():
            for hold, version in self._holds[name]:
                self._scope.step(
                    "views.shadow-keep",
                    lambda tx, hold=hold, version=version, copy=copy: shadow.keep_state(  # type: ignore[misc]
                        tx, keys, pipeline, copy, hold, version
                    ),
                )
            self._scope.step(
                "views.shadow-take-over",
                lambda tx, copy=copy: shadow.take_over(tx, keys, pipeline, copy, lease),  # type: ignore[misc]
            )

    def mark_diverged(self, name: str, error: ShadowDiffers) -> GroupDiverged:
        """Stop the publication of a group whose own code gave other rows."""
        keys, pipeline = self._keys, self._pipeline
        self._scope.step(
            "views.diverge",
            lambda tx: divergence.mark_diverged(tx, keys, pipeline, name, self._failed_at, error.views),
        )
        return GroupDiverged(error.message)

    def _run(self, fn: Callable[[Tx], T]) -> T:
        return self._context.store.run(fn)
