"""Options of a server about who may come in, and how much of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from plugrl_gym.commands.keys import add_key_options, read_key, warn_if_public
from plugrl_gym.commands.options import count, seconds
from plugrl_gym.errors import UsageError
from plugrl_gym.server import tls_context
from plugrl_gym.server.access import Access

__all__ = ["add_server_options", "server_options"]

_MIB: Final = 2**20


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Who may come in, and how much of them."""
    group = parser.add_argument_group("access")
    add_key_options(group, "clients must send this key")
    group.add_argument(
        "--insecure",
        action="store_true",
        help="let other machines in without a key: whoever reaches the port trains your policy",
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or address, besides --host, under which clients reach this server, that of a "
        "proxy, say; as often as needed",
    )
    group.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="serve wss:// with the certificate in this PEM file",
    )
    group.add_argument(
        "--tls-key",
        type=Path,
        metavar="FILE",
        help="its private key (default: in the file of --tls-cert, too)",
    )
    _add_limits(parser.add_argument_group("limits"))


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-message-mb",
        type=_megabytes,
        metavar="N",
        help="close connections that send a message of more than N MiB (default: no limit)",
    )
    for name, what in (("clients", "connections"), ("envs", "envs, over all clients,")):
        group.add_argument(
            f"--max-{name}",
            type=count,
            metavar="N",
            help=f"take at most N {what} at a time (default: no limit)",
        )
    group.add_argument(
        "--silence-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long a connection may show no sign of life, not even answer a ping, before it "
        "counts as lost; 0 for ever (default: 300, or 1.5 times --feedback-timeout where that is "
        "more)",
    )


def _megabytes(text: str) -> float:
    """A size above 0, in MiB."""
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0.0 < size < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return size


def server_options(options: argparse.Namespace) -> dict[str, Any]:
    """What :func:`add_server_options` means for ``PlugRLServer``.

    Raises:
        UsageError: A file is missing or not what it should be, or other machines could come in
            without a key.
    """
    if options.tls_key is not None and options.tls_cert is None:
        raise UsageError("--tls-key needs the certificate, too: --tls-cert FILE")
    context = None
    if options.tls_cert is not None:
        context = tls_context(options.tls_cert, options.tls_key)
        warn_if_public(options.tls_key or options.tls_cert)
    access: dict[str, Any] = {
        "api_key": read_key(options),
        "insecure": options.insecure,
        "allowed_hosts": options.allow_host,
    }
    Access(options.host, **access)  # a mistake is told before a learner is loaded
    limit = options.max_message_mb
    return {
        **access,
        "ssl_context": context,
        "max_message_bytes": None if limit is None else max(int(limit * _MIB), 1),
        "max_clients": options.max_clients,
        "max_envs": options.max_envs,
        "silence_timeout": options.silence_timeout,
    }
