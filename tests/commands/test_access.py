"""Keys, TLS and limits, as users of the commands meet them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from plugrl_gym.commands.access import add_server_options, server_options
from plugrl_gym.commands.keys import add_key_options, read_key
from plugrl_gym.commands.options import CommandParser
from plugrl_gym.errors import UsageError
from tests.support.certificates import certificate_files
from tests.support.commands import rollout, run, serve

KEY = "a-key-that-nobody-guesses"
SOME_STEPS = ("CartPole-v1", "--num-envs", 2, "--max-steps", 10, "--quiet")


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLUGRL_API_KEY", raising=False)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.txt"
    path.write_text(f"  {KEY} \nanything else\n", encoding="utf-8")
    path.chmod(0o600)
    return path


def parsed(*arguments: str, host: str = "127.0.0.1") -> argparse.Namespace:
    parser = CommandParser("prog", "", "")
    add_server_options(parser)
    options = parser.parse_args(arguments)
    options.host = host
    return options


# -- The commands ----------------------------------------------------------------------------


def test_serve_for_other_machines_without_a_key_is_one_sentence() -> None:
    complaint = run("-m", "plugrl_gym.serve", "--host", "0.0.0.0").complaint
    assert complaint.startswith("plugrl-gym serve: listening on 0.0.0.0 lets other machines in")
    assert "--api-key-file FILE" in complaint
    assert "--insecure" in complaint


def test_key_lets_a_client_in_and_a_wrong_one_is_one_sentence(
    key_file: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("guess\n")
    wrong.chmod(0o600)
    with serve("--algo", "random", "--host", "0.0.0.0", "--api-key-file", key_file) as server:
        url = server.url()
        good = run(
            "-m", "plugrl_gym.rollout", *SOME_STEPS, "--url", url, "--api-key-file", key_file
        )
        bad = run("-m", "plugrl_gym.rollout", *SOME_STEPS, "--url", url, "--api-key-file", wrong)
        server.interrupt()
        told = server.finish()
    assert (good.code, good.stderr) == (0, "")
    assert bad.complaint.startswith(
        f"plugrl-gym rollout: {url}: the server did not let this client"
    )
    assert "Clients need the key" in told.stderr
    assert told.stderr.count("HTTP 401") == 1
    assert KEY not in told.stderr + told.stdout + bad.stderr


def test_environment_holds_the_key_of_both_sides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLUGRL_API_KEY", KEY)
    finished = run(
        *("-m", "plugrl_gym.train", "CartPole-v1", "--algo", "random", "--num-envs", 2),
        *("--total-timesteps", 20, "--run-dir", tmp_path, "--quiet"),
    )
    assert finished.code == 0, finished.stderr


def test_wss_works_between_the_commands(tmp_path: Path) -> None:
    files = certificate_files(tmp_path / "tls")
    options = ("--tls-cert", files.cert, "--tls-key", files.key)
    with serve("--algo", "random", *options) as server:
        url = server.line(r"wss://[\d.]+:\d+")[0]
        with rollout(*SOME_STEPS, "--url", url, "--ca-file", files.ca) as client:
            assert client.finish().code == 0
        with rollout(*SOME_STEPS, "--url", url) as client:
            complaint = client.finish().complaint
        server.interrupt()
        told = server.finish()
    assert "the server's certificate is not trusted" in complaint
    assert f"--url {url} --ca-file {files.cert}" in told.stderr


# -- Their options ---------------------------------------------------------------------------


def test_options_say_what_the_server_gets(tmp_path: Path) -> None:
    files = certificate_files(tmp_path / "tls")
    given = server_options(
        parsed(
            *("--api-key", KEY, "--allow-host", "proxy", "--allow-host", "other"),
            *("--tls-cert", str(files.cert), "--tls-key", str(files.key)),
            *("--max-message-mb", "1.5", "--max-clients", "2", "--max-envs", "30"),
            *("--silence-timeout", "0"),
        )
    )
    assert given.pop("ssl_context") is not None
    assert given == {
        "api_key": KEY,
        "insecure": False,
        "allowed_hosts": ["proxy", "other"],
        "max_message_bytes": 1_572_864,
        "max_clients": 2,
        "max_envs": 30,
        "silence_timeout": 0.0,
    }


def test_nothing_is_limited_or_asked_for_by_default() -> None:
    assert server_options(parsed()) == {
        "api_key": None,
        "insecure": False,
        "allowed_hosts": [],
        "ssl_context": None,
        "max_message_bytes": None,
        "max_clients": None,
        "max_envs": None,
        "silence_timeout": None,
    }


def test_insecure_is_the_word_for_other_machines_without_a_key() -> None:
    assert server_options(parsed("--insecure", host="0.0.0.0"))["insecure"]
    with pytest.raises(UsageError, match="--insecure"):
        server_options(parsed(host="0.0.0.0"))


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--max-message-mb", "0", "expected a number above 0, got '0'"),
        ("--max-message-mb", "many", "expected a number above 0, got 'many'"),
        ("--max-clients", "0", "expected a whole number from 1 up"),
        ("--max-envs", "-1", "expected a whole number from 1 up"),
    ],
)
def test_impossible_limit_is_one_line(
    option: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(f"{option}={value}")
    assert caught.value.code == 2
    assert expected in capsys.readouterr().err


def test_key_of_tls_needs_its_certificate() -> None:
    with pytest.raises(UsageError, match="--tls-key needs the certificate, too"):
        server_options(parsed("--tls-key", "key.pem"))


# -- Where the key is ------------------------------------------------------------------------


def keys(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_key_options(parser.add_argument_group(), "for this")
    return parser.parse_args(arguments)


def test_option_goes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, key_file: Path
) -> None:
    assert read_key(keys()) is None
    monkeypatch.setenv("PLUGRL_API_KEY", "")
    assert read_key(keys()) is None
    monkeypatch.setenv("PLUGRL_API_KEY", "of-the-environment")
    assert read_key(keys()) == "of-the-environment"
    assert read_key(keys("--api-key-file", str(key_file))) == KEY
    assert read_key(keys("--api-key", "typed")) == "typed"


def test_two_keys_are_a_mistake(key_file: Path) -> None:
    with pytest.raises(UsageError, match="not both"):
        read_key(keys("--api-key-file", str(key_file), "--api-key", "typed"))


@pytest.mark.parametrize("text", ["", "\n", "   \nkey\n"])
def test_file_with_an_empty_first_line_has_no_key(text: str, key_file: Path) -> None:
    key_file.write_text(text)
    with pytest.raises(UsageError, match=r"key\.txt: its first line is empty"):
        read_key(keys("--api-key-file", str(key_file)))


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--api-key-file .*none: No such file"):
        read_key(keys("--api-key-file", str(tmp_path / "none")))


def test_file_that_everybody_can_read_is_warned_of(
    key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = keys("--api-key-file", str(key_file))
    read_key(options)
    assert not caplog.records
    key_file.chmod(0o644)
    read_key(options)
    # Windows knows no such permission.
    expected = [f"{key_file} can be read by every user of this machine: chmod 600 {key_file}"]
    assert [r.getMessage() for r in caplog.records] == (expected if os.name == "posix" else [])
    assert KEY not in caplog.text


def test_help_says_that_a_typed_key_can_be_read_by_others() -> None:
    group = argparse.ArgumentParser().add_argument_group()
    add_key_options(group, "for this")
    (typed,) = (a for a in group._group_actions if a.dest == "api_key")
    assert "every user of this machine can then read it" in str(typed.help)
