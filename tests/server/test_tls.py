"""``wss://`` from the server's side: certificates that work, and those that cannot."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from websockets.sync.client import connect

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol import ClientProtocol
from plugrl_gym.server import tls_context
from plugrl_gym.tls_socket import turn_taking
from tests.server.test_door import VISITORS, say
from tests.support.certificates import Files, certificate_files
from tests.support.raw_client import DEADLINE
from tests.support.serving import FakeAgent, running


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return certificate_files(tmp_path / "good")


def test_server_with_tls_is_reached_by_wss(files: Files) -> None:
    trusting = ssl.create_default_context(cafile=files.ca)
    with running(FakeAgent(), ssl_context=tls_context(files.cert, files.key)) as run:
        assert run.url == f"wss://127.0.0.1:{run.server.port}"
        with connect(run.url, ssl=turn_taking(trusting), compression=None) as client:
            protocol = ClientProtocol()
            metadata = protocol.receive_metadata(client.recv(timeout=DEADLINE))
    assert metadata.algorithm == "fake"


def test_certificate_and_key_may_share_a_file(files: Files, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    assert isinstance(tls_context(both), ssl.SSLContext)


def _encrypt(files: Files, other: Files) -> Files:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    return files


def _spoil(files: Files, other: Files) -> Files:
    files.cert.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    return files


def _missing(files: Files, other: Files) -> Files:
    files.cert.unlink()
    return files


def _text(files: Files, other: Files) -> Files:
    files.cert.write_text("no certificate at all")
    return files


MISTAKES: dict[str, tuple[Callable[[Files, Files], Files], str]] = {
    "no certificate": (_missing, r"cannot read the certificate file .*cert\.pem: No such file"),
    "no key": (
        lambda files, other: Files(files.cert, files.key.with_name("none"), files.ca),
        r"cannot read the private key file .*none: No such file",
    ),
    "a directory": (
        lambda files, other: Files(files.cert.parent, files.key, files.ca),
        "cannot read the certificate file",
    ),
    "text": (_text, r"cert\.pem holds no certificate in PEM form"),
    "the certificate twice": (
        lambda files, other: Files(files.cert, files.cert, files.ca),
        r"cert\.pem holds no private key in PEM form",
    ),
    "the key of another": (
        lambda files, other: Files(files.cert, other.key, files.ca),
        r"private key in .*key\.pem is not that of the certificate in .*cert\.pem",
    ),
    "a password": (_encrypt, r"has a password, which a server cannot be asked for; remove it"),
    "nonsense": (_spoil, r"cannot be used for TLS: "),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistake_with_the_files_is_one_sentence(kind: str, files: Files, tmp_path: Path) -> None:
    spoil, expected = MISTAKES[kind]
    spoiled = spoil(files, certificate_files(tmp_path / "other"))
    with pytest.raises(UsageError, match=expected) as caught:
        tls_context(spoiled.cert, spoiled.key)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["nc -z", "binary", "HTTP/1.0", "half a request", "TLS"])
def test_visitor_that_speaks_no_tls_costs_no_traceback(
    kind: str, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trusting = ssl.create_default_context(cafile=files.ca)
    with running(FakeAgent(), ssl_context=tls_context(files.cert, files.key)) as run:
        before = len(caplog.records)
        say(run.server.port, VISITORS[kind])
        with connect(run.url, ssl=turn_taking(trusting)) as client:
            assert client.recv(timeout=DEADLINE)
        lines = [r for r in caplog.records[before:] if "client 1" not in r.getMessage()]
        assert len(lines) <= 1, caplog.text
    assert "Traceback" not in caplog.text
