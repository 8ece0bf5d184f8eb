"""Define `tidemill worker`: claim futures of one cluster and run them in child processes."""

import functools
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tidemill.cli.options import ttl_option
from tidemill.cli.output import CommandOutput, json_events_option
from tidemill.errors import UsageError
from tidemill.events import Event
from tidemill.futures.home import CLUSTER, ClusterAddress
from tidemill.futures.worker.zygote import Zygote

if TYPE_CHECKING:
    from tidemill.futures.worker.worker import Serving

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class ByteSize(click.ParamType[int]):
    """A number of bytes: 512MB, 4GB, 1073741824."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size; write it like 512MB or 4GB", param, ctx)
        return int(float(match["number"]) * _UNITS[match["unit"].lower()])


SIZE = ByteSize()


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that select the worker's cluster."""

    home: str | None
    store: str | None
    objects: str | None
    key_file: str | None
    cluster: str

    def place(self) -> ClusterAddress:
        """Return the address of the cluster. A home has its own store and objects."""
        return ClusterAddress.of(
            home=self.home,
            store=None if self.home is not None else self.store,
            objects=None if self.home is not None else self.objects,
            cluster=self.cluster,
            key_file=self.key_file,
        )


class CapacityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a worker offers to tasks, and where it stores their results."""

    slots: int
    cpu: float
    ram: int
    gpu: float
    named: tuple[str, ...]
    results_bytes: int
    spill: str


class ServingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The address and the certificates for serving results to other hosts."""

    listen: str
    certificate: tuple[str, str] | None
    advertise: str
    trust: str | None

    def serving(self) -> "Serving | None":
        """Return how to serve results to other hosts; None if the worker serves only its own host."""
        from tidemill.futures.worker.worker import Serving

        trust = self.trust or ""
        if not self.listen:
            return Serving(roots=trust) if trust else None
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(
                f"invalid address: --listen {self.listen}",
                hint="write HOST:PORT, e.g. 10.0.0.7:7070; port 0 means any free port",
            )
        chain, key = self.certificate or ("", "")
        return Serving(
            host=host.strip("[]"), port=int(port), chain=chain, key=key, advertise=self.advertise, roots=trust
        )


class TimeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long a worker waits for tasks, and how long other nodes wait for the worker."""

    grace_s: float
    cancel_grace_s: float
    max_waiting: int
    ttl_s: float


Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def grouped(name: str, kind: type[msgspec.Struct], *options: Decorator) -> Decorator:
    """Add options to a command, which receives all of them as one argument, an object of type `kind`.

    - name: the name of that argument.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(*args: Any, **kwargs: Any) -> Any:
            values = {field: kwargs.pop(field) for field in kind.__struct_fields__}
            return command(*args, **{name: kind(**values)}, **kwargs)

        wrapped: Command = call
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate


cluster_options = grouped(
    "cluster",
    ClusterOptions,
    click.option("--home", type=click.Path(), help="The home folder of the cluster. Created if missing."),
    click.option(
        "--store", envvar="TIDEMILL_STORE", show_envvar=True, help="The URL of the store, instead of --home."
    ),
    click.option(
        "--objects",
        envvar="TIDEMILL_OBJECTS",
        show_envvar=True,
        help="The URL of the object storage. Use together with --store.",
    ),
    click.option(
        "--key-file", type=click.Path(), help="The file with the cluster key. Not needed with --home."
    ),
    click.option(
        "--cluster", default=CLUSTER, show_default=True, help="The name of the cluster in the store."
    ),
)

capacity_options = grouped(
    "capacity",
    CapacityOptions,
    click.option(
        "--slots",
        type=click.IntRange(1, 1_000),
        default=1,
        show_default=True,
        help="Maximum number of tasks to run in parallel.",
    ),
    click.option(
        "--cpu", type=click.FloatRange(0), default=0.0, help="Number of CPUs for tasks. Default: all."
    ),
    click.option("--ram", type=SIZE, default=0, help="Memory for tasks, e.g. 4GB. Default: all."),
    click.option(
        "--gpu", type=click.FloatRange(0), default=0.0, help="Number of GPUs for tasks. Default: none."
    ),
    click.option(
        "--resource",
        "named",
        multiple=True,
        metavar="NAME",
        help="A named resource that this worker offers to tasks. Can be repeated.",
    ),
    click.option(
        "--results",
        "results_bytes",
        type=SIZE,
        default=0,
        help="Memory for results. Default: half of --ram.",
    ),
    click.option(
        "--spill", type=click.Path(), default="", help="A folder for results that do not fit in memory."
    ),
)

