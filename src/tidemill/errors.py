"""Every error Tidemill raises, in one tree.

    TidemillError                     code, message, hint
    ├── IllegalTransition             a state machine was asked for an edge it does not have
    ├── UsageError                    the caller did something the contract forbids
    ├── BadUrl                        a store or objects URL that cannot be understood
    ├── MissingDriver                 the Python package that a backend needs is not installed
    ├── StoreError                    something about the store; the kinds below say what
    │   ├── StoreUnavailable          the store does not answer (now)
    │   ├── StoreBusy                 conflicts did not end within the retry limit
    │   ├── CommitUnknown             a commit whose outcome could not be learned
    │   ├── LimitExceeded             more than the store takes at once
    │   │   ├── KeyTooLarge           a key of more than 2 KiB
    │   │   ├── ValueTooLarge         a value of more than 64 KiB
    │   │   ├── TransactionTooLarge   more than 1,000 writes, or 1 MB of them
    │   │   └── TransactionTooLong    a transaction that took more than 2 s
    │   ├── StoreFull                 no space left where the store lives
    │   ├── StoreCorrupt              the store's own file or rows cannot be read
    │   ├── StoreFormat               written by a release this one cannot share it with
    │   └── StoreLocation             a network file system, or another machine's file
    ├── ObjectError                   something about object storage; the kinds below say what
    │   ├── BadKey                    a name that no object can have
    │   ├── ObjectMissing             no object under that key
    │   ├── ObjectConflict            a condition (if-match) did not hold
    │   ├── ObjectUnavailable         the object storage does not answer
    │   ├── ObjectsFull               no space left
    │   └── ConditionsIgnored         the provider accepts conditional writes and ignores them
    ├── ClusterError                  something about nodes and leases; the kinds below say what
    │   ├── NotLeader                 a leader's step without the leader's epoch
    │   ├── LockTimeout               a lock or permit that was not free in time
    │   └── ProtocolMismatch          nodes of releases that cannot work together
    ├── FutureError                   something about a future; the kinds below say what
    │   ├── FutureUnknown             no such future, or no longer
    │   ├── FutureFailed              it has no result and never will
    │   │   ├── UpstreamDependencyFailed  an input of it failed
    │   │   ├── UnsatisfiableError    no worker has what it asks for
    │   │   ├── TaskCrashed           it ended its worker process
    │   │   ├── TaskOutOfMemory       it took more memory than its limit, too often
    │   │   ├── DeadlineExceeded      its deadline passed before its end
    │   │   ├── CodeNotLoadable       the workers cannot load its code
    │   │   └── ResultLost            every copy is gone and cannot be computed again
    │   ├── FutureCancelled           somebody cancelled it
    │   ├── FutureTimeout             the caller's own wait is over; the future goes on
    │   ├── ActorDied                 an actor is dead, and its state with it
    │   ├── CannotSerialize           a function or value that no other process could load
    │   ├── BadSignature              code that was not signed with the cluster key
    │   ├── ClusterKeyMissing         no cluster key was given
    │   ├── ClusterKeyUnsafe          a key that others can read, or that is none
    │   ├── BlobMissing               code or arguments that are not where they were stored
    │   ├── CopyGone                  this copy of a result is not there any more
    │   ├── CopyCorrupt               this copy of a result is not what was stored
    │   ├── SegmentsFull              no room left for results on this node
    │   ├── FetchFailed               another node's copy could not be fetched (now)
    │   └── FetchRefused              a node that has not the cluster's key
    ├── LotError                      something about lots; the kinds below say what
    │   ├── BadLotId                  a text that names no lot, or not in its one spelling
    │   ├── BadName                   a name that nothing can have
    │   ├── ManifestUnreadable        a manifest of a newer format, or none at all
    │   ├── BadDataset                a declaration that contradicts itself
    │   ├── DatasetUnknown            nobody declared it
    │   ├── DatasetChanged            declared again, and differently
    │   ├── LotUnknown                no such lot, or not in that generation
    │   ├── NoLots                    a range in which there is no lot
    │   ├── LotConflict               a generation that is not the next one of its lot
    │   ├── BadCheck                  a check that contradicts itself, or of columns that are not there
    │   ├── CheckFailed               rows that do not pass a check, and so are not published
    │   ├── ProducerConflict          a sequence number that was used for other data, or skipped
    │   └── IntervalConflict          an interval that is not the one to seal or close now
    ├── SparkError                    something about Spark; the kinds below say what
    │   ├── JavaMissing               no Java runtime to start Spark with
    │   ├── SparkUnavailable          Spark does not start, or does not answer
    │   ├── SessionUnfit              a session that cannot be used, with the reasons
    │   ├── BadSchema                 a schema that cannot be understood, or columns that are not those of it
    │   ├── ObjectUnreadable          an object of a lot that Spark cannot read
    │   ├── FileUnlike                a file whose columns are not plainly those declared; Spark reads it
    │   └── WriteMismatch             what was written is not what was computed
    ├── SubscriptionError             something about a subscription; the kinds below say what
    │   ├── SubscriptionUnknown       no such subscription, or no longer
    │   ├── SubscriptionChanged       made again, and differently
    │   ├── BadTemplate               a pattern or a target that no template can have
    │   ├── TemplateUnknown           no such template, or no longer
    │   ├── TemplateChanged           declared again, and differently
    │   ├── TemplateChild             it descends from a template that is there
    │   ├── BadSchedule               a cron expression or a time zone that cannot be understood
    │   └── HeapDiffers               this runner has another heap than its cluster
    ├── PublishError                  something about publishing; the kinds below say what
    │   ├── CorrectionRefused         a lot that cannot be replaced or taken back so
    │   ├── AttemptUnknown            no such attempt, or no longer
    │   ├── AttemptEnded              it was published or abandoned already
    │   └── AttemptDamaged            objects that it wrote are not there any more
    ├── ArcError                      something about an arc; the kinds below say what
    │   ├── ArcUnknown                nobody declared it
    │   ├── BadArc                    a declaration that contradicts itself
    │   └── ArcLotConflict            its lot is not in a state for what was asked
    ├── ViewError                     something about views; the kinds below say what
    │   ├── GroupUnknown              no such group of views
    │   ├── StepConflict              a step that is not the group's next one, or not as it was begun
    │   ├── StepLost                  a step some of whose tasks told nothing, or told it twice
    │   ├── ViewFailed                a view that cannot be computed of the rows that are there
    │   └── ViewRefused               a view that cannot be kept, or a change of it that cannot be made
    ├── QueryError                    a query that cannot be a view; the kinds below say why, and where
    │   ├── QuerySyntax               text that is not Spark SQL
    │   ├── NameUnknown               a table or a column that is not there
    │   ├── NameAmbiguous             a name that stands for several columns
    │   ├── QueryRefused              Spark refuses it, or a view of it could not be kept
    │   └── NotIncremental            `refresh="incremental"`, and a part that can only be recomputed
    ├── PipelineError                 something about a pipeline; the kinds below say what
    │   ├── PipelineNotFound          no pipeline where one was looked for
    │   ├── DeclarationError          a declaration that cannot be carried out; says the line
    │   ├── AppendRefused             rows that do not fit their table
    │   ├── NothingYet                a table that was never written
    │   ├── ArcResult                 an arc returned something else than it was to
    │   └── CodeDiffers               a runner has other code for what it was given
    ├── SourceError                   something about a source; the kinds below say what
    │   ├── BadSource                 a declaration of a source that contradicts itself
    │   ├── SourceUnavailable         its folder or bucket cannot be listed (now)
    │   ├── SourceFileChanged         a file is not what was listed any more, or is gone
    │   ├── SourceMiscounted          what was read twice was not the same
    │   ├── PollRefused               an answer that is not what it says, or not what was asked for
    │   ├── MarkGone                  what a source had come to is not there any more
    │   ├── PushRefused               a request whose body is not rows of its dataset
    │   └── PushBusy                  more requests wait than are kept
    ├── TraceError                    something about the state of a view; the kinds below say what
    │   ├── TraceMissing              a run file or version file that is listed, and not there
    │   ├── TraceCorrupt              a run file or version file that is not what was written
    │   ├── TraceFormat               a run file or version file that this release cannot read
    │   ├── TraceStale                a trace that is not at the step it is asked for
    │   ├── TypeRefused               a type that cannot be compared, ordered or added up
    │   ├── WeightNegative            rows of which fewer than none would be left
    │   └── WeightOverflow            a weight or a sum beyond what its accumulator holds
    ├── RunnerDied                    the children of a runner died one after the other
    └── DemoFailed                    the demo did not come to its end

    Stop(BaseException)               control flow that user code must not swallow
    └── LeaseLost                     the lease is no longer ours: stop at once

Each class has a stable `code`, a message that says what happened and a hint that says what to do; one without
a hint says in its docstring why.
"""

