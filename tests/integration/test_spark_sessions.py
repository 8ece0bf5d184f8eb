from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def test_a_session_counts_groups_and_runs_python(spark: SparkSession) -> None:
    twice = sf.udf(lambda x: 2 * x, "bigint")
    rows = spark.range(10).select((sf.col("id") % 2).alias("odd"), twice("id").alias("t"))
    got = {row["odd"]: row["s"] for row in rows.groupBy("odd").agg(sf.sum("t").alias("s")).collect()}
    assert got == {0: 40, 1: 50}
