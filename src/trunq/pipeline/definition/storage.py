"""Addresses of storages, and the options by which they are reached: their models."""

from __future__ import annotations

import re
from typing import Final, Self

from pydantic import model_validator

from trunq.pipeline.definition.part import VARIABLE, Part, is_expanded

KEYS: Final = {
    "s3": ("endpoint", "region", "key", "secret", "token"),
    "gs": ("endpoint", "key_file"),
    "abfs": ("endpoint", "account", "secret", "token"),
    "sftp": ("secret", "key_file", "known_hosts"),
}
"""The options of each kind of address."""

_SECRETS: Final = ("key", "secret", "token")
_KNOWN: Final = "s3://, gs://, abfs:// and sftp://"


class Storage(Part):
    """How a storage is reached. What is not given comes from the machine: its environment, its role, or for
    sftp its ssh agent and key files.
    """

    endpoint: str | None = None
    """Address of another server than the provider's own, as http://minio:9000."""
    region: str | None = None
    account: str | None = None
    """Of Azure, where the address does not name it."""
    key: str | None = None
    """Of S3, the id of the access key."""
    secret: str | None = None
    """Of S3 the secret access key, of Azure the account's key, of sftp the password, or that of key_file."""
    token: str | None = None
    """Of S3 a session token, of Azure a shared access signature."""
    key_file: str | None = None
    """Of Google the file of a service account, of sftp a private key."""
    known_hosts: str | None = None
    """A file of the keys of hosts; None: ~/.ssh/known_hosts."""

    @model_validator(mode="after")
    def _without_secrets(self) -> Self:
        for name in _SECRETS:
            value = getattr(self, name)
            if value is not None and not is_expanded.get() and not VARIABLE.search(value):
                raise ValueError(
                    f"{name} is a secret, which does not belong into a pipeline, which lies in the database"
                    " as it is written: put it into an environment variable and write ${NAME}"
                )
        return self

    @property
    def given(self) -> dict[str, str]:
        """The options that are given."""
        return {name: value for name, value in self if value is not None}

    @property
    def secrets(self) -> list[str]:
        """What must not be told."""
        return [value for name, value in self.given.items() if name in _SECRETS]


class Stored(Part):
    """A part whose files lie at a path of the runner's machine, or at an address of a storage."""

    path: str
    storage: Storage | None = None

    @model_validator(mode="after")
    def _addressed(self) -> Self:
        scheme = scheme_of(self.path)
        if scheme is None:
            if self.storage is not None and (is_expanded.get() or not VARIABLE.match(self.path)):
                raise ValueError(f"storage is for an address, one of {_KNOWN}, and path is none")
            return self
        if scheme not in KEYS:
            raise ValueError(
                f"{self.path[:60]!r} is no address of a storage: write one of {_KNOWN}, or a path of the"
                " runner's machine"
            )
        if re.match(r"[a-z0-9]+://[^/@]*:[^/@]*@", self.path):
            raise ValueError(
                "a password does not belong into an address: write storage = { secret = '${NAME}' }"
            )
        if not re.match(r"[a-z0-9]+://[^/]+", self.path):
            raise ValueError(f"{self.path[:60]!r} names no bucket or host: {scheme}://NAME/path")
        self._require_known(scheme)
        return self

    def _require_known(self, scheme: str) -> None:
        given = self.storage.given if self.storage is not None else {}
        if other := [name for name in given if name not in KEYS[scheme]]:
            raise ValueError(
                f"storage.{other[0]} is not for {scheme}://, which has {', '.join(KEYS[scheme])}"
            )
        if scheme == "s3" and ("key" in given) != ("secret" in given):
            raise ValueError("storage.key and storage.secret go together")
        if scheme == "s3" and "token" in given and "key" not in given:
            raise ValueError("storage.token goes with storage.key and storage.secret")


def scheme_of(path: str) -> str | None:
    """What stands before `://`; None: it is a path of this machine, or only known when it is expanded."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", path)
    return found[1].lower() if found else None


def is_remote(path: str) -> bool:
    """Whether a path is an address of a storage."""
    return "://" in path


def require_lake(path: str) -> None:
    """Raise ValueError for a place where no Delta table can be: its log needs writes that refuse a second,
    and deltalake reads a name with % as two different ones.
    """
    if is_remote(path) and "%" in path:
        raise ValueError(f"{path[:60]!r} has a %, and no Delta table can be at such an address")
    if scheme_of(path) == "sftp":
        raise ValueError(
            "a Delta table lies in a directory, or at s3://, gs:// or abfs://: format = 'parquet' writes to"
            " sftp://"
        )
