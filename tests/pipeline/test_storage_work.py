"""Tasks of Spark read from a storage, and write to one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from pipeline.piping import Bench
from pipeline.storages import S3Server, SftpServer, old
from pipeline.test_storage_sink import plain_rows

pytestmark = pytest.mark.usefixtures("spark", "_secrets")

QUERY = "select i.id, b.word from input i join by_id b on b.id = i.id join names n on n.word = b.word"


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """With two files of ids, and the lookups of `QUERY`."""
    made = s3.bucket()
    s3.write(f"{made}/in/a.csv", b"id\n1\n2\n")
    s3.write(f"{made}/in/b.csv", b"id\n3\n")
    table = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "word": ["a", "b", "c"]})
    write_deltalake(f"{made}/words", table, storage_options=s3.options)
    s3.write(f"{made}/names.csv", b"word\na\nb\nc\n")
    return made


@pytest.mark.slow
def test_tasks_read_files_and_lookups_of_a_bucket_and_write_to_it(
    bench: Bench, s3: S3Server, bucket: str
) -> None:
    of = {"storage": s3.storage}
    for format in ("delta", "parquet"):
        name = bench.make(
            {"format": "csv", "path": f"{bucket}/in/*.csv", "settled": "0 s", **of},
            {"format": format, "path": f"{bucket}/{format}", **of},
            sql=[QUERY],
            lookups={
                "by_id": {"format": "delta", "path": f"{bucket}/words", **of},
                "names": {"format": "csv", "path": f"{bucket}/names.csv", **of},
            },
        )
        assert bench.run(name)["rows_out"] == 3
        assert bench.run(name)["outcome"] == "nothing new"
    table = DeltaTable(f"{bucket}/delta", storage_options=s3.options).to_pyarrow_table()
    assert sorted(table["word"].to_pylist()) == ["a", "b", "c"]
    assert sorted(plain_rows(s3, f"{bucket}/parquet", "word")) == ["a", "b", "c"]


@pytest.mark.slow
def test_tasks_read_and_write_over_sftp(bench: Bench, sftp: SftpServer, tmp_path: Path) -> None:
    for id in range(3):
        (tmp_path / f"{id}.csv").write_text(f"id\n{id}\n")
        old(tmp_path / f"{id}.csv")
    of = {"storage": sftp.storage}
    name = bench.make(
        {"format": "csv", "path": sftp.address(tmp_path / "*.csv"), **of},
        {"format": "parquet", "path": sftp.address(tmp_path / "moved"), **of},
        sql=["select id + 1 as id from input"],
    )
    assert bench.run(name)["rows_out"] == 3
    found = pa.concat_tables(
        parquet.read_table(each) for each in (tmp_path / "moved").glob("run-*/*.parquet")
    )
    assert sorted(found["id"].to_pylist()) == [1, 2, 3]
