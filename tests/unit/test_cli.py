"""`pccl-master`: its arguments, its defaults, and what it costs to load."""

import argparse
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pccl_backend import __version__, _cli
from pccl_backend._config import parse_url

ROOT = Path(__file__).resolve().parents[2]

# What a launcher may still call small and fast, on a machine that does other things too.
LOAD_CPU_S_MAX = 0.5
LOAD_RSS_BYTES_MAX = 50 << 20


def options(*argv: str) -> dict[str, Any]:
    """Of the master and of its only run."""
    arguments = _cli.build_parser().parse_args(argv)
    (run,) = _cli.runs_of(arguments)
    return {**_cli.master_options(arguments), **_cli.run_options(run)}


def several(*argv: str) -> list[dict[str, Any]]:
    """Of each run."""
    return [_cli.run_options(run) for run in _cli.runs_of(_cli.build_parser().parse_args(argv))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:1234", ("0.0.0.0", 1234)),
        ("localhost:0", ("localhost", 0)),
        ("10.0.0.2", ("10.0.0.2", 48148)),
        ("localhost", ("localhost", 48148)),
        (":65535", ("0.0.0.0", 65535)),
        ("[::1]:4000", ("::1", 4000)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", 48148)),
    ],
)
def test_listen_takes_names_addresses_and_bracketed_ipv6(
    text: str, expected: tuple[str, int]
) -> None:
    assert _cli.parse_listen(text) == expected


@pytest.mark.parametrize(
    "text", ["a:65536", "a:-1", "a:x", "a:", "::1", "[::1", "[::1]4000", "a:٣", "foo"]
)
def test_listen_refuses_what_is_no_address_and_names_it(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        _cli.parse_listen(text)
    assert repr(text) in str(raised.value)


def test_a_host_without_a_port_is_told_that() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="'foo' has no port; expected HOST:PORT"):
        _cli.parse_listen("foo")


def test_an_option_that_does_not_exist_is_not_taken_for_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        options("--port", "41999")
    assert "--port 41999" in capsys.readouterr().err


def test_options_without_arguments_are_the_documented_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert options() == {
        "host": "127.0.0.1",
        "port": 48148,
        "insecure": False,
        "token_file": "",
        "run": "default",
        "min_peers": 2,
        "hold_below": 1,
        "max_peers": 4096,
        "measure_links": True,
        "adopt": False,
        "refound": False,
        "again": 0,
        "state_file": str(tmp_path / "pccl" / "master-48148"),
        "port_file": "",
        "log_level": "info",
        "heartbeat_ms": 1000,
        "silence_ms": 10000,
        "patience_ms": 15000,
        "refound_after_ms": 60000,
        "lease_renew_ms": 1250,
        "package": __version__,
    }


def test_options_are_fields_of_the_masters_options_with_the_same_defaults() -> None:
    header = (ROOT / "csrc" / "master" / "options.h").read_text()
    for name, value in options("--state", "none").items():
        assert f'visit("{name}", self.{name});' in header
        if name == "package":
            continue
        if isinstance(value, bool):
            shown = f" {name} = {str(value).lower()};"
        elif isinstance(value, int):
            shown = f" {name} = {value};"
        else:
            shown = f' {name} = "{value}";' if value else f" {name};"
        assert shown in header


def test_seconds_become_milliseconds_and_patience_follows_the_eviction_time() -> None:
    chosen = options("--heartbeat", "0.25", "--evict-after", "2", "--refound-after", "7.5")
    assert chosen["heartbeat_ms"] == 250
    assert chosen["silence_ms"] == 2000
    assert chosen["patience_ms"] == 7000
    assert chosen["refound_after_ms"] == 7500


def test_with_several_masters_patience_takes_a_lease_more() -> None:
    chosen = options("--state", "etcd://a:1/k", "--lease", "4")
    assert chosen["state_file"] == "etcd://a:1/k"
    assert chosen["lease_renew_ms"] == 1000
    assert chosen["patience_ms"] == 19000


