"""TLS for a server, from the files that its operator has (SPEC 2.2)."""

from __future__ import annotations

import ssl
from os import PathLike
from pathlib import Path
from typing import NoReturn

from plugrl_gym.errors import UsageError

__all__ = ["tls_context"]


def tls_context(
    certificate: str | PathLike[str], key: str | PathLike[str] | None = None
) -> ssl.SSLContext:
    """What ``PlugRLServer(ssl_context=)`` takes.

    Args:
        certificate: A PEM file with the server's certificate, followed by those between it and
            an authority that clients trust.
        key: A PEM file with its private key, without a password; None where that is in the first
            file, too.

    Raises:
        UsageError: A file is missing or not what it should be, or the two do not belong together.
    """
    key_file = certificate if key is None else key
    for path, what in ((certificate, "certificate"), (key_file, "private key")):
        _check_readable(Path(path), what)

    def refuse_password() -> NoReturn:
        # Without this OpenSSL would ask at the terminal.
        raise UsageError(
            f"the private key in {key_file} has a password, which a server cannot be asked for; "
            f"remove it: openssl pkey -in {key_file} -out plain.pem"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key_file, password=refuse_password)
    except ssl.SSLError as error:
        raise UsageError(_explain(error, certificate, key_file)) from error
    return context


def _check_readable(path: Path, what: str) -> None:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the {what} file {path}: {error.strerror}") from error
    mark = {"certificate": b"-----BEGIN CERTIFICATE-----", "private key": b"PRIVATE KEY-----"}
    if mark[what] not in text:
        raise UsageError(f"{path} holds no {what} in PEM form (no line {mark[what].decode()})")


def _explain(error: ssl.SSLError, certificate: object, key: object) -> str:
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return f"the private key in {key} is not that of the certificate in {certificate}"
    reason = error.reason or str(error)
    return f"{certificate} and {key} cannot be used for TLS: {reason.replace('_', ' ').lower()}"
