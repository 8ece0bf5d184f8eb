"""Define `tidemill demo`."""

import click

from tidemill.cli.output import CommandOutput, json_option


@click.command(short_help="Show a pipeline that survives kill -9 and check its result.")
@click.option("--keep", is_flag=True, help="Keep the demo's folder, so that you can inspect it.")
@click.option("--nodes", is_flag=True, help="Show a cluster of three nodes instead, and kill its leader.")
@json_option
def demo(output: CommandOutput, keep: bool, nodes: bool) -> int:
    """Run a small pipeline, kill its runner with kill -9, resume it and check the result.

    Orders arrive as files, an arc cleans them and a view sums them up. This takes about a minute on two
    cores, because Spark starts three times. The exit code is 0 only if every check passes.

    With --nodes, three nodes share work through one SQLite file. The demo kills the leader, and
    the other nodes take over its work.
    """
    if nodes:
        from tidemill.cli.demo.cluster_demo import show_cluster

        return show_cluster(output, keep=keep)
    from tidemill.cli.demo.pipeline_demo import show_pipeline

    return show_pipeline(output, keep=keep)