from typing import Any, ClassVar


class TidemillError(Exception):
    """The base of all errors. `str(error)` is the message, then the hint on a line of its own."""

    code: ClassVar[str] = "tidemill"
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class IllegalTransition(TidemillError):
    """No hint: states are changed by Tidemill alone, so this is a bug of ours, to report."""

    code = "illegal-transition"


class UsageError(TidemillError):
    """No hint of its own: what to do instead is known where it is raised, and said there."""

    code = "usage"


class BadUrl(TidemillError):
    code = "bad-url"
    hint = (
        "use memory://, sqlite:///path/file.db, postgresql://user@host/db or foundationdb:///etc/fdb.cluster"
    )


class MissingDriver(TidemillError):
    """No hint of its own: which package to install is said where it is raised."""

    code = "missing-driver"


class StoreError(TidemillError):
    code = "store"


class StoreUnavailable(StoreError):
    code = "store-unavailable"
    hint = "check that the server runs and can be reached; the call may be repeated"


class StoreBusy(StoreError):
    code = "store-busy"
    hint = "many writers touch the same keys; the call may be repeated"


class CommitUnknown(StoreError):
    code = "store-commit-unknown"
    hint = "the store went away during a commit and has not come back; read before you repeat"


class LimitExceeded(StoreError):
    code = "store-limit"


