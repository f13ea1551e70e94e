"""A journal's path without a scheme is in Spark's default file system, as a job's results are."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data.files import content, found
from tests.pipeline.records import published, ring_of, write_journal

RING = ring_of({"orders.1": 1, "orders.2": 1})


@pytest.fixture
def default(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that the default file system has as /shared: no such folder is on this machine."""
    settings = {
        "fs.viewfs.mounttable.cluster.link./shared": tmp_path.as_uri(),
        "fs.viewfs.mounttable.cluster.linkFallback": tmp_path.as_uri(),
        "fs.defaultFS": "viewfs://cluster",
    }
    hadoop = spark._jsc.hadoopConfiguration()
    before = {name: hadoop.get(name) for name in settings}
    for name, value in settings.items():
        hadoop.set(name, value)
    yield tmp_path
    for name, earlier in before.items():
        if earlier is None:
            hadoop.unset(name)
        else:
            hadoop.set(name, earlier)


@pytest.mark.long
def test_a_journal_in_the_default_file_system(
    default: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    write_journal(default / "journal", published(RING, [b"a", b"b"] * 9), [RING])
    of = ("whatif", "--vhost", "/", "--exchange", "orders", "--remove", "queue:orders.2", "--out", "/shared/out")
    assert main([*of, "--journal", "/shared/journal"]) == 0
    assert json.loads((default / "out" / "verdict.json").read_text())["messages"] == 18
    assert main([*of, "--journal", "/shared/elsewhere"]) == 2
    assert "/shared/elsewhere: no journal: there is no folder /shared/elsewhere/records" in capsys.readouterr().err
    assert main([*of, "--journal", str(default / "journal")]) == 2, "which is on this machine only"


def test_what_cannot_be_looked_at_is_named(spark: SparkSession, tmp_path: Path) -> None:
    assert found(spark, str(tmp_path / "none")) == found(spark, str(tmp_path / "none" / "*")) == []
    for name in ("b", "a"):
        (tmp_path / name).write_bytes(name.encode())
    assert [content(spark, file) for file in found(spark, f"{tmp_path}/*")] == [b"a", b"b"]
    for text in ("a:b", ""):
        with pytest.raises(PipelineError, match=rf"^{text or repr(text)}: IllegalArgumentException: "):
            found(spark, text)
    with pytest.raises(PipelineError, match=r"^s3://bucket/x: UnsupportedFileSystemException: No FileSystem for"):
        found(spark, "s3://bucket/x")
    with pytest.raises(PipelineError, match=rf"^{tmp_path}/none: cannot be read: FileNotFoundException: "):
        content(spark, str(tmp_path / "none"))
