"""An S3-compatible store: how a bucket is reached, and what the store's errors mean."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import S3Store

from backfill_assets.core.errors import NoBucketError, StorageError

_REGION: Final = "us-east-1"  # where S3-compatible stores without regions say they are
_ADDRESSES: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_CONDITIONAL: Final = "AWS_CONDITIONAL_PUT"
_REFUSED: Final = (PermissionDeniedError, UnauthenticatedError)
_NO_ACCESS: Final = ("403 Forbidden", "AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_SHOWN: Final = 200


@dataclass(frozen=True)
class Bucket:
    """A bucket of an S3-compatible store; keys and address come from the cloud's standard environment."""

    url: str
    store: S3Store = field(compare=False)
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    _beside: dict[str, Bucket] = field(default_factory=dict, compare=False, repr=False)

    def beside(self, name: str) -> Bucket:
        """A bucket of the same store, reached with the same settings; each is opened once."""
        if self.url == f"s3://{name}":
            return self
        if name not in self._beside:
            self._beside[name] = reached(name, self.options)
        return self._beside[name]


def reached(name: str, environ: Mapping[str, str] = os.environ) -> Bucket:
    """A bucket, with the address and the region of the cloud's standard environment.

    Keys are not read here: obstore, delta-rs and Spark read them from this process's environment, or ask the machine's role.

    Raises:
        ValueError: two variables name different addresses; obstore, delta-rs and Spark would each take another one. Or a variable
            switches conditional puts off, without which commits would be lost.
    """
    if environ.get(_CONDITIONAL, "").lower() == "disabled":
        raise ValueError(
            f"{_CONDITIONAL}=disabled: a commit is a conditional put, and without it commits would be lost; unset it"
        )
    addresses = {variable: environ[variable] for variable in _ADDRESSES if environ.get(variable)}
    if len(set(addresses.values())) > 1:
        raise ValueError(f"{' and '.join(addresses)} name different addresses of the store; set AWS_ENDPOINT_URL only")
    address = next(iter(addresses.values()), "")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or _REGION
    options = {"AWS_REGION": region}
    if address:
        options |= {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": str(address.startswith("http://")).lower()}
    store = S3Store(name, client_options={"allow_http": address.startswith("http://")}, region=region)
    return Bucket(f"s3://{name}", store, options)


@contextmanager
def asking(place: object) -> Iterator[None]:
    """Turn the errors of the store into ours; its library has tried again by then, with pauses that grow and differ.

    Raises:
        FileNotFoundError: there is no such object.
        OSError: it was replaced while it was read.
        NoBucketError: there is no such bucket.
        StorageError: the store refuses, or does not answer.
    """
    try:
        yield
    except PreconditionError as error:
        raise OSError(f"{place} was replaced while it was read") from error
    except (BaseError, FileNotFoundError, NotImplementedError) as error:
        said = str(error)
        if "NoSuchBucket" in said:
            raise NoBucketError(
                f"{place}: there is no such bucket; create it, or correct its name, AWS_ENDPOINT_URL and "
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise
        if isinstance(error, _REFUSED) or any(word in said for word in _NO_ACCESS):
            raise StorageError(
                f"{place}: the store refuses access ({_said(error)}); look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
                "AWS_SESSION_TOKEN, which may have expired, and at the rights of their user"
            ) from error
        raise StorageError(
            f"{place}: the store does not do what it is asked ({_said(error)}); look at AWS_ENDPOINT_URL and "
            "AWS_REGION, and repeat the command: it continues where this one stopped"
        ) from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:_SHOWN]