class KeyTooLarge(LimitExceeded):
    code = "store-key-too-large"
    hint = "keys have at most 2 KiB: use a shorter name or id"


class ValueTooLarge(LimitExceeded):
    code = "store-value-too-large"
    hint = "values have at most 64 KiB: put the body into object storage and store its name"


class TransactionTooLarge(LimitExceeded):
    code = "store-transaction-too-large"
    hint = "a transaction has at most 1,000 writes and 1 MB: work in pages and leave a cursor row"


class TransactionTooLong(LimitExceeded):
    code = "store-transaction-too-long"
    hint = "a transaction lasts at most 2 s: do slow work before or after it"


class StoreFull(StoreError):
    code = "store-full"
    hint = "free some space on that disk; nothing was lost, the last commit stands"


class StoreCorrupt(StoreError):
    code = "store-corrupt"
    hint = "restore the store from its backup; do not delete the file, it may be recoverable"


class StoreFormat(StoreError):
    code = "store-format"
    hint = "this store was written by a newer release: upgrade Tidemill on this machine"


class StoreLocation(StoreError):
    code = "store-location"
    hint = "keep the file on a local disk of one machine; for several machines use postgresql://"


class ObjectError(TidemillError):
    code = "objects"


class BadKey(ObjectError):
    code = "object-bad-key"
    hint = "keys are names joined by '/', without '.', '..', empty names, backslashes or control characters"


class ObjectMissing(ObjectError):
    """No hint: whether a missing object is a loss or a question answered, only the caller knows."""

    code = "object-missing"


