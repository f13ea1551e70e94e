"""`python -m bench.publishing`: the pipeline's sink beside a raw publisher straight to the same queues, in turn."""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bench import direct, wire
from bench.world import EXCHANGE, QUEUES, declare
from pipeline.publish.commits import read_commits
from pipeline.publish.messages import check_rows
from pipeline.publish.options import parse
from pipeline.publish.order import prepared
from pipeline.publish.pinned import pinned
from pipeline.publish.source import RingProxy
from pipeline.session import spark_session
from ring.compiled import kind
from testbed.broker import installation
from testbed.node import private_node

CONNECTIONS, SECONDS, PERSISTENT = 2, 5, 2


def main() -> int:
    """Print rates and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m bench.publishing", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each, in turn (default: 3)")
    options = parser.parse_args()
    began_at = os.getloadavg()[0]
    raw: list[float] = []
    whole: list[float] = []
    tasks: list[float] = []
    with (
        private_node(installation(os.environ.get("BROKER", ""))) as node,
        tempfile.TemporaryDirectory(prefix="ringproxy-bench-") as folder,
        spark_session("bench") as spark,
    ):
        version = node.start()
        declare(node.amqp_url)
        spark.dataSource.register(RingProxy)
        requests, log = Path(folder, "requests"), Path(folder, "log.jsonl")
        wire.save(requests, [direct.message(queue, PERSISTENT) for queue in QUEUES])
        given = {"broker_url": node.amqp_url, "management_url": node.management_url, "exchange": EXCHANGE}
        given |= {"connections": str(CONNECTIONS), "commit_log": str(log)}
        rows = table(spark, Path(folder, "rows"), options.rows)
        for number in range(options.rounds):
            raw.append(direct.messages_per_second(node.amqp_url, requests, SECONDS)[0])
            began = time.monotonic()
            check_rows(rows)
            laid_out = prepared(rows, pinned(parse(given)), CONNECTIONS)
            laid_out.write.format("ringproxy").options(**given, batch=str(number)).mode("append").save()
            whole.append(options.rows / (time.monotonic() - began))
            tasks.append(options.rows / read_commits(log)[-1].seconds)
            print(f"raw {raw[-1]:,.0f}, job {whole[-1]:,.0f}, tasks {tasks[-1]:,.0f}", file=sys.stderr, flush=True)
    print(f"RabbitMQ {version}, proxy's modules: {kind()}, {options.rows:,} rows of {direct.SIZE} bytes,")
    print(f"{CONNECTIONS} connections, load average when it began {began_at:.1f}, medians of {options.rounds} rounds")
    print(f"raw publisher, persistent: {statistics.median(raw):,.0f} messages/s")
    for title, rates in (("the whole job", whole), ("its tasks alone", tasks)):
        ratio = statistics.median(rate / limit for rate, limit in zip(rates, raw, strict=True))
        print(f"{title}: {statistics.median(rates):,.0f} rows/s, ratio {ratio:.2f}")
    return 0


def table(spark: SparkSession, path: Path, count: int) -> DataFrame:
    """Rows with keys that are all different, as files."""
    key = F.concat(F.lit("key-"), F.hex(F.xxhash64("id")))
    body = F.unhex(F.repeat(F.lit("ab"), direct.SIZE))
    rows = spark.range(count).select(
        key.alias("key"), body.alias("body"), F.col("id").cast("string").alias("message_id")
    )
    rows.repartition(4).write.parquet(str(path))
    return spark.read.parquet(str(path))


if __name__ == "__main__":
    sys.exit(main())
