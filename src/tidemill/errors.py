"""All errors of Tidemill, in one tree.

    TidemillError                     base of all errors; has a code, a message and a hint
    ├── IllegalTransition             a state machine has no such transition
    ├── InvariantBroken               a row would contradict a rule that must always hold
    ├── UsageError                    a function was called incorrectly
    │   └── BadSelection              a selector of `--select` is invalid, or matches nothing
    ├── BadUrl                        a store or objects URL is invalid
    ├── MissingDriver                 the Python package for a backend is not installed
    ├── StoreError                    base of errors about the store
    │   ├── StoreUnavailable          the store does not respond
    │   ├── StoreBusy                 conflicts lasted longer than the retry limit
    │   ├── CommitUnknown             the outcome of a commit is unknown
    │   ├── LimitExceeded             a limit of the store was exceeded
    │   │   ├── KeyTooLarge           a key is larger than 2 KiB
    │   │   ├── ValueTooLarge         a value is larger than 64 KiB
    │   │   ├── TransactionTooLarge   a transaction has more than 1,000 writes or 1 MB
    │   │   └── TransactionTooLong    a transaction took more than 2 s
    │   ├── StoreFull                 the disk of the store is full
    │   ├── StoreCorrupt              the store's file or rows are damaged
    │   ├── StoreFormat               this release does not support the format of the store
    │   └── StoreLocation             the file is on a network file system, or belongs to another machine
    ├── ObjectError                   base of errors about object storage
    │   ├── BadKey                    the name of an object is invalid
    │   ├── ObjectMissing             no object has this key
    │   ├── ObjectConflict            the condition of a write (If-Match) was not met
    │   ├── ObjectUnavailable         object storage does not respond
    │   ├── ObjectsFull               object storage is full
    │   └── ConditionsIgnored         the storage provider ignores conditional writes
    ├── ClusterError                  base of errors about the cluster
    │   ├── NotLeader                 this node is no longer the leader
    │   ├── LockTimeout               a lock or permit was not free in time
    │   ├── CopyIncomplete            a copy of the store was interrupted
    │   └── ProtocolMismatch          nodes run releases that cannot work together
    ├── FutureError                   base of errors about futures
    │   ├── FutureUnknown             the future does not exist or was deleted
    │   ├── FutureFailed              the future failed
    │   │   ├── UpstreamDependencyFailed  an input of the future failed
    │   │   ├── UnsatisfiableError    no worker has the resources that the future needs
    │   │   ├── TaskCrashed           the task crashed its worker process too often
    │   │   ├── TaskOutOfMemory       the task exceeded its memory limit too often
    │   │   ├── DeadlineExceeded      the deadline passed before the task finished
    │   │   ├── CodeNotLoadable       workers cannot load the code
    │   │   └── ResultLost            all copies of the result are lost, and it cannot be recomputed
    │   ├── FutureCancelled           the future was cancelled
    │   ├── FutureTimeout             the caller's wait timed out; the future keeps running
    │   ├── ActorDied                 the actor died and its state is lost
    │   ├── CannotSerialize           a function or value cannot be sent to another process
    │   ├── BadSignature              code is not signed with the cluster key
    │   ├── ClusterKeyMissing         no cluster key was given
    │   ├── ClusterKeyUnsafe          the cluster key is invalid or readable by other users
    │   ├── BlobMissing               stored code or arguments are missing
    │   ├── CopyGone                  this copy of a result no longer exists
    │   ├── CopyCorrupt               this copy of a result is damaged
    │   ├── SegmentsFull              no memory is left for results on this node
    │   ├── FetchFailed               a copy could not be fetched from another node
    │   └── FetchRefused              the other node does not have the cluster key
    ├── LotError                      base of errors about lots
    │   ├── BadLotId                  a lot id is invalid
    │   ├── BadName                   a name is invalid
    │   ├── ManifestUnreadable        a manifest has a newer format or is invalid
    │   ├── BadDataset                a dataset declaration is invalid
    │   ├── DatasetUnknown            the dataset is not declared
    │   ├── DatasetChanged            the dataset was already declared with a different definition
    │   ├── LotUnknown                the lot or the generation does not exist
    │   ├── NoLots                    the range contains no lot
    │   ├── HistoryExpired            the requested lots or changes have expired
    │   ├── LotConflict               the lot has changed, or cannot be changed in this way
    │   ├── BadCheck                  a check is invalid or uses unknown columns
    │   ├── CheckFailed               rows failed a check and were not published
    │   ├── ProducerConflict          a sequence number is too low, or was already used for different rows
    │   └── IntervalConflict          another interval must be closed first
    ├── SparkError                    base of errors about Spark
    │   ├── JavaMissing               no Java runtime was found
    │   ├── SparkUnavailable          Spark does not start or does not respond
    │   ├── SessionUnusable           the Spark session cannot be used
    │   ├── ExecutorCode              executors cannot import Tidemill, or have another release
    │   ├── BadSchema                 a schema is invalid, or columns differ from it
    │   ├── ObjectUnreadable          Spark cannot read an object of a lot
    │   ├── DiskFull                  the disk for temporary files of a machine is full
    │   ├── FileMismatch              Arrow cannot read a file as declared; Spark reads it instead
    │   └── WriteMismatch             written rows differ from computed rows
    ├── SubscriptionError             base of errors about triggers
    │   ├── SubscriptionUnknown       the trigger does not exist or was removed
    │   ├── SubscriptionChanged       the trigger already exists with different inputs
    │   ├── BadTemplate               the pattern or target of a template is invalid
    │   ├── TemplateUnknown           the template does not exist or was removed
    │   ├── TemplateChanged           the template was already declared with a different definition
    │   ├── TemplateChild             the trigger belongs to a template
    │   ├── BadSchedule               a cron expression or time zone is invalid
    │   └── HeapDiffers               this runner uses a different heap from the rest of its cluster
    ├── PublishError                  base of errors about publication
    │   ├── CorrectionRefused         another correction changed the lot first, or the lot cannot be corrected
    │   ├── AttemptUnknown            the attempt does not exist or was removed
    │   ├── AttemptEnded              the attempt is already published or abandoned
    │   └── AttemptDamaged            objects of the attempt are missing
    ├── ArcError                      base of errors about arcs
    │   ├── ArcUnknown                the arc is not declared
    │   ├── BadArc                    an arc declaration is invalid
    │   └── ArcLotConflict            the state of the lot does not allow the request
    ├── ViewError                     base of errors about views
    │   ├── GroupUnknown              the group of views does not exist
    │   ├── StepConflict              a step is out of order, or differs from the step that was recorded
    │   ├── VersionUnknown            a group of views has no version with this number
    │   ├── RoundNotReady             a group of views has not paused yet
    │   ├── RoundBroken               the groups of a pipeline have no version in common
    │   ├── ShadowNotReady            a shadow cannot begin or take over yet
    │   ├── ShadowDiffers             a shadow computed other rows than the group committed
    │   ├── GroupDiverged             a step of a group, computed again, has other rows
    │   ├── StepLost                  a task of a step reported no result, or reported twice
    │   ├── ViewFailed                a view cannot be computed from its input rows
    │   ├── ViewCheckFailed           rows of a view fail a check that refuses to publish them
    │   └── ViewRefused               the view, or this change to it, is not supported
    ├── QueryError                    base of errors about queries, with line and column
    │   ├── QuerySyntax               the text is not valid Spark SQL
    │   ├── NameUnknown               a table or column does not exist
    │   ├── NameAmbiguous             a name matches several columns
    │   ├── QueryRefused              Spark rejects the query, or it cannot be a view
    │   └── NotIncremental            `refresh="incremental"` is set, but a part must be recomputed
    ├── PipelineError                 base of errors about pipelines
    │   ├── PipelineNotFound          no pipeline was found
    │   ├── DeclarationError          a declaration is invalid (the message gives its line)
    │   ├── AppendRefused             rows do not fit their table
    │   ├── NothingYet                the table has no data yet
    │   ├── ArcResult                 an arc returned something unexpected
    │   ├── BackupRefused             a backup cannot be written or restored
    │   └── CodeDiffers               this runner does not have the code that the run needs
    ├── SourceError                   base of errors about sources
    │   ├── BadSource                 a source declaration is invalid
    │   ├── SourceUnavailable         the folder or bucket cannot be listed
    │   ├── SourceFileChanged         a file changed or disappeared after it was listed
    │   ├── SourceMiscounted          two reads of the same file differ
    │   ├── PollRefused               the response to a poll is invalid
    │   ├── CheckpointGone            the data after a source's last checkpoint no longer exists
    │   ├── PushRefused               the body of a push request is invalid
    │   └── PushBusy                  too many push requests are waiting
    ├── TraceError                    base of errors about the state of views
    │   ├── TraceMissing              a listed run file or version file is missing
    │   ├── TraceCorrupt              a run file or version file is damaged
    │   ├── TraceFormat               this release cannot read a run file or version file
    │   ├── TraceStale                a trace does not belong to the expected step
    │   ├── TypeRefused               a type cannot be compared, ordered or added
    │   ├── WeightNegative            a row would get a negative weight
    │   └── WeightOverflow            a weight or a sum is too large for 64 bits
    ├── PageError                     the page does not answer, or refuses a request
    ├── RunnerDied                    the child processes of a runner keep dying
    └── DemoFailed                    the demo did not finish

    Stop(BaseException)               the current work must stop; `except Exception` does not catch this
    ├── SparkDied                     the Java process of Spark ended; this process cannot use Spark any more
    └── LeaseLost                     this process lost its lease; another node continues its work

Each class has a stable `code`. Each error has a message that says what happened. Most errors have a hint that
says what to do. If a class has no hint, its docstring says why. Base classes have no hint.

The file is long because all errors stand in one place: a reader finds each code once, with its meaning.
"""

