"""Files at S3 and SFTP as sources: each is read once, by processes and by tasks of Spark."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.piping import Bench
from pipeline.storages import S3Server, SftpServer, old
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.storage import Storage
from trunq.pipeline.storage import open_storage, split
from trunq.pipeline.storage.pattern import _regex
from trunq.pipeline.storage.sftp import SftpStorage
from waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("_secrets")
TABLE = {"format": "table", "table": "moved"}
CSV = b"id,word\n1,a\n2,b\n"


def rows(bench: Bench) -> list[Any]:
    return bench.sql("select id, word from moved order by id")


def source(s3: S3Server, path: str, format: str = "csv", **more: Any) -> dict[str, Any]:
    return {"format": format, "path": path, "storage": s3.storage, "settled": "0 s", **more}


@pytest.mark.slow
def test_files_of_a_bucket_are_read_once_and_new_ones_by_the_next_run(bench: Bench, s3: S3Server) -> None:
    bucket = s3.bucket()
    s3.write(f"{bucket}/in/2030/a.csv", CSV)
    s3.write(f"{bucket}/in/b.csv", b"id,word\n3,c\n")
    s3.write(f"{bucket}/in/.hidden.csv", b"id,word\n9,no\n")
    s3.write(f"{bucket}/other/c.csv", b"id,word\n9,no\n")
    name = bench.make(source(s3, f"{bucket}/in/**/*.csv"), TABLE)
    assert bench.run(name)["rows_out"] == 3
    assert rows(bench) == [(1, "a"), (2, "b"), (3, "c")]
    assert bench.run(name)["outcome"] == "nothing new"
    s3.write(f"{bucket}/in/2031/d.csv", b"id,word\n4,d\n")
    assert bench.run(name)["rows_out"] == 1
    assert len(rows(bench)) == 4
    # Nothing that the database keeps has the secret.
    kept = bench.one("select string_agg(definition::text, ' ') from trunq.pipeline")
    assert "${S3_SECRET}" in kept
    assert "a-secret-of-tests" not in kept


@pytest.mark.slow
def test_an_object_whose_name_cannot_be_read_is_told(bench: Bench, s3: S3Server) -> None:
    bucket = s3.bucket()
    url = f"{s3.url}/{split(bucket)[0].removeprefix('s3://')}/in//a.csv"
    httpx.put(url, content=CSV, timeout=PATIENCE).raise_for_status()
    with pytest.raises(
        InvalidPipeline, match=r's3://.* has a name that cannot be read: Path "in//a\.csv"'
    ) as e:
        bench.run(bench.make(source(s3, f"{bucket}/in/**/*.csv"), TABLE))
    assert "neither empty nor" in str(e.value.hint)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["json", "parquet"])
def test_other_formats_are_read_from_a_bucket(
    bench: Bench, s3: S3Server, tmp_path: Path, format: str
) -> None:
    bucket = s3.bucket()
    if format == "json":
        content = b'{"id": 1, "word": "a"}\nno json\n{"id": 2, "word": "b"}\n'
    else:
        parquet.write_table(pa.table({"id": [1, 2], "word": ["a", "b"]}), tmp_path / "a")
        content = (tmp_path / "a").read_bytes()
    s3.write(f"{bucket}/in/a", content)
    done = bench.run(bench.make(source(s3, f"{bucket}/in/*", format), TABLE))
    assert rows(bench) == [(1, "a"), (2, "b")]
    assert done["rows_bad"] == (format == "json")


@pytest.mark.slow
def test_a_file_that_changed_lately_waits_and_one_that_changes_under_a_run_is_refused(
    bench: Bench, s3: S3Server
) -> None:
    bucket = s3.bucket()
    s3.write(f"{bucket}/a.csv", CSV)
    name = bench.make(source(s3, f"{bucket}/*.csv", settled="1 hour"), TABLE)
    assert bench.run(name)["outcome"] == "nothing new"
    ranged = bench.make(source(s3, f"{bucket}/*.csv"), TABLE)
    message = bench.client.run_pipeline(ranged)
    opened = bench.executor.control.open(bench.asked(message))
    slice = {"files": [[f"{bucket}/a.csv", 15, 1]], "after": {}}
    assert bench.executor.control.begin(bench.asked(message), opened, slice) is not None
    with pytest.raises(InvalidPipeline, match=f"{bucket}/a.csv changed after the run began"):
        bench.execute(message)


@pytest.mark.slow
def test_files_of_a_host_are_read_once_over_sftp(bench: Bench, sftp: SftpServer, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep" / "deeper").mkdir(parents=True)
    for at, name in enumerate(("in/a.csv", "in/deep/b.csv", "in/deep/deeper/c.csv", "in/deep/d.txt")):
        (tmp_path / name).write_text(f"id,word\n{at},w\n")
        old(tmp_path / name)
    given = {"format": "csv", "storage": sftp.storage}
    one = bench.make({**given, "path": sftp.address(tmp_path / "in/*/*.csv")}, TABLE)
    assert bench.run(one)["rows_out"] == 1
    every = bench.make({**given, "path": sftp.address(tmp_path / "in/**/*.csv")}, TABLE)
    assert bench.run(every)["rows_out"] == 3
    assert bench.run(every)["outcome"] == "nothing new"
    # A connection that was lost is made anew.
    sftp.stop()
    sftp.start()
    assert bench.run(every)["outcome"] == "nothing new"
    wrong = bench.make({**given, "path": sftp.address(tmp_path / "none/*.csv")}, TABLE)
    with pytest.raises(InvalidPipeline, match=r"there is no directory sftp://.*/none") as error:
        bench.run(wrong)
    assert error.value.hint == "make it, or correct path"
    (tmp_path / "none").mkdir()
    assert bench.execute(bench.client.run_pipeline(wrong))["outcome"] == "nothing new"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("a/*.csv", "a/b.csv", True),
        ("a/*.csv", "a/b/c.csv", False),
        ("a/**/*.csv", "a/b.csv", True),
        ("a/**/*.csv", "a/b/c/d.csv", True),
        ("a/**/*.csv", "a/.b/d.csv", False),
        ("a/**", "a/b/c", True),
        ("a/?[0-9].c+v", "a/x7.c+v", True),
        ("a/?[!0-9].csv", "a/x7.csv", False),
        ("a/?.csv", "a//.csv", False),
        ("a/[.csv", "a/[.csv", True),
    ],
)
def test_patterns_match_as_those_of_a_directory(pattern: str, path: str, matches: bool) -> None:
    assert bool(re.fullmatch(_regex(pattern.split("/")), path)) is matches


@pytest.mark.slow
def test_a_file_that_is_not_there_leaves_its_connection_to_the_next(sftp: SftpServer, tmp_path: Path) -> None:
    address = sftp.address(tmp_path)
    storage = open_storage("a test", address, Storage.model_construct(**sftp.storage))
    assert isinstance(storage, SftpStorage)
    base = split(address)[1]
    (tmp_path / "there").write_bytes(b"text")
    assert storage.read(f"{base}/missing") is None
    # What Python still had of the reader is closed.
    gc.collect()
    [kept] = storage._idle
    assert (channel := kept.get_channel()) is not None
    assert not channel.closed
    assert storage.take() is kept
    storage.give_back(kept)
    assert storage.read(f"{base}/there") == b"text"
