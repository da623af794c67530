"""Certificates for servers of the tests, made on the spot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

__all__ = ["Files", "certificate_files"]


@dataclass(frozen=True)
class Files:
    """PEM files.

    Attributes:
        cert: The server's certificate.
        key: Its private key.
        ca: The certificate of the authority that signed it.
    """

    cert: Path
    key: Path
    ca: Path


def certificate_files(directory: Path, *names: str) -> Files:
    """A new authority and one certificate for ``names``, 127.0.0.1 and localhost by default."""
    directory.mkdir(exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    files = Files(directory / "cert.pem", directory / "key.pem", directory / "ca.pem")
    files.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    files.key.touch(mode=0o600)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.ca)
    return files