import os
import re
import traceback
from pathlib import Path
from typing import Any, ClassVar

UNEXPECTED = 70
"""The exit code of a command that ends with an error which is none of ours: a fault in Tidemill."""


def is_debugging() -> bool:
    """Return whether to print every stack trace: the environment variable `TIDEMILL_DEBUG` is set."""
    return os.environ.get("TIDEMILL_DEBUG", "") not in ("", "0")


class TidemillError(Exception):
    """Base of all errors. `str(error)` is the message, followed by the hint on a second line."""

    code: ClassVar[str] = "tidemill"
    exit_code: ClassVar[int] = 1  # of a command that ends with this error
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = _printable(message)
        super().__init__(self.message)
        if hint is not None:
            self.hint = _printable(hint)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


def _printable(text: str) -> str:
    """Escape halves of surrogate pairs: a message may quote any input, and is printed and stored."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class IllegalTransition(TidemillError):
    """Only Tidemill changes states, so this error is always a bug."""

    code = "illegal-transition"
    hint = "this is a bug in Tidemill; please report it"


class InvariantBroken(TidemillError):
    """A write or a decision would break an invariant, so this is a bug. Nothing was written.

    It is an error and not an `assert`, so that `python -O` checks it too.
    """

    code = "invariant-broken"
    hint = "this is a bug in Tidemill; please report it"


class UsageError(TidemillError):
    """No default hint: the code that raises this error passes a hint."""

    code = "usage"


class BadSelection(UsageError):
    code = "bad-selection"
    hint = "use a name, +name, name+, 2+name, @name, a pattern like order*, or kind:name"


class BadUrl(TidemillError):
    code = "bad-url"
    hint = (
        "store: memory://, sqlite:///path/file.db, postgresql://user@host/db or foundationdb:///etc/fdb.cluster;"
        " objects: a path, file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
    )


class MissingDriver(TidemillError):
    """No default hint: the code that raises this error names the package in its hint."""

    code = "missing-driver"


class StoreError(TidemillError):
    code = "store"


class StoreUnavailable(StoreError):
    code = "store-unavailable"
    hint = "check that the server is running and reachable, then retry"


class StoreBusy(StoreError):
    code = "store-busy"
    hint = "many writers change the same keys; retry later"


class CommitUnknown(StoreError):
    code = "store-commit-unknown"
    hint = "the store stopped answering during a commit; check whether the change exists before you repeat it"


class LimitExceeded(StoreError):
    code = "store-limit"


class KeyTooLarge(LimitExceeded):
    code = "store-key-too-large"
    hint = "a key can be at most 2 KiB long; use a shorter name or id"


class ValueTooLarge(LimitExceeded):
    code = "store-value-too-large"
    hint = "a value can be at most 64 KiB long; put large data into object storage and store its name"


class TransactionTooLarge(LimitExceeded):
    code = "store-transaction-too-large"
    hint = "a transaction can have at most 1,000 writes and 1 MB; split the work into several transactions"


class TransactionTooLong(LimitExceeded):
    code = "store-transaction-too-long"
    hint = "a transaction can take at most 2 s; do slow work before or after the transaction"


class StoreFull(StoreError):
    code = "store-full"
    hint = "free some space on the disk; committed data is safe"


class StoreCorrupt(StoreError):
    code = "store-corrupt"
    hint = "restore the store from a backup; keep the damaged file, because it may be recoverable"


class StoreFormat(StoreError):
    code = "store-format"
    hint = "if a newer release wrote this store, upgrade Tidemill on this machine"


class StoreLocation(StoreError):
    code = "store-location"
    hint = "put the file on a local disk of one machine; for several machines use postgresql://"


class ObjectError(TidemillError):
    code = "objects"


class BadKey(ObjectError):
    code = "object-bad-key"
    hint = "join names with '/'; do not use '.', '..', empty names, backslashes or control characters"


class ObjectMissing(ObjectError):
    code = "object-missing"
    hint = "check the key; if the object should exist, restore it from a backup"


class ObjectConflict(ObjectError):
    code = "object-conflict"
    hint = "read the object again, then repeat the write"


class ObjectUnavailable(ObjectError):
    code = "objects-unavailable"
    hint = "check the endpoint, the bucket and the credentials, then retry"


class ObjectsFull(ObjectError):
    code = "objects-full"
    hint = "free some space, or raise the quota; objects that were already written are safe"


class ConditionsIgnored(ObjectError):
    code = "objects-conditions-ignored"
    hint = "use a provider with conditional writes (If-None-Match, If-Match), such as S3, GCS, Azure or MinIO"


class ClusterError(TidemillError):
    code = "cluster"


class NotLeader(ClusterError):
    code = "cluster-not-leader"
    hint = "no action is needed: the new leader does the work"


class LockTimeout(ClusterError):
    code = "cluster-lock-timeout"
    hint = "another process holds the lock; try again, or wait longer (timeout_s)"


class CopyIncomplete(ClusterError):
    code = "copy-incomplete"
    hint = "repeat the copy or the restore; it starts again"


class ProtocolMismatch(ClusterError):
    code = "cluster-protocol"
    hint = "use the same release of Tidemill on all nodes of the cluster"


class FutureError(TidemillError):
    """`failure` is the stored failure record, if one exists."""

    code = "future"
    failure: Any = None


class FutureUnknown(FutureError):
    code = "future-unknown"
    hint = "check the id; Tidemill deletes finished futures after 24 h unless they are still in use"


class FutureFailed(FutureError):
    """The future has failed for good. `__cause__` is the original exception, if it could be loaded."""

    code = "future-failed"
    hint = "to show the remote traceback, run: tidemill futures show ID"


class UpstreamDependencyFailed(FutureFailed):
    """`chain` lists the futures from the nearest input to the first failure."""

    code = "future-upstream-failed"
    hint = "fix the cause of the first failure, then submit again"
    chain: tuple[str, ...] = ()


class UnsatisfiableError(FutureFailed):
    code = "future-unsatisfiable"
    hint = "request less, start a larger worker, or submit with on_unsatisfiable='wait'"


class TaskCrashed(FutureFailed):
    code = "future-crashed"
    hint = "fix the task, then run: tidemill futures requeue ID"


class TaskOutOfMemory(FutureFailed):
    code = "future-out-of-memory"
    hint = "submit with a larger ram=…, and start a worker with enough memory"


class DeadlineExceeded(FutureFailed):
    code = "future-deadline"
    hint = "submit with a later deadline=…, or start more workers"


class CodeNotLoadable(FutureFailed):
    """`module` is the missing module, if that is the reason."""

    module: str = ""
    code = "future-code-not-loadable"
    hint = "install the missing module on the workers, with the same Python version"


class ResultLost(FutureFailed):
    code = "future-result-lost"
    hint = "use put(..., durable=True), or compute the value in a future, which can be recomputed"


class FutureCancelled(FutureError):
    """No hint: no action is needed, because the cancellation was requested."""

    code = "future-cancelled"


class FutureTimeout(FutureError, TimeoutError):
    code = "future-timeout"
    hint = "the future keeps running; wait again, or cancel it"


class ActorDied(FutureError):
    code = "actor-died"
    hint = "create the actor again; its state is lost"


class CannotSerialize(FutureError):
    code = "cannot-serialize"
    hint = "pass plain values or futures; open files, locks and connections inside the function"


class BadSignature(FutureError):
    code = "bad-signature"
    hint = "use the same cluster key on every node and client"


class ClusterKeyMissing(FutureError):
    code = "cluster-key-missing"
    hint = (
        "create one with `tidemill key FILE`, and set TIDEMILL_CLUSTER_KEY_FILE to its path; a home gets a"
        " key by itself"
    )


class ClusterKeyUnsafe(FutureError):
    code = "cluster-key-unsafe"
    hint = "use at least 64 hexadecimal digits, in a file that only its owner can read (chmod 600)"


class BlobMissing(FutureError):
    code = "blob-missing"
    hint = "check that workers and clients use the same object storage, then submit again"


class CopyGone(FutureError):
    """No hint: no action is needed, because the reader tries another copy or recomputes the result."""

    code = "copy-gone"


class CopyCorrupt(FutureError):
    """No hint: no action is needed, because Tidemill treats a damaged copy as missing."""

    code = "copy-corrupt"


class SegmentsFull(FutureError):
    code = "segments-full"
    hint = "delete futures with large results, or start the worker with a larger --results or with --spill"


class FetchFailed(FutureError):
    code = "fetch-failed"
    hint = "check that the node is running and reachable, then retry"


class FetchRefused(FutureError):
    code = "fetch-refused"
    hint = (
        "use the same cluster key on every node and client; if a worker serves other hosts, start it with"
        " --certificate"
    )


class LotError(TidemillError):
    code = "lot"


class BadLotId(LotError):
    code = "bad-lot-id"
    hint = (
        "write a day (20230101), a day with an interval length and a number (20230101PT5M050), or the id of"
        " an append (A00000000000000017)"
    )


class BadName(LotError):
    code = "bad-name"
    hint = "use a non-empty name of at most 200 bytes, counted after percent-encoding"


class ManifestUnreadable(LotError):
    code = "manifest-unreadable"
    hint = (
        "upgrade Tidemill if a newer release wrote the manifest; otherwise restore a backup, or replay the"
        " lot"
    )


class BadDataset(LotError):
    """No default hint: the code that raises this error passes a hint."""

    code = "bad-dataset"


class DatasetUnknown(LotError):
    code = "dataset-unknown"
    hint = "declare the dataset first: pipeline.dataset(name, schema)"


class DatasetChanged(LotError):
    code = "dataset-changed"
    hint = (
        "declare the dataset as before; columns may be added and types widened. For any other change, declare"
        " another table, and an arc that copies the rows from this one; then run `tidemill backfill ARC`"
    )


class LotUnknown(LotError):
    code = "lot-unknown"
    hint = "to list the lots, run: tidemill lots TABLE"


class NoLots(LotError):
    code = "no-lots"
    hint = "to list the lots, run: tidemill lots TABLE"


class HistoryExpired(LotError):
    code = "history-expired"
    hint = "read the complete table with df(), and continue from its position"


class LotConflict(LotError):
    code = "lot-conflict"
    hint = "another process may have published this lot; read the lot again and repeat your change"


class BadCheck(LotError):
    code = "bad-check"
    hint = "use not_null(columns), unique(columns), expect(condition) or rows(at_least=…)"


class CheckFailed(LotError):
    code = "check-failed"
    hint = "fix the rows, or change the check to warn or to drop them, for example on_fail='drop'"


class ProducerConflict(LotError):
    code = "producer-conflict"
    hint = "use increasing numbers, one for each write; reuse a number only to repeat the same rows"


class IntervalConflict(LotError):
    code = "interval-conflict"
    hint = "no action is needed: Tidemill closes the interval later"


class SparkError(TidemillError):
    code = "spark"


class JavaMissing(SparkError):
    code = "java-missing"
    hint = "run pip install 'tidemill[local]', which includes a Java runtime, or install Java 17 or newer"


class SparkUnavailable(SparkError):
    code = "spark-unavailable"
    hint = "check that the Spark master or Spark Connect server is running, and that its address is correct"


class SessionUnusable(SparkError):
    code = "spark-session-unfit"
    hint = "upgrade Spark, or pass no session; then Tidemill starts its own"


class ExecutorCode(SparkError):
    code = "executor-code"
    hint = (
        "write an archive with `tidemill pack tidemill.zip`, and start Spark with"
        " spark.archives=tidemill.zip#tidemill"
    )


class BadSchema(SparkError):
    code = "bad-schema"
    hint = "write columns in Spark's syntax: 'id BIGINT, `a name` STRING, tags ARRAY<STRING>'"


class ObjectUnreadable(SparkError):
    """`key` names the object, if known."""

    key: str = ""
    code = "object-unreadable"
    hint = "restore the object from a backup, or replay its lot"


class DiskFull(SparkError):
    code = "disk-full"
    hint = "free some space in the folder for temporary files, or set spark.local.dir; the work is retried"


class FileMismatch(SparkError):
    """Internal: the Arrow reader raises this error, and then Spark reads the file."""

    code = "file-unlike"
    hint = "no action is needed: Spark reads the file instead"


class WriteMismatch(SparkError):
    code = "write-mismatch"
    hint = "nothing was published; run the pipeline again, and report the error if it repeats"


class SubscriptionError(TidemillError):
    code = "subscription"


class SubscriptionUnknown(SubscriptionError):
    code = "subscription-unknown"
    hint = "to list the triggers, run: tidemill triggers"


class SubscriptionChanged(SubscriptionError):
    code = "subscription-changed"
    hint = "use another name: the inputs of an existing trigger cannot change"


class BadTemplate(SubscriptionError):
    """No default hint: the code that raises this error passes a hint."""

    code = "bad-template"


class TemplateUnknown(SubscriptionError):
    code = "template-unknown"
    hint = "to list the triggers, run: tidemill triggers"


class TemplateChanged(SubscriptionError):
    code = "template-changed"
    hint = "declare the template as before, or use another name: the pattern of a template cannot change"


class TemplateChild(SubscriptionError):
    code = "template-child"
    hint = "remove the template first, or pause the trigger"


class BadSchedule(SubscriptionError):
    code = "bad-schedule"
    hint = (
        "write five fields: minute hour day-of-month month day-of-week, such as '30 6 * * mon-fri'; or @daily"
    )


class HeapDiffers(SubscriptionError):
    code = "heap-differs"
    hint = "use the cluster's heap; to move the heap, stop all runners and run: tidemill triggers rebuild"


class PublishError(TidemillError):
    code = "publish"


class CorrectionRefused(PublishError):
    code = "correction-refused"
    hint = "if another correction came first, read the lot again, then repeat your correction"


class AttemptUnknown(PublishError):
    code = "attempt-unknown"
    hint = "repeat the operation; Tidemill then starts a new attempt"


class AttemptEnded(PublishError):
    code = "attempt-ended"
    hint = "repeat the operation; Tidemill then starts a new attempt"


class AttemptDamaged(PublishError):
    code = "attempt-damaged"
    hint = "no action is needed: Tidemill abandons this attempt and starts a new one"


class ArcError(TidemillError):
    code = "arc"


class ArcUnknown(ArcError):
    code = "arc-unknown"
    hint = "to list the names, run: tidemill ls"


class BadArc(ArcError):
    """No default hint: the code that raises this error passes a hint."""

    code = "bad-arc"


class ArcLotConflict(ArcError):
    code = "arc-lot-conflict"
    hint = (
        "only partial and missing lots can be retried; to show the states of lots, run: tidemill lots TABLE"
    )


class ViewError(TidemillError):
    """`view` is the view that caused the error: empty if it is one of several views that were computed
    together, and None if the cause may be another one, such as storage.
    """

    code = "view"
    view: str | None = None


class GroupUnknown(ViewError):
    code = "group-unknown"
    hint = "declare its views first: pipeline.view(name, sql)"


class StepConflict(ViewError):
    code = "step-conflict"
    hint = "no action is needed: this run fails, and the next one continues from the group's current step"


class VersionUnknown(ViewError):
    code = "version-unknown"
    hint = "use one of the versions that the group has"


class RoundNotReady(ViewError):
    code = "round-not-ready"
    hint = "wait until the runs of all groups have finished their steps"


class RoundBroken(ViewError):
    code = "round-broken"
    hint = "restore the store from a backup: rows of its versions are missing"


class ShadowNotReady(ViewError):
    """No default hint: the code that raises this error passes a hint."""

    code = "shadow-not-ready"


class ShadowDiffers(ViewError):
    """`views` are the views whose rows differ."""

    code = "shadow-differs"
    hint = "nothing has changed, and the group continues as before; please report the release and the query"
    views: tuple[str, ...] = ()


class GroupDiverged(ViewError):
    code = "group-diverged"
    hint = "run `tidemill doctor --repair`; the next step then computes the state of the group again"


class StepLost(ViewError):
    code = "step-lost"
    hint = "the step runs again; if the error repeats, check Spark's log for failed tasks"


class ViewFailed(ViewError):
    code = "view-failed"
    hint = "fix the query, or correct the rows that cause the error; then Tidemill runs the step again"


class ViewCheckFailed(ViewError):
    code = "view-check-failed"
    hint = (
        "correct the rows, or change the check to warn or to drop them; the view keeps its last table, and"
        " changes again in the first step in which its rows pass"
    )


class ViewRefused(ViewError):
    """No default hint: the code that raises this error passes a hint."""

    code = "view-refused"


class QueryError(TidemillError):
    """`line` and `column` are the position in the query, from 1; 0 if unknown."""

    code = "query"
    hint = "check the query at this position; it must be Spark SQL"
    line: int = 0
    column: int = 0


class QuerySyntax(QueryError):
    code = "query-syntax"
    hint = "check the query at this position; it must be one Spark SQL query"


class NameUnknown(QueryError):
    """`name` is the unknown name; `near` lists similar names."""

    code = "name-unknown"
    hint = "to list the names, run: tidemill ls"
    name: str = ""
    near: tuple[str, ...] = ()


class NameAmbiguous(QueryError):
    code = "name-ambiguous"
    hint = "write the table's name or alias before the column"
    name: str = ""


class QueryRefused(QueryError):
    code = "query-refused"
    hint = "check the query at this position, and Spark's message"


class NotIncremental(QueryError):
    code = "not-incremental"
    hint = "rewrite this part of the query, or use refresh='auto'"


class PipelineError(TidemillError):
    code = "pipeline"


class PipelineNotFound(PipelineError):
    code = "pipeline-not-found"
    hint = 'write `pipeline = "shop.py:shop"` into tidemill.toml, or pass -f shop.py:shop'


class DeclarationError(PipelineError):
    """No default hint: the code that raises this error passes a hint."""

    code = "declaration"


class AppendRefused(PipelineError):
    code = "append-refused"
    hint = "change the rows to fit the table's schema; none of them was stored"


class NothingYet(PipelineError):
    code = "nothing-yet"
    hint = "append rows, or run the pipeline"


class ArcResult(PipelineError):
    code = "arc-result"
    hint = "return the declared columns; to change them, set schema=, or write to a new table"


class BackupRefused(PipelineError):
    """No default hint: the code that raises this error passes a hint."""

    code = "backup-refused"


class CodeDiffers(PipelineError):
    code = "code-differs"
    hint = "deploy the same pipeline code on every node"


class SourceError(TidemillError):
    code = "source"


class BadSource(SourceError):
    """No default hint: the code that raises this error passes a hint."""

    code = "bad-source"


class SourceUnavailable(SourceError):
    code = "source-unavailable"
    hint = "check the folder or bucket, its permissions and the network; Tidemill retries automatically"


class SourceFileChanged(SourceError):
    code = "source-file-changed"
    hint = "write files under a hidden name and rename them when complete; Tidemill reads the file again"


class SourceMiscounted(SourceError):
    code = "source-miscounted"
    hint = (
        "nothing was published; if the file did not change during the read, this is a bug in Tidemill:"
        " please report it with the file format"
    )


class PollRefused(SourceError):
    code = "poll-refused"
    hint = "nothing was ingested; compare the server's response with the declaration of the source"


class CheckpointGone(SourceError):
    code = "checkpoint-gone"
    hint = "the missing data cannot be recovered; use on_gone=… to choose where to continue"


class PushRefused(SourceError):
    code = "push-refused"
    hint = "send rows with the declared columns as JSON lines, a JSON array or an Arrow stream"


class PushBusy(SourceError):
    code = "push-busy"
    hint = "no rows of this request were stored; send the request again later"


class TraceError(TidemillError):
    code = "trace"


class TraceMissing(TraceError):
    code = "trace-missing"
    hint = "restore the object from a backup, or declare the view with a new name and a new group="


class TraceCorrupt(TraceError):
    code = "trace-corrupt"
    hint = "restore the object from a backup, or declare the view with a new name and a new group="


class TraceFormat(TraceError):
    code = "trace-format"
    hint = "another release wrote the file; use that release, or upgrade if this release is older"


class TraceStale(TraceError):
    code = "trace-stale"
    hint = "no action is needed: Tidemill runs the step again and rebuilds the trace"


class TypeRefused(TraceError):
    """No default hint: the code that raises this error passes a hint."""

    code = "trace-type-refused"


class WeightNegative(TraceError):
    """Tidemill quarantines rows that would cause this error, so this error is always a bug."""

    code = "trace-weight-negative"
    hint = "this is a bug in Tidemill, which should have put the row into quarantine; please report it"


class WeightOverflow(TraceError):
    code = "trace-weight-overflow"
    hint = "use smaller groups in GROUP BY, or append smaller changes"


class PageError(TidemillError):
    code = "page"
    hint = "check the address of the page, that `tidemill ui` is running, and the token"


class RunnerDied(TidemillError):
    code = "runner-died"
    exit_code = 3
    hint = (
        "a common cause is too little memory: give Spark more memory, or process less at a time; set"
        " TIDEMILL_DEBUG=1 to see all stack traces"
    )


class DemoFailed(TidemillError):
    code = "demo-failed"
    hint = "run the demo again with --keep, and check its log files"


class Stop(BaseException):
    """Ends the current work. It is not an Exception, so `except Exception` in user code does not catch it."""

    code: ClassVar[str] = "stop"


class SparkDied(Stop):
    """The Java process of Spark ended or is unusable, for example because memory or the disk was full.

    `tidemill run` starts another process and continues. In your own process, restart Python.
    """

    code = "spark-died"


class LeaseLost(Stop):
    """The lease is lost: it expired, was taken or was released. The holder stops immediately.

    No action is needed: another node continues the work.
    """

    code = "lease-lost"


_JAVA_FRAMES = re.compile(r"\n\s+at [\w$.<>/@-]+\([^\n]*\)|\n\s*\.\.\. \d+ more")
_MOST_JAVA_CHARS = 1000


def without_java_frames(text: str) -> str:
    r"""Return a message of Spark in one line, without Java's stack frames; other messages do not change.

    The middle of a long message is omitted. Its end is kept, because it names the cause.

    >>> without_java_frames("failed\n\tat a.B.c(B.java:1)\n\t... 3 more\nCaused by: No space left on device")
    'failed Caused by: No space left on device'
    >>> without_java_frames("two\nlines")
    'two\nlines'
    """
    short = _JAVA_FRAMES.sub("", text)
    if short == text:
        return text
    line = " ".join(short.split())
    half = _MOST_JAVA_CHARS // 2
    return line if len(line) <= _MOST_JAVA_CHARS else f"{line[:half]} … {line[-half:]}"


def describe(error: BaseException) -> str:
    """Return the type and the message of an error, without Java's stack frames.

    >>> describe(KeyError("day"))
    "KeyError: 'day'"
    """
    return f"{type(error).__name__}: {without_java_frames(str(error))}"


def describe_unexpected(error: BaseException) -> str:
    """Describe an error that no code expected, in one line: its type, its message and where it was raised.

    >>> try:
    ...     {}["day"]
    ... except KeyError as error:
    ...     describe_unexpected(error).partition(" (")[0]
    "KeyError: 'day'"

    The notes of the error say where it happened, such as the name of the thread.
    """
    text = " ".join(describe(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}" for frame in frames[-1:]]
    places = [*getattr(error, "__notes__", ()), *places]
    return f"{text} ({'; '.join(places)})" if places else text