class ObjectConflict(ObjectError):
    """No hint: it is the answer to a conditional write, for the caller to act upon."""

    code = "object-conflict"


class ObjectUnavailable(ObjectError):
    code = "objects-unavailable"
    hint = "check the endpoint, the bucket and the credentials; the call may be repeated"


class ObjectsFull(ObjectError):
    code = "objects-full"
    hint = "free some space on that disk; what was written before is whole"


class ConditionsIgnored(ObjectError):
    code = "objects-conditions-ignored"
    hint = "use a provider with conditional writes (If-None-Match, If-Match): S3, GCS, Azure, MinIO"


class ClusterError(TidemillError):
    code = "cluster"


class NotLeader(ClusterError):
    """No hint: another node leads now and does the step; nobody has to do anything."""

    code = "cluster-not-leader"


class LockTimeout(ClusterError):
    code = "cluster-lock-timeout"
    hint = "its holder is still at work; wait longer, or see who holds it"


class ProtocolMismatch(ClusterError):
    code = "cluster-protocol"
    hint = "run releases that are at most one apart in one cluster"


class FutureError(TidemillError):
    """`failure` is the stored record of what happened (`futures.rows.Failure`), where there is one."""

    code = "future"
    failure: Any = None


class FutureUnknown(FutureError):
    code = "future-unknown"
    hint = "ended futures are kept for 24 h, or as long as a handle or a dependent needs them"


class FutureFailed(FutureError):
    """A future that has no result and never will. `__cause__` is the exception, if it could be loaded."""

    code = "future-failed"
    hint = "see the remote traceback: tidemill futures show ID"


class UpstreamDependencyFailed(FutureFailed):
    """`chain` names the futures from the nearest input to the one that failed first."""

    code = "future-upstream-failed"
    hint = "mend the first future of the chain, then submit again"
    chain: tuple[str, ...] = ()


class UnsatisfiableError(FutureFailed):
    code = "future-unsatisfiable"
    hint = "ask for less, start a worker that has it, or submit with on_unsatisfiable='wait'"


class TaskCrashed(FutureFailed):
    code = "future-crashed"
    hint = "the task ended its worker process; after a fix: tidemill futures requeue ID"


class TaskOutOfMemory(FutureFailed):
    code = "future-out-of-memory"
    hint = "submit with ram=… and start a worker that has it"


class DeadlineExceeded(FutureFailed):
    code = "future-deadline"
    hint = "give it more time, or more workers"


class CodeNotLoadable(FutureFailed):
    """`module` is the module that is missing, if that is the reason."""

    module: str = ""
    code = "future-code-not-loadable"
    hint = "install the missing module on the workers, with the same Python version"


class ResultLost(FutureFailed):
    code = "future-result-lost"
    hint = "put values with durable=True, or compute them by a future, which can be computed again"


class FutureCancelled(FutureError):
    """No hint: somebody wanted it so."""

    code = "future-cancelled"


class FutureTimeout(FutureError, TimeoutError):
    code = "future-timeout"
    hint = "the future goes on; ask again, or cancel it"


class ActorDied(FutureError):
    code = "actor-died"
    hint = "its state is gone: create the actor again"


class CannotSerialize(FutureError):
    code = "cannot-serialize"
    hint = "pass plain values or futures; open files, locks and connections inside the function"


class BadSignature(FutureError):
    code = "bad-signature"
    hint = "every node and client needs the same cluster key; code that is not signed with it never runs"


class ClusterKeyMissing(FutureError):
    code = "cluster-key-missing"
    hint = (
        "set TIDEMILL_CLUSTER_KEY or TIDEMILL_CLUSTER_KEY_FILE to the key of the cluster; a home has its own"
    )


class ClusterKeyUnsafe(FutureError):
    code = "cluster-key-unsafe"
    hint = "the key is 64 or more hexadecimal digits in a file that only its owner can read (chmod 600)"