serving_options = grouped(
    "serving",
    ServingOptions,
    click.option("--listen", default="", help="Serve results to other hosts at this HOST:PORT."),
    click.option(
        "--certificate",
        nargs=2,
        type=click.Path(exists=True),
        help="Files with the certificate chain and the private key for --listen (PEM).",
    ),
    click.option(
        "--advertise", default="", help="The host name that other hosts use to reach the address in --listen."
    ),
    click.option(
        "--trust",
        type=click.Path(exists=True),
        help="A file with certificates to trust when fetching from other workers (PEM).",
    ),
)

time_options = grouped(
    "times",
    TimeOptions,
    click.option(
        "--grace",
        "grace_s",
        type=click.FloatRange(0),
        default=30.0,
        show_default=True,
        help="Grace period: seconds that running tasks may take to finish after SIGTERM.",
    ),
    click.option(
        "--cancel-grace",
        "cancel_grace_s",
        type=click.FloatRange(0),
        default=5.0,
        show_default=True,
        help="Seconds that a cancelled task may take to stop before it is killed.",
    ),
    click.option(
        "--max-waiting",
        type=click.IntRange(1),
        default=32,
        show_default=True,
        help="Maximum number of tasks whose process stays alive while they wait for other tasks. If more"
        " tasks wait, the worker ends the process of one of them. That task starts again from its beginning"
        " when the tasks that it waits for have finished.",
    ),
    ttl_option("worker"),
)


@click.command()
@cluster_options
@capacity_options
@serving_options
@time_options
@click.option(
    "--spark",
    "pipeline",
    metavar="FILE[:NAME]",
    help="Help the runners of this pipeline: take parts of the lots that they are processing, and run nothing"
    " else. The parts run in threads that share one Spark session, not in child processes; --slots sets the"
    " number of threads.",
)
@click.option(
    "--with-parent",
    is_flag=True,
    help="Drain when standard input is closed, for example because the parent process ended.",
)
@click.option(
    "--quiet", is_flag=True, help="Do not print events as text. The output of --json does not change."
)
@json_events_option
def worker(
    output: CommandOutput,
    cluster: ClusterOptions,
    capacity: CapacityOptions,
    serving: ServingOptions,
    times: TimeOptions,
    pipeline: str | None,
    with_parent: bool,
    quiet: bool,
) -> int | None:
    """Run futures in child processes until SIGTERM.

    The first SIGTERM drains the worker: it takes no new tasks, running tasks may finish within the
    grace period, and unfinished tasks return to the queue. A second SIGTERM ends the grace period.
    """
    if pipeline is not None:
        if cluster.home is not None:
            raise UsageError(
                "--home cannot be used with --spark", hint="omit --home; the pipeline declares its own"
            )
        from tidemill.cli.run import run_pipeline

        return run_pipeline(
            pipeline,
            output,
            watch=True,
            starts=False,
            threads=capacity.slots,
            grace_s=times.grace_s,
            ttl_s=times.ttl_s,
            quiet=quiet,
        )
    place = cluster.place()
    zygote = Zygote()  # starts early, because it imports modules at the same time as this process
    from tidemill.cluster.leases import LeaseTiming
    from tidemill.futures.worker.settings import WorkerSettings
    from tidemill.futures.worker.worker import WorkerOptions, run_worker

    options = WorkerOptions(
        **msgspec.structs.asdict(capacity),
        serving=serving.serving(),
        with_parent=with_parent,
        settings=WorkerSettings(
            grace_s=times.grace_s,
            cancel_grace_s=times.cancel_grace_s,
            max_waiting=times.max_waiting,
            timing=LeaseTiming(times.ttl_s),
        ),
    )

    def write(event: Event) -> None:
        if output.json:
            sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
            sys.stdout.flush()
        elif not quiet:
            output.stderr.print(f"[dim]{type(event).__name__}[/dim] {_fields(event)}")

    run_worker(place, options, zygote=zygote, emit=write)
    return None


def _fields(event: Event) -> str:
    fields = msgspec.to_builtins(event)
    return " ".join(f"{name}={value}" for name, value in fields.items() if name != "type")
