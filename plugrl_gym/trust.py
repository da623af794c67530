"""Whom to trust behind a ``wss://`` address; for whatever connects to a server."""

from __future__ import annotations

import ssl
from os import PathLike
from pathlib import Path
from urllib.parse import urlsplit

from plugrl_gym.errors import UsageError

__all__ = ["tls_context"]


def tls_context(url: str, ca_file: str | PathLike[str] | None) -> ssl.SSLContext | None:
    """How to check the certificate of the server at ``url``; None for ``ws://``.

    Args:
        url: As from ``parse_url``.
        ca_file: A PEM file with the certificates to trust in place of the system's: of an
            authority, or the server's own; None for the system's.

    Raises:
        UsageError: The file cannot be read, or there is no use for it.
    """
    if urlsplit(url).scheme != "wss":
        if ca_file is not None:
            raise UsageError(f"ca_file: {url} has no TLS, for which it would be; use wss://")
        return None
    if ca_file is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=Path(ca_file).read_text("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"ca_file: {ca_file} holds no certificate in PEM form") from error
    except OSError as error:
        raise UsageError(f"ca_file: cannot read {ca_file}: {error.strerror}") from error
    # The server's own certificate may be trusted though another authority signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