class BlobMissing(FutureError):
    code = "blob-missing"
    hint = "workers and clients need the same objects; submit again from a client that has the function"


class CopyGone(FutureError):
    """No hint: whoever reads a result looks for another copy, or has it computed again."""

    code = "copy-gone"


class CopyCorrupt(FutureError):
    """No hint: a copy like that counts as gone."""

    code = "copy-corrupt"


class SegmentsFull(FutureError):
    code = "segments-full"
    hint = "drop handles of large results, give the worker more memory for them, or a folder to spill to"


class FetchFailed(FutureError):
    code = "fetch-failed"
    hint = "check that the node runs and can be reached; the call may be repeated"


class FetchRefused(FutureError):
    code = "fetch-refused"
    hint = "every node and client needs the same cluster key, and between hosts a certificate"


class LotError(TidemillError):
    """No hint of its own: each kind has one."""

    code = "lot"


class BadLotId(LotError):
    code = "bad-lot-id"
    hint = "a day, a unit and a place in the day: 20230101PT5M050; or a day: 20230101"


class BadName(LotError):
    code = "bad-name"
    hint = "use a short, non-empty name"


class ManifestUnreadable(LotError):
    code = "manifest-unreadable"
    hint = "restore the object from its backup, or replay the lot"


class BadDataset(LotError):
    """No hint of its own: what contradicts what is said where it is raised."""

    code = "bad-dataset"


class DatasetUnknown(LotError):
    code = "dataset-unknown"
    hint = "declare it first: pipeline.dataset(name, schema)"


class DatasetChanged(LotError):
    code = "dataset-changed"
    hint = "declare it as it was, or under a new version: lots of both stay readable"


class LotUnknown(LotError):
    code = "lot-unknown"
    hint = "see which lots there are: tidemill lots TABLE"


class NoLots(LotError):
    code = "no-lots"
    hint = "see `tidemill lots`"


class LotConflict(LotError):
    code = "lot-conflict"
    hint = "somebody published this lot meanwhile: read it again; to change it, open a new generation"


class BadCheck(LotError):
    code = "bad-check"
    hint = "not_null(columns), unique(columns), expect(condition) or rows(at_least=…)"


class CheckFailed(LotError):
    code = "check-failed"
    hint = "mend the rows, or have the check warn or drop: on_fail='drop'"


class ProducerConflict(LotError):
    code = "producer-conflict"
    hint = "number appends upwards, each number for one batch; a repeated one must carry the same rows"


class IntervalConflict(LotError):
    """No hint: another runner closes the interval, or will when it is its turn; nobody has to do anything."""

    code = "interval-conflict"


class SparkError(TidemillError):
    """No hint of its own: each kind has one."""

    code = "spark"


class JavaMissing(SparkError):
    code = "java-missing"
    hint = "pip install 'tidemill[local]' brings a Java runtime; or install Java 17 or newer"


class SparkUnavailable(SparkError):
    code = "spark-unavailable"
    hint = "check the address of the master or the Spark Connect server, and that it runs"


class SessionUnfit(SparkError):
    code = "spark-session-unfit"
    hint = "upgrade that Spark, or give none: then Tidemill starts its own"


class BadSchema(SparkError):
    code = "bad-schema"
    hint = "write columns as Spark does: 'id BIGINT, `a name` STRING, tags ARRAY<STRING>'"


class ObjectUnreadable(SparkError):
    """`key` names the object, where that is known."""

    key: str = ""
    code = "object-unreadable"
    hint = "restore the object from its backup, or replay the lot it belongs to"


class FileUnlike(SparkError):
    """Told to nobody: whoever reads with Arrow asks Spark instead."""

    code = "file-unlike"
    hint = "nothing is to be done: Spark reads the file instead"


class WriteMismatch(SparkError):
    code = "write-mismatch"
    hint = "nothing was published; run it again, and if it happens again report it"


class SubscriptionError(TidemillError):
    """No hint of its own: each kind has one."""

    code = "subscription"