def test_state_file_is_by_port_in_the_state_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert options("--listen", ":5")["state_file"] == str(
        tmp_path / ".local" / "state" / "pccl" / "master-5"
    )
    assert options("--listen", ":0")["state_file"] == ""
    assert options("--state", "none")["state_file"] == ""
    assert options("--listen", ":0", "--state", "my file")["state_file"] == "my file"
    assert options("--run", "r", "--state", "none")["state_file"] == ""


def test_a_state_with_an_unknown_scheme_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "--state", "etdc://e:1/k")
    assert "'etdc://e:1/k' is no file and no URL of etcd" in said
    assert "expected etcd:// or etcds://HOST:PORT/KEY" in said
    assert options("--state", "./a:/b")["state_file"] == "./a:/b"


def test_an_ending_is_named_by_its_time_as_the_master_says_it_or_in_iso_8601() -> None:
    for text in (
        "2026-11-23 at 22:01:05 UTC", "2026-11-23T22:01:05Z", "2026-11-23 22:01:05",
    ):  # fmt: skip
        assert options("--again", text, "--state", "none")["again"] == 1795471265


def test_a_run_with_a_name_keeps_its_register_under_that_name_alone_or_not() -> None:
    assert options("--run", "r", "--state", "f")["state_file"] == "f-r"
    assert options("--run", "r", "--state", "etcd://a:1/k")["state_file"] == "etcd://a:1/k-r"
    runs = several("--run", "r", "--run", "default", "--state", "f")
    assert [run["state_file"] for run in runs] == ["f-r", "f"]


def test_flags_are_for_all_runs_and_settings_for_one() -> None:
    a, b, c = several(
        "--run", "a", "--run", "b:min-peers=4,again=1970-01-01T00:01:05Z,evict-after=2.5",
        "--run", "c:adopt",
        "--min-peers", "3", "--state", "none",
    )  # fmt: skip
    assert [run["run"] for run in (a, b, c)] == ["a", "b", "c"]
    assert [run["min_peers"] for run in (a, b, c)] == [3, 4, 3]
    assert [run["again"] for run in (a, b, c)] == [0, 65, 0]
    assert [run["adopt"] for run in (a, b, c)] == [False, False, True]
    assert [run["silence_ms"] for run in (a, b, c)] == [10000, 2500, 10000]
    assert b["patience_ms"] == 7500


@pytest.mark.parametrize(
    "argv",
    [
        ["--min-peers", "0"],
        ["--hold-below", "-1"],
        ["--heartbeat", "0"],
        ["--heartbeat", "nan"],
        ["--evict-after", "inf"],
        ["--evict-after", "1", "--heartbeat", "0.6"],
        ["--run", ""],
        ["--run", "two words"],
        ["--run", "x" * 129],
        ["--run", "a:min-peers"],
        ["--run", "a:again=1"],
        ["--again"],
        ["--again", "2026-11-23"],
        ["--again", "2026-13-23T22:01:05Z"],
        ["--run", "a:lease=3"],
        ["--run", "a:min-peers=0"],
        ["--run", ":min-peers=2"],
        ["--run", "a", "--run", "a"],
        ["--evict-after", "1", "--run", "a", "--run", "b:heartbeat=2"],
        ["--state", ""],
        ["--state", "etcd://host:1"],
        ["--state", "etdc://host:1/key"],
        ["--max-peers", "1", "--min-peers", "2"],
        ["--hold-below", "3", "--max-peers", "2"],
        ["--adopt", "--refound"],
        ["--log-level", "loud"],
        ["--listen", "a:b:c"],
        ["surplus"],
    ],
)
def test_a_wrong_argument_ends_with_status_2_and_its_name(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        _cli.main(argv)
    assert raised.value.code == 2
    assert argv[0] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["two words", "größe", "a%20b", "a\n", "x" * 129])
