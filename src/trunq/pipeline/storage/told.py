"""What libraries of storages say, in a sentence that names the address and the way out.

They have classes for some of it, and for the rest the texts of the providers.
"""

from __future__ import annotations

import re
from typing import Final

from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline.errors import StorageFailed

_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|specified bucket does not exist")
_REFUSED: Final = re.compile(
    r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|AuthenticationFailed|AuthorizationFailure"
    r"|InvalidToken|ExpiredToken|\b401 Unauthorized|\b403 Forbidden"
)
_NONE: Final = re.compile(
    r"IMDS|loading credentials|no providers in chain|169\.254\.169\.254|"
    r"169\.254\.170\.|metadata\.google\.internal"
)
_NO_HOST: Final = re.compile(r"dns error|failed to lookup address|Name or service not known")
_AWAY: Final = re.compile(r"error sending request|onnection refused|timed out|operation timed out|50[0234] ")
_IS_STORAGE: Final = re.compile(r"Generic (S3|GCS|MicrosoftAzure|Azure)|RetryError|object store|ObjectStore")


def told(pipeline: str, base: str, error: Exception) -> TrunqError | None:
    """What is wrong at a storage; None: something else."""
    text, who = str(error), f"pipeline {pipeline}:"
    if _NO_BUCKET.search(text):
        return InvalidPipeline(f"{who} there is no bucket {base}", "make it, or correct path")
    if _NONE.search(text):
        return InvalidPipeline(
            f"{who} there are no credentials for {base}: neither in storage, nor in the environment, nor as a"
            " role of this machine",
            'storage = { key = "${NAME}", secret = "${NAME}" }, or start the runner with them',
        )
    if _REFUSED.search(text) or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return InvalidPipeline(
            f"{who} {base} refuses our credentials: {_first(text)}",
            "correct what storage names, or the role of this machine, and its rights",
        )
    if _NO_HOST.search(text):
        return InvalidPipeline(f"{who} the host of {base} is not known", "correct storage.endpoint, or path")
    if _AWAY.search(text):
        return StorageFailed(f"{who} {base} does not answer: {_first(text)}", "the run is tried again")
    if type(error).__name__ == "InvalidPathError":
        wrong = _first(text).rpartition("invalid path: ")[2]
        return InvalidPipeline(
            f"{who} {base} has a name that cannot be read: {wrong}",
            "give it one whose parts, between its slashes, are neither empty nor . or ..; or read what is not"
            " beside it",
        )
    if isinstance(error, FileNotFoundError):
        return None
    if _IS_STORAGE.search(text):
        return StorageFailed(f"{who} {base}: {_first(text)}", "the run is tried again")
    return None


def _first(text: str) -> str:
    """The code of the provider and what it says, or the first line."""
    if code := re.search(r"<Code>([^<]+)</Code>", text):
        said = re.search(r"<Message>([^<]+)</Message>", text)
        return code[1] if said is None else f"{code[1]}: {said[1]}"
    return text.partition("\n")[0][:300]