class SubscriptionUnknown(SubscriptionError):
    code = "subscription-unknown"
    hint = "see which there are: tidemill triggers"


class SubscriptionChanged(SubscriptionError):
    code = "subscription-changed"
    hint = "remove it first, or make one under another name: its progress belongs to its sources"


class BadTemplate(SubscriptionError):
    """No hint of its own: what is wrong with it is said where it is raised."""

    code = "bad-template"


class TemplateUnknown(SubscriptionError):
    code = "template-unknown"
    hint = "see which there are: tidemill triggers"


class TemplateChanged(SubscriptionError):
    code = "template-changed"
    hint = "declare it as it was, or under another name: its subscriptions belong to its pattern"


class TemplateChild(SubscriptionError):
    code = "template-child"
    hint = "remove the template first; or pause the subscription"


class BadSchedule(SubscriptionError):
    code = "bad-schedule"
    hint = "five fields: minute hour day-of-month month day-of-week, e.g. '30 6 * * mon-fri'; or @daily"


class HeapDiffers(SubscriptionError):
    code = "heap-differs"
    hint = "give it the heap of its cluster; to move that, stop all runners, then: tidemill triggers rebuild"


class PublishError(TidemillError):
    """No hint of its own: each kind has one."""

    code = "publish"


class CorrectionRefused(PublishError):
    code = "correction-refused"
    hint = "look at the lot once more, and correct what is there now"


class AttemptUnknown(PublishError):
    code = "attempt-unknown"
    hint = "abandoned attempts are forgotten when their data is removed; open a new one"


class AttemptEnded(PublishError):
    code = "attempt-ended"
    hint = "an attempt is published once, and never after it was abandoned; open a new one"


class AttemptDamaged(PublishError):
    code = "attempt-damaged"
    hint = "nothing to do: it is abandoned, and a new attempt makes everything again"


class ArcError(TidemillError):
    """No hint of its own: each kind has one."""

    code = "arc"


class ArcUnknown(ArcError):
    code = "arc-unknown"
    hint = "see which there are: tidemill ls"


class BadArc(ArcError):
    """No hint of its own: what contradicts what is said where it is raised."""

    code = "bad-arc"


class ArcLotConflict(ArcError):
    code = "arc-lot-conflict"
    hint = "partial and missing lots can be retried, partial ones cleaned: see tidemill lots TABLE"


class ViewError(TidemillError):
    """No hint of its own: each kind has one."""

    code = "view"


class GroupUnknown(ViewError):
    code = "group-unknown"
    hint = "declare its views first: pipeline.view(name, sql)"


class StepConflict(ViewError):
    """No hint: the run that meets it fails, and the next one begins where the group is."""

    code = "step-conflict"


class StepLost(ViewError):
    code = "step-lost"
    hint = "the step is run again; if it goes on, look into Spark's log for tasks that end early"


class ViewFailed(ViewError):
    code = "view-failed"
    hint = "mend the query, or correct the rows it fails on; the step is run again, and none of it was kept"


class ViewRefused(ViewError):
    """No hint of its own: what to do instead is said where it is raised."""

    code = "view-refused"


class QueryError(TidemillError):
    """`line` and `column` count from 1 and say where in the query, 0 if it is not in one place."""

    code = "query"
    hint = "see the place that is named; it is Spark SQL"
    line: int = 0
    column: int = 0


class QuerySyntax(QueryError):
    code = "query-syntax"
    hint = "see the place that is named; it must be one query of Spark SQL"


class NameUnknown(QueryError):
    """`name` is what was looked for, `near` the names that are there and look like it."""

    code = "name-unknown"
    hint = "see which there are: tidemill ls"
    name: str = ""
    near: tuple[str, ...] = ()


class NameAmbiguous(QueryError):
    code = "name-ambiguous"
    hint = "say which one: write the table's name or alias before the column"
    name: str = ""