def test_a_name_that_no_run_can_have_is_refused_by_the_master_and_in_a_url(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = "1 to 128 letters of ASCII, digits, '-', '_' and '.'"
    with pytest.raises(SystemExit):
        _cli.main(["--run", name])
    assert f"{name!r} is not a run name: {rule}" in capsys.readouterr().err
    with pytest.raises(ValueError, match="as pccl-master --run has it") as caught:
        parse_url(f"pccl://a:1/{name}")
    assert rule in str(caught.value)


@pytest.mark.parametrize("name", ["a", "Llama-3.1_8b", "x" * 128])
def test_a_name_that_the_master_takes_can_stand_in_a_url(name: str) -> None:
    assert _cli.parse_run(name).name == name
    assert parse_url(f"pccl://a:1/{name}").run == name


def test_main_hands_the_options_to_the_core_and_returns_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Any]] = []

    def run_master(given: dict[str, Any], runs: list[tuple[dict[str, Any], object]]) -> int:
        ((run, register),) = runs
        assert register is None
        seen.append({**given, **run})
        return 7

    serve_by(monkeypatch, run_master)
    assert _cli.main(["--run", "r", "--state", "none", "--insecure"]) == 7
    assert seen == [options("--run", "r", "--state", "none", "--insecure")]


def serve_by(monkeypatch: pytest.MonkeyPatch, run_master: Callable[..., int]) -> None:
    """Has this function in place of the core's."""
    core = types.ModuleType("pccl_backend._core")
    core.run_master = run_master  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pccl_backend._core", core)
    monkeypatch.setattr("pccl_backend._core", core, raising=False)


def test_the_folder_of_the_default_state_file_is_made_and_no_other_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_by(monkeypatch, lambda *_: 0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    assert _cli.main(["--state", str(tmp_path / "typo" / "state")]) == 0  # the core refuses it
    assert _cli.main(["--listen", "127.0.0.1:0"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert _cli.main([]) == 0
    assert (tmp_path / "home" / "pccl").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert _cli.main([]) == 1
    assert "/dev/null/pccl" in capsys.readouterr().err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        _cli.main([*arguments])
    return capsys.readouterr().err


def test_wrong_words_about_tokens_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = str(tmp_path / "t")
    shared = ("--state", "etcd://e:1/k", "--listen", ":1")
    for words, arguments in {
        "argument --new-token": ("--new-token", "a b", "--token-file", file),
        "is not NAME[@RUN,...]": ("--new-token", "a@", "--token-file", file),
        "need --token-file FILE": ("--new-token", "a"),
        "give the two one by one": ("--new-token", "a", "--show-token", "a", "--token-file", file),
        "there is no token file": ("--show-token", "a", "--token-file", file),
        "not with --insecure": ("--insecure", "--token-file", file, "--state", "none"),
        "an empty name": ("--token-file", "", "--state", "none"),
        "several masters share the register": shared,
    }.items():
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        assert words in refusal(capsys, *arguments), arguments
    assert list(tmp_path.iterdir()) == []  # no token is made by itself for several masters


def test_a_token_is_added_and_what_is_said_of_it_holds_no_secret(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    assert _cli.main(["--token-file", str(file), "--new-token", "a@x,y"]) == 0
    said = capsys.readouterr().out
    assert f"The token 'a' is in {file}; it opens the runs x, y." in said
    (line,) = file.read_text().splitlines()
    assert line.startswith("a:")
    assert line.endswith("@x,y")
    assert line.split(":")[1] not in said
    assert 'there is a token "a" already' in refusal(
        capsys, "--token-file", str(file), "--new-token", "a"
    )


def test_help_explains_every_option_with_its_default() -> None:
    for action in _cli.build_parser()._actions:
        if action.dest in ("help", "version"):
            continue
        assert action.help, action.dest
        assert "(default: " in action.help, action.dest
        if action.type is _cli.positive_s:
            assert "seconds" in action.help, action.dest


def test_the_command_loads_without_torch_in_half_a_second_and_50_mb() -> None:
    program = (
        "import json, resource, sys\n"
        "from pccl_backend import _cli\n"
        "import pccl_backend._core\n"
        "_cli.build_parser()\n"
        "use = resource.getrusage(resource.RUSAGE_SELF)\n"
        # Not ru_maxrss: that of the process that started this one counts in it.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(json.dumps([sorted(n for n in ('torch', 'numpy') if n in sys.modules),\n"
        "                  use.ru_utime + use.ru_stime, int(peak.split()[1]) * 1024]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    heavy, cpu_s, rss_bytes = json.loads(run.stdout)
    assert heavy == []
    assert cpu_s < LOAD_CPU_S_MAX
    assert rss_bytes < LOAD_RSS_BYTES_MAX
