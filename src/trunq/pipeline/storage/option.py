"""Options of object stores in the words of object_store, which obstore and deltalake share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from trunq.pipeline.definition.storage import scheme_of

_NAMES: Final = {
    "s3": {
        "endpoint": "endpoint",
        "region": "region",
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
    },
    "gs": {"endpoint": "base_url", "key_file": "service_account"},
    "abfs": {"endpoint": "endpoint", "account": "account_name", "secret": "account_key", "token": "sas_key"},
}
_PREFIXES: Final = {"s3": "aws_", "gs": "google_", "abfs": "azure_"}
_TRIES: Final = 6
"""Again, over some seconds, before a run fails and is tried again as a whole."""


def config(base: str, given: Mapping[str, str]) -> dict[str, str]:
    """As obstore takes them."""
    scheme = scheme_of(base) or ""
    made = {_NAMES[scheme][name]: value for name, value in given.items()}
    if scheme == "abfs" and "@" in base:
        made.setdefault("account_name", base.partition("@")[2].partition(".")[0])
    if scheme == "s3" and "region" not in made and "endpoint" in made:
        # Servers of one's own have no regions, and signatures need the name of one.
        made["region"] = "us-east-1"
    return made


def bucket_of(base: str) -> str:
    """The bucket, or the container."""
    return base.partition("://")[2].partition("@")[0]


def of_deltalake(address: str, given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Address and `storage_options`, as deltalake takes them."""
    base, _, path = address.partition("://")[2].partition("/")
    scheme = scheme_of(address) or ""
    whole = f"{scheme}://{base}"
    made = {
        f"{_PREFIXES[scheme]}{name}" if name != "base_url" else name: value
        for name, value in config(whole, given).items()
    }
    if is_plain(given):
        made["allow_http"] = "true"
    made["max_retries"] = str(_TRIES)
    name = {"abfs": "az"}.get(scheme, scheme)
    # It takes a URL, and obstore the name of an object.
    return f"{name}://{bucket_of(whole)}/{quote(path)}", made


def is_plain(given: Mapping[str, str]) -> bool:
    """Whether the server is one without TLS."""
    return given.get("endpoint", "").startswith("http://")


def client(given: Mapping[str, str]) -> dict[str, Any]:
    """Of connections."""
    return {"allow_http": is_plain(given), "timeout": "120s"}


def retry() -> dict[str, Any]:
    """When it is tried again."""
    return {"max_retries": _TRIES}