class QueryRefused(QueryError):
    code = "query-refused"
    hint = "see the place that is named, and Spark's own words"


class NotIncremental(QueryError):
    code = "not-incremental"
    hint = "rewrite the part that is named, or keep the view with refresh='auto'"


class PipelineError(TidemillError):
    code = "pipeline"


class PipelineNotFound(PipelineError):
    code = "pipeline-not-found"
    hint = 'write `pipeline = "shop.py:shop"` into tidemill.toml, or give -f shop.py:shop'


class DeclarationError(PipelineError):
    """No hint of its own: what to declare instead is known where it is raised, and said there."""

    code = "declaration"


class AppendRefused(PipelineError):
    code = "append-refused"
    hint = "make the rows fit the table's schema; nothing of them was stored"


class NothingYet(PipelineError):
    code = "nothing-yet"
    hint = "append something, or run the pipeline"


class ArcResult(PipelineError):
    code = "arc-result"
    hint = "return what its sinks are declared with; a change of columns needs a new table, or schema="


class CodeDiffers(PipelineError):
    code = "code-differs"
    hint = "run the same release of the pipeline on every node"


class SourceError(TidemillError):
    """No hint of its own: each kind has one."""

    code = "source"


class BadSource(SourceError):
    """No hint of its own: what to write instead is said where it is raised."""

    code = "bad-source"


class SourceUnavailable(SourceError):
    code = "source-unavailable"
    hint = "check the folder or bucket, its permissions and the network; it is listed again by itself"


class SourceFileChanged(SourceError):
    code = "source-file-changed"
    hint = "write files under a hidden name and rename them when they are whole; it is taken when it settles"


class SourceMiscounted(SourceError):
    code = "source-miscounted"
    hint = "nothing was published; if no file changes while it is read, report this with the files' format"


class PollRefused(SourceError):
    code = "poll-refused"
    hint = "nothing was taken; see what the address answers, and what the source was declared to take"


class MarkGone(SourceError):
    code = "mark-gone"
    hint = "what is missing cannot be had any more; say where to go on: on_gone=…"


class PushRefused(SourceError):
    code = "push-refused"
    hint = "send rows of the declared columns as JSON lines, a JSON array or an Arrow stream"


class PushBusy(SourceError):
    code = "push-busy"
    hint = "send it again after a moment; nothing of it was taken"


class TraceError(TidemillError):
    code = "trace"


class TraceMissing(TraceError):
    code = "trace-missing"
    hint = "the version before it still serves; restore the object, or rebuild the view with `refresh = full`"


class TraceCorrupt(TraceError):
    code = "trace-corrupt"
    hint = "the version before it still serves; restore the object, or rebuild the view with `refresh = full`"


class TraceFormat(TraceError):
    code = "trace-format"
    hint = "it was written by another release: use that one, or a newer one"


class TraceStale(TraceError):
    code = "trace-stale"
    hint = "the step is run again in full, which brings the trace up to date"


class TypeRefused(TraceError):
    """No hint of its own: what the operator can do instead is said where it is raised."""

    code = "trace-type-refused"


class WeightNegative(TraceError):
    """No hint: source operators set such rows aside, so this is a bug of ours, to report."""

    code = "trace-weight-negative"


class WeightOverflow(TraceError):
    code = "trace-weight-overflow"
    hint = "so many equal rows do not fit 64 bits: add up earlier, or divide the group"


class RunnerDied(TidemillError):
    code = "runner-died"
    hint = "see what the last of them wrote to standard error; out of memory is the most frequent reason"


class DemoFailed(TidemillError):
    code = "demo-failed"
    hint = "run it again with --keep and see what the nodes wrote into their log files"


class Stop(BaseException):
    """Control flow that ends the work at hand; not an Exception, so that user code cannot swallow it."""

    code: ClassVar[str] = "stop"


class LeaseLost(Stop):
    """The lease is no longer ours (expired, taken or released): the holder stops at once."""

    code = "lease-lost"
