"""What is wrong with a storage is told in a sentence, with a way out that leads out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.piping import Bench
from pipeline.storages import S3Server, SftpServer, old
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline import storage as storages
from trunq.pipeline.definition import need
from trunq.pipeline.redact import redact

pytestmark = pytest.mark.usefixtures("_secrets")
TABLE = {"format": "table", "table": "moved"}
ONE = {"format": "table", "table": "one"}
KEYS = {"key": "${S3_KEY}", "secret": "${S3_SECRET}"}

BARE = """
import sys
from moto import server
inner = server.DomainDispatcherApplication.__call__
def bare(self, environ, start_response):
    environ.pop("HTTP_IF_NONE_MATCH", None)
    environ.pop("HTTP_IF_MATCH", None)
    return inner(self, environ, start_response)
server.DomainDispatcherApplication.__call__ = bare
server.main(sys.argv[1:])
"""
"""A server that knows no conditions."""


@pytest.mark.parametrize(
    ("source", "sink", "why"),
    [
        ({"path": "ftp://h/a.csv"}, TABLE, "source: 'ftp://h/a.csv' is no address of a storage: write one of"
         " s3://, gs://, abfs:// and sftp://, or a path of the runner's machine"),
        (ONE, {"format": "delta", "path": "s3://b/a%20b"}, "sink: 's3://b/a%20b' has a %, and no Delta table"
         " can be at such an address"),
        ({"path": "s3:///a.csv"}, TABLE, "source: 's3:///a.csv' names no bucket or host: s3://NAME/path"),
        ({"path": "a.csv", "storage": {"region": "x"}}, TABLE, "source: storage is for an address, one of"
         " s3://, gs://, abfs:// and sftp://, and path is none"),
        ({"path": "sftp://me:word@h/a.csv"}, TABLE, "source: a password does not belong into an address:"
         " write storage = { secret = '${NAME}' }"),
        ({"path": "s3://b/a", "storage": {"key": "${A}", "secret": "plain"}}, TABLE, "source.storage: secret"
         " is a secret, which does not belong into a pipeline, which lies in the database as it is written:"
         " put it into an environment variable and write ${NAME}"),
        ({"path": "s3://b/a", "storage": {"key": "AKIA"}}, TABLE, "source.storage: key is a secret"),
        ({"path": "s3://b/a", "storage": {"key": "${A}"}}, TABLE, "source: storage.key and storage.secret go"
         " together"),
        ({"path": "s3://b/a", "storage": {"regoin": "x"}}, TABLE, "there is no source.storage.regoin; is it"
         " region?"),
        ({"path": "s3://b/a", "storage": {"known_hosts": "x"}}, TABLE, "source: storage.known_hosts is not"
         " for s3://, which has endpoint, region, key, secret, token"),
        (ONE, {"format": "delta", "path": "sftp://h/a"}, "sink: a Delta table lies in a directory, or at"
         " s3://, gs:// or abfs://: format = 'parquet' writes to sftp://"),
    ],
)  # fmt: skip
def test_what_can_be_known_is_refused_where_a_pipeline_is_made(
    source: dict[str, Any], sink: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidPipeline) as error:
        Pipeline("p", source={"format": "csv", **source}, sink=sink)
    assert why in error.value.message


def test_of_each_kind_of_address_a_pipeline_can_be_made() -> None:
    for path, options in (
        ("gs://bucket/a/*.csv", {"key_file": "/etc/key.json"}),
        ("abfs://container@account.dfs.core.windows.net/a", {"token": "${SAS}"}),
        ("abfs://container/a", {"account": "account", "secret": "${KEY}"}),
        ("sftp://me@host:2022/a", {"known_hosts": "/etc/known", "secret": "${WORD}"}),
        ("${WHERE}/a", {"key": "${A}", "secret": "${B}"}),
    ):
        made = Pipeline("p", source={"format": "csv", "path": path, "storage": options}, sink=TABLE)
        assert Pipeline("p", **made.definition) == made


@pytest.fixture
def one(bench: Bench) -> Bench:
    bench.sql("create table one (id int); insert into one values (1)")
    return bench


def sinks(server: S3Server, address: str) -> Iterator[dict[str, Any]]:
    for format in ("delta", "parquet"):
        yield {"format": format, "path": f"{address}/{format}", "storage": server.storage}


def test_a_bucket_that_is_not_there_is_told_and_one_that_is_made_is_used(one: Bench, s3: S3Server) -> None:
    there = s3.bucket()
    for sink in sinks(s3, "s3://no-such-bucket"):
        name = one.make(ONE, sink)
        with pytest.raises(InvalidPipeline, match=r": there is no bucket s3://no-such-bucket\n") as error:
            one.run(name)
        assert error.value.hint == "make it, or correct path"
        mended = Pipeline(name, source=ONE, sink={**sink, "path": f"{there}/{sink['format']}"})
        one.client.create_pipeline(name, mended.definition)
        one.run(name)
        assert one.client.list_runs(name)[0].rows_out == 1
    name = one.make({"format": "csv", "path": "s3://no-such-bucket/*.csv", "storage": s3.storage}, TABLE)
    with pytest.raises(InvalidPipeline, match="there is no bucket s3://no-such-bucket"):
        one.run(name)


def test_credentials_that_are_refused_are_told_and_never_shown(one: Bench) -> None:
    server = S3Server(INITIAL_NO_AUTH_ACTION_COUNT="0")
    try:
        for sink in sinks(server, "s3://some-bucket"):
            name = one.make(ONE, sink)
            with pytest.raises(InvalidPipeline, match="s3://some-bucket refuses our credentials: ") as error:
                one.run(name)
            assert "correct what storage names" in str(error.value.hint)
            assert "a-secret-of-tests" not in f"{error.value.message} {error.value.hint}"
        source = {"format": "csv", "path": "s3://some-bucket/*.csv", "storage": server.storage}
        with pytest.raises(InvalidPipeline, match="s3://some-bucket refuses our credentials: "):
            one.run(one.make(source, TABLE))
    finally:
        server.stop()


def test_a_secret_of_a_storage_is_struck_out_of_errors(s3: S3Server) -> None:
    made = Pipeline("p", source=ONE, sink=next(sinks(s3, "s3://b"))).expanded()
    assert redact(made, "said a-secret-of-tests to a-key-of-tests") == "said *** to ***"


def test_credentials_that_are_nowhere_are_told(
    one: Bench, monkeypatch: pytest.MonkeyPatch, s3: S3Server
) -> None:
    # The address of a role's credentials, where nobody answers.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for format in ("delta", "parquet"):
        name = one.make(ONE, {"format": format, "path": "s3://some-bucket/a", "storage": {"region": "x"}})
        with pytest.raises(InvalidPipeline, match="there are no credentials for s3://some-bucket") as error:
            one.run(name)
        assert 'storage = { key = "${NAME}"' in str(error.value.hint)


def test_a_host_that_is_not_known_is_told(one: Bench, s3: S3Server) -> None:
    unknown = {"endpoint": "http://nowhere.invalid:9000", **KEYS}
    for format in ("delta", "parquet"):
        name = one.make(ONE, {"format": format, "path": "s3://some-bucket/a", "storage": unknown})
        with pytest.raises(InvalidPipeline, match=r"the host of s3://some-bucket is not known\n") as error:
            one.run(name)
        assert error.value.hint == "correct storage.endpoint, or path"
        sink = {"format": format, "path": f"{s3.bucket()}/a", "storage": s3.storage}
        one.client.create_pipeline(name, Pipeline(name, source=ONE, sink=sink).definition)
        one.run(name)
        assert one.client.list_runs(name)[0].rows_out == 1
    name = one.make({"format": "csv", "path": "sftp://me@nowhere.invalid/a/*.csv"}, TABLE)
    with pytest.raises(InvalidPipeline, match=r"the host of sftp://me@nowhere\.invalid is not known\n"):
        one.run(name)


def test_a_storage_that_knows_no_conditions_is_refused(one: Bench) -> None:
    server = S3Server(BARE)
    try:
        for sink in sinks(server, server.bucket()):
            with pytest.raises(InvalidPipeline, match="writes over an object that it is told to refuse") as e:
                one.run(one.make(ONE, sink))
            assert "take a storage with conditional writes" in str(e.value.hint)
    finally:
        server.stop()


def test_of_a_storage_that_knows_the_first_of_two_conditions_delta_needs_no_more(one: Bench) -> None:
    server = S3Server(BARE.replace('environ.pop("HTTP_IF_NONE_MATCH", None)', "pass"))
    try:
        delta, files = sinks(server, server.bucket())
        one.run(one.make(ONE, delta))
        with pytest.raises(InvalidPipeline, match=r"it is told to refuse \(If-Match\), so two runners"):
            one.run(one.make(ONE, files))
    finally:
        server.stop()


def test_an_extra_that_is_missing_is_told(one: Bench, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("p", source=ONE, sink=next(sinks(s3, s3.bucket())))
    monkeypatch.setattr(need, "is_there", lambda module: module != "obstore")
    assert list(need.missing(pipeline)) == [
        "it needs obstore, which is not here: pip install 'trunq[storage]' where it runs"
    ]
    storages._opened.cache_clear()
    for module, library in (("objects", "obstore"), ("sftp", "paramiko")):
        monkeypatch.delitem(sys.modules, f"trunq.pipeline.storage.{module}", raising=False)
        monkeypatch.setitem(sys.modules, library, None)
    name = one.make(ONE, next(sinks(s3, s3.bucket())))
    with pytest.raises(InvalidPipeline, match=r"s3://.* needs obstore, which is not here") as error:
        one.run(name)
    assert error.value.hint == "pip install 'trunq[storage]'"
    over = one.make({"format": "csv", "path": "sftp://h/a"}, TABLE)
    with pytest.raises(InvalidPipeline, match=r"sftp://h needs paramiko, which is not here"):
        one.run(over)
    monkeypatch.undo()


def test_a_key_of_a_host_that_is_not_known_is_refused(bench: Bench, sftp: SftpServer, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    old(tmp_path / "a.csv")
    source = {"format": "csv", "path": sftp.address(tmp_path / "*.csv"), "storage": {}}
    known = tmp_path / "known"
    known.write_text("")
    given = {"key_file": sftp.storage["key_file"], "known_hosts": str(known)}
    name = bench.make({**source, "storage": given}, TABLE)
    with pytest.raises(InvalidPipeline, match=r"the key of sftp://.* is not known, so nobody") as error:
        bench.run(name)
    assert "ssh-keyscan" in str(error.value.hint)
    host = (sftp.root / "known").read_text()
    known.write_text(host.replace(host.split()[2], (sftp.root / "user.pub").read_text().split()[1]))
    storages._opened.cache_clear()
    with pytest.raises(InvalidPipeline, match="has another key than the one that is known"):
        bench.run(name)
    known.write_text(host)
    stranger = {**given, "key_file": str(sftp.root / "stranger")}
    with pytest.raises(InvalidPipeline, match=r"sftp://.* refuses our credentials\n") as error:
        bench.run(bench.make({**source, "storage": stranger}, TABLE))
    assert "key_file" in str(error.value.hint)
    missing = {**given, "key_file": str(tmp_path / "none")}
    with pytest.raises(InvalidPipeline, match=f"there is no file {tmp_path}/none"):
        bench.run(bench.make({**source, "storage": missing}, TABLE))
    assert bench.run(name)["rows_out"] == 1
