"""`tidemill worker`: claims futures of one cluster and runs them in child processes."""

import re
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from tidemill.cli.output import Output, json_option
from tidemill.errors import UsageError
from tidemill.events import Event
from tidemill.futures.home import CLUSTER, Place
from tidemill.futures.worker.zygote import Zygote

if TYPE_CHECKING:
    from tidemill.futures.worker.worker import Serving

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class Size(click.ParamType[int]):
    """A number of bytes: 512MB, 4GB, 1073741824."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a size, like 512MB or 4GB", param, ctx)
        return int(float(found["number"]) * _UNITS[found["unit"].lower()])


SIZE = Size()


@click.command()
@click.option("--home", type=click.Path(), help="The cluster's home: a folder; made if missing.")
@click.option(
    "--store", envvar="TIDEMILL_STORE", show_envvar=True, help="The store's URL, instead of a home."
)
@click.option("--objects", envvar="TIDEMILL_OBJECTS", show_envvar=True, help="The objects' URL.")
@click.option("--key-file", type=click.Path(), help="The file of the cluster key; a home has its own.")
@click.option("--cluster", default=CLUSTER, show_default=True, help="The cluster's name in the store.")
@click.option("--slots", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Tasks at once.")
@click.option("--cpu", type=click.FloatRange(0), default=0.0, help="CPUs to give away; all by default.")
@click.option("--ram", type=SIZE, default=0, help="Memory to give away, e.g. 4GB; all by default.")
@click.option("--gpu", type=click.FloatRange(0), default=0.0, help="GPUs to give away; none by default.")
@click.option("--name", "named", multiple=True, help="A resource by its name that tasks may ask for.")
@click.option("--results", "results_bytes", type=SIZE, default=0, help="Memory for results; half by default.")
@click.option(
    "--spill", type=click.Path(), default="", help="A folder for results that memory is too small for."
)
@click.option("--listen", default="", help="HOST:PORT to serve results to other hosts at.")
@click.option(
    "--certificate", nargs=2, type=click.Path(exists=True), help="Chain and key for --listen (PEM)."
)
@click.option("--advertise", default="", help="The name other hosts reach --listen by.")
@click.option("--trust", type=click.Path(exists=True), help="Certificates to trust (PEM).")
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds for running tasks after SIGTERM.",
)
@click.option(
    "--cancel-grace",
    "cancel_grace_s",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Seconds between asking a task to end and killing it.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Tasks that wait for others and keep their process.",
)
@click.option(
    "--ttl",
    "ttl_s",
    type=click.FloatRange(3.0),
    default=15.0,
    show_default=True,
    help="Seconds after which a silent worker counts as dead.",
)
@click.option(
    "--spark",
    "pipeline",
    metavar="FILE[:NAME]",
    help="Make parts of this pipeline, in --slots threads around one Spark session, and run nothing else.",
)
@click.option("--with-parent", is_flag=True, help="Drain when standard input is closed.")
@click.option("--quiet", is_flag=True, help="Tell nothing of what happens.")
@json_option
def worker(
    output: Output,
    home: str | None,
    store: str | None,
    objects: str | None,
    key_file: str | None,
    cluster: str,
    slots: int,
    cpu: float,
    ram: int,
    gpu: float,
    named: tuple[str, ...],
    results_bytes: int,
    spill: str,
    listen: str,
    certificate: tuple[str, str] | None,
    advertise: str,
    trust: str | None,
    grace_s: float,
    cancel_grace_s: float,
    max_waiting: int,
    ttl_s: float,
    pipeline: str | None,
    with_parent: bool,
    quiet: bool,
) -> int | None:
    """Run futures: a supervisor and its child processes, until SIGTERM.

    A first SIGTERM drains: nothing new is taken, what runs may finish within the grace, the rest is given
    back. A second one ends the grace. With --json every event is one JSON object on a line of its own.
    """
    if pipeline is not None:
        if home is not None:
            raise UsageError("a pipeline knows its home", hint="leave --home out with --spark")
        from tidemill.cli.run import run_pipeline

        return run_pipeline(
            pipeline,
            output,
            watch=True,
            starts=False,
            threads=slots,
            grace_s=grace_s,
            ttl_s=ttl_s,
            quiet=quiet,
        )
    place = Place.of(
        home=home,
        store=None if home is not None else store,
        objects=None if home is not None else objects,
        cluster=cluster,
        key_file=key_file,
    )
    zygote = Zygote()  # it imports while we do
    from tidemill.cluster.leases import LeaseTiming
    from tidemill.futures.worker.settings import Settings
    from tidemill.futures.worker.worker import WorkerOptions, run_worker

    options = WorkerOptions(
        slots=slots,
        cpu=cpu,
        ram=ram,
        gpu=gpu,
        named=named,
        results_bytes=results_bytes,
        spill=spill,
        serving=_serving(listen, certificate, advertise, trust or ""),
        with_parent=with_parent,
        settings=Settings(
            grace_s=grace_s,
            cancel_grace_s=cancel_grace_s,
            max_waiting=max_waiting,
            timing=LeaseTiming(ttl_s),
        ),
    )

    def tell(event: Event) -> None:
        if output.json:
            sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
            sys.stdout.flush()
        elif not quiet:
            output.stderr.print(f"[dim]{type(event).__name__}[/dim] {_said(event)}")

    run_worker(place, options, zygote=zygote, emit=tell)
    return None


def _said(event: Event) -> str:
    fields = msgspec.to_builtins(event)
    return " ".join(f"{name}={value}" for name, value in fields.items() if name != "type")


def _serving(
    listen: str, certificate: tuple[str, str] | None, advertise: str, trust: str
) -> "Serving | None":
    from tidemill.futures.worker.worker import Serving

    if not listen:
        return Serving(roots=trust) if trust else None
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--listen {listen}", hint="write HOST:PORT, e.g. 10.0.0.7:7070; port 0 is any")
    chain, key = certificate or ("", "")
    return Serving(
        host=host.strip("[]"), port=int(port), chain=chain, key=key, advertise=advertise, roots=trust
    )
