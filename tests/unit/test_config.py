"""Options: precedence, what is refused and how it is said, and the URL of a master."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from pccl_backend import _config
from pccl_backend._config import (
    VARIABLES,
    Options,
    Replica,
    Target,
    interface_host,
    launches_block,
    parse_url,
    unread_variables,
)
from pccl_backend._cores import usual_threads


@pytest.mark.parametrize(
    ("url", "masters", "run"),
    [
        ("pccl://a:1", ("a:1",), ""),
        ("pccl://a:1/llama-1b", ("a:1",), "llama-1b"),
        ("pccl://a:1/llama-1b/", ("a:1",), "llama-1b"),
        ("pccl://a:1,b:2,10.0.0.1:3/r", ("a:1", "b:2", "10.0.0.1:3"), "r"),
        ("pccl://[::1]:5,b:2/r", ("[::1]:5", "b:2"), "r"),
        ("pccl://b:2,[fe80::1%eth0]:5", ("b:2", "[fe80::1%eth0]:5"), ""),
        ("pccl://a:1?rank=0&world_size=3", ("a:1",), ""),
        ("pccl://a:1/r?world_size=3", ("a:1",), "r"),
        ("a:1", ("a:1",), ""),
        ("a:01,b:2/r", ("a:1", "b:2"), "r"),
    ],
)
def test_a_url_names_masters_and_run(url: str, masters: tuple[str, ...], run: str) -> None:
    assert parse_url(url) == Target(masters, run)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "pccl://",
        "pccl://a",
        "pccl://a:",
        "pccl://:1",
        "pccl://a:0",
        "pccl://a:65536",
        "pccl://a:-1",
        "pccl://a:1x",
        "pccl://a:1,",
        "pccl://::1:5",
        "pccl://[::1]",
        "pccl://[zz]:5",
        "pccl://user@a:1",
        "pccl://a b:1",
        "pccl://a:1/r/s",
        "pccl://a:1/" + "r" * 129,
        "tcp://a:1",
        "pccl://" + ",".join(f"h{i}:1" for i in range(17)),
    ],
)
def test_a_wrong_url_is_refused_by_name_and_value(url: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse_url(url)
    assert repr(url) in str(caught.value)
    assert str(caught.value).startswith("url is ")


def test_every_option_has_one_variable() -> None:
    assert set(VARIABLES) == {field.name for field in dataclasses.fields(Options)}
    assert all(variable == f"PCCL_{field.upper()}" for field, variable in VARIABLES.items())


def test_variables_are_read_and_the_rest_is_default() -> None:
    environment = {
        "PCCL_MASTER": "pccl://a:1/r",
        "PCCL_ADVERTISE": "host, 10.0.0.1",
        "PCCL_PORTS": "4000-4010",
        "PCCL_LOG_LEVEL": "DEBUG",
        "PCCL_CONNECT_TIMEOUT_S": "2.5",
        "PCCL_PREIMAGE_BYTES": "1024",
        "PCCL_STEP_TIMEOUT_S": "60",
        "PCCL_ON_LOSS": "RAISE",
        "PCCL_STREAM_WAIT": "1",
        "PCCL_PLAINTEXT": "Loopback",
        "PCCL_OBJECTS": "0",
        "PCCL_CORE_DUMPS": "0",
        "PCCL_QUANTISE": "INT8_zero_point",
        "PCCL_HOLD_TIMEOUT_S": "",
    }
    assert Options.from_environment(environment) == Options(
        master="pccl://a:1/r",
        advertise=("host", "10.0.0.1"),
        ports=(4000, 4010),
        log_level="debug",
        connect_timeout_s=2.5,
        preimage_bytes=1024,
        step_timeout_s=60.0,
        on_loss="raise",
        stream_wait=True,
        plaintext="loopback",
        objects=False,
        core_dumps=False,
        quantise="int8_zero_point",
    )
    assert Options.from_environment({}) == Options()


def test_a_field_wins_over_its_variable_and_the_variable_over_the_default() -> None:
    variables = {"PCCL_NAME": "of the variable", "PCCL_PLAINTEXT": "none", "PCCL_QUANTISE": "int4"}
    given = Options(name="of the field", hold_timeout_s=5.0, quantise="none")
    merged = given.with_environment(variables)
    assert merged == Options(
        name="of the field", hold_timeout_s=5.0, quantise="none", plaintext="none"
    )
    assert Options().with_environment(variables) == Options.from_environment(variables)
    with pytest.raises(ValueError, match="PCCL_PLAINTEXT='some'"):
        given.with_environment({"PCCL_PLAINTEXT": "some"})


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_cuda_says_whether_launches_block(value: str, expected: bool) -> None:
    assert launches_block({"CUDA_LAUNCH_BLOCKING": value}) is expected
    assert launches_block({"HIP_LAUNCH_BLOCKING": value}) is expected
    assert not launches_block({})


def test_an_argument_wins_over_a_variable() -> None:
    given = Options.from_environment({"PCCL_CONNECT_TIMEOUT_S": "2.5", "PCCL_PORTS": "1-2"})
    assert dataclasses.replace(given, connect_timeout_s=7.0).connect_timeout_s == 7.0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PCCL_MASTER", "nowhere"),
        ("PCCL_JOIN_URL", "nowhere"),
        ("PCCL_PORTS", "4000"),
        ("PCCL_PORTS", "5-4"),
        ("PCCL_PORTS", "0-4"),
        ("PCCL_PORTS", "1-70000"),
        ("PCCL_LOG_LEVEL", "loud"),
        ("PCCL_CONNECT_TIMEOUT_S", "soon"),
        ("PCCL_CONNECT_TIMEOUT_S", "0"),
        ("PCCL_HOLD_TIMEOUT_S", "-1"),
        ("PCCL_STEP_TIMEOUT_S", "nan"),
        ("PCCL_STEP_TIMEOUT_S", "inf"),
        ("PCCL_PREIMAGE_BYTES", "1gib"),
        ("PCCL_PREIMAGE_BYTES", "8Mbit"),
        ("PCCL_PREIMAGE_BYTES", "1GiB/s"),
        ("PCCL_PREIMAGE_BYTES", "-1"),
        ("PCCL_PREIMAGE_BYTES", "9223372036854775808"),
        ("PCCL_ON_LOSS", "ignore"),
        ("PCCL_STREAM_WAIT", "yes"),
        ("PCCL_PLAINTEXT", "some"),
        ("PCCL_OBJECTS", "no"),
        ("PCCL_QUANTISE", "int7"),
        ("PCCL_ADVERTISE", "a,,b"),
        ("PCCL_MAX_RATE", "fast"),
        ("PCCL_MAX_RATE", "-1"),
        ("PCCL_MAX_RATE", "10mb"),
        ("PCCL_MAX_RATE", "10MB/min"),
        ("PCCL_MAX_RATE", "MB"),
        ("PCCL_MAX_RATE", "nan"),
        ("PCCL_MAX_RATE", "0.1"),
        ("PCCL_MAX_RATE", "1MB"),
        ("PCCL_MAX_RATE", "8Mbit"),
        ("PCCL_MAX_RATE", "1000.1GB"),
        ("PCCL_MAX_RATE", "9" * 400),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(variable: str, value: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        Options.from_environment({variable: value})
    assert str(caught.value).startswith(f"{variable}={value!r}: ")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("1MiB", 1 << 20),
        ("10MB", 10_000_000),
        ("10 MB/s", 10_000_000),
        ("1.5GiB", 3 << 29),
        ("2000kB", 2_000_000),
        ("80Mbit", 10_000_000),
        ("1Gbit/s", 125_000_000),
        ("1000GB", 10**12),
    ],
)
def test_a_rate_has_a_unit_or_is_in_bytes_a_second(text: str, rate: int) -> None:
    options = Options.from_environment({"PCCL_MAX_RATE": text})
    assert options.max_rate == rate
    assert options.to_engine()["max_rate"] == rate


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("2GiB", 1 << 31),
        ("1.5 KiB", 1536),
        ("500MB", 500_000_000),
        ("9007199254740993", (1 << 53) + 1),
    ],
)
def test_a_number_of_bytes_takes_units_too(text: str, size: int) -> None:
    assert Options.from_environment({"PCCL_PREIMAGE_BYTES": text}).preimage_bytes == size
    for wrong in (-1, 2.0, True, "1GiB", 1 << 63):
        with pytest.raises(ValueError, match=r"preimage_bytes is .*a whole number of bytes"):
            Options(preimage_bytes=wrong)  # type: ignore[arg-type]


def test_a_rate_that_is_refused_is_shown_as_it_was_given() -> None:
    with pytest.raises(ValueError, match="max_rate is 18446744073709551615; expected"):
        Options.from_environment({"PCCL_MAX_RATE": "18446744073709551615"})


@pytest.mark.parametrize("field", ["stream_wait", "shared_memory", "bbr", "objects", "core_dumps"])
def test_a_switch_is_true_or_false(field: str) -> None:
    for wrong in ("0", "no", 0, None):
        with pytest.raises(ValueError, match=f"{field} is {wrong!r}; expected True or False"):
            Options(**{field: wrong})  # type: ignore[arg-type]
    for right in (True, False):
        assert getattr(Options(**{field: right}), field) is right  # type: ignore[arg-type]


def test_ports_and_hosts_of_another_kind_are_refused() -> None:
    for ports in ("4000-4010", (1, 2, 3), ("1", "2"), 4000):
        with pytest.raises(ValueError, match=r"ports is .*; expected two ports 1\.\.65535"):
            Options(ports=ports)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="advertise is 'host'; expected a tuple of hosts"):
        Options(advertise="host")  # type: ignore[arg-type]


def test_a_name_of_several_is_taken_in_any_case_by_field_and_variable() -> None:
    of_fields = Options(log_level="DEBUG", on_loss="Raise", plaintext="NONE", quantise="INT8")
    assert of_fields == Options(
        log_level="debug", on_loss="raise", plaintext="none", quantise="int8"
    )
    variables = {"PCCL_ON_LOSS": "Raise", "PCCL_PLAINTEXT": "NONE", "PCCL_QUANTISE": "INT8"}
    assert Options.from_environment({**variables, "PCCL_LOG_LEVEL": "DEBUG"}) == of_fields


def test_a_rate_under_the_least_is_refused_with_the_least() -> None:
    for wrong in (-1, 1, (1 << 20) - 1, 10**12 + 1, True, 2e6, "10MB"):
        with pytest.raises(ValueError, match=r"max_rate is .*1048576 \(1MiB\)"):
            Options(max_rate=wrong)  # type: ignore[arg-type]
    assert Options().to_engine()["max_rate"] == 0
    no_cap = Options(max_rate=0).with_environment({"PCCL_MAX_RATE": "10MB"})
    assert no_cap.max_rate == 0


def test_threads_are_whole_numbers_from_1_to_64() -> None:
    assert Options().to_engine()["threads"] == usual_threads()
    assert Options.from_environment({"PCCL_THREADS": "64"}).to_engine()["threads"] == 64
    for wrong in (0, 65, -1, True, 2.0, "2"):
        with pytest.raises(ValueError, match=r"threads is .* expected a whole number, 1 to 64"):
            Options(threads=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["0", "65", "-1", "two", "1.5"])
def test_a_wrong_number_of_threads_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="PCCL_THREADS='"):
        Options.from_environment({"PCCL_THREADS": wrong})


def test_options_become_fields_of_the_engine() -> None:
    options = Options(ports=(4000, 4010), connect_timeout_s=0.25, advertise=("a",)).to_engine()
    assert options["port_first"] == 4000
    assert options["port_last"] == 4010
    assert (options["connect_timeout_ms"], options["master_timeout_ms"]) == (250, 250)
    default = Options().to_engine()
    assert (default["connect_timeout_ms"], default["master_timeout_ms"]) == (10_000, 60_000)
    assert options["advertise"] == ["a"]
    assert options["listen_hosts"] == []


def test_a_process_is_called_by_host_and_number_or_as_it_wishes() -> None:
    options = Options().to_engine()
    assert options["name"] == f"{options['host']}/{os.getpid()}"
    assert Options(name="trainer b").to_engine()["name"] == "trainer b"
    for wrong in ("x" * 65, "a\nb", "\x1b[2J", "ä" * 33, "a\u202eb", "\udcff"):
        with pytest.raises(ValueError, match="1 to 64 bytes of characters to print"):
            Options(name=wrong)


def test_an_interface_is_its_address_and_is_advertised() -> None:
    assert interface_host("127.0.0.1") == "127.0.0.1"
    assert interface_host("[::1]") == "::1"
    assert interface_host("lo") == "127.0.0.1"
    options = Options(interface="lo").to_engine()
    assert options["listen_hosts"] == ["127.0.0.1"]
    assert options["advertise"] == ["127.0.0.1"]
    wrong = r"interface \(PCCL_INTERFACE\) is 'no-such-interface'; expected .* among .*lo"
    with pytest.raises(ValueError, match=wrong):
        interface_host("no-such-interface")


def test_an_interface_without_ipv4_is_its_lasting_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "20010db8000000000000000000000001 03 40 00 80  another\n"
        "20010db8000000000000000000000002 02 40 00 a0  no-ipv4\n"  # deprecated
        "20010db8000000000000000000000003 02 40 00 01  no-ipv4\n"  # temporary
        "20010db8000000000000000000000004 02 40 00 88  no-ipv4\n"  # another host has it
        "20010db8000000000000000000000005 02 40 00 c0  no-ipv4\n"  # perhaps
        "20010db8000000000000000000000006 02 40 40 80  no-ipv4\n"  # of its site
        "20010db8000000000000000000000007 02 40 00 80  no-ipv4\n"
        "20010db8000000000000000000000008 02 40 00 80  no-ipv4\n"
        "20010db8000000000000000000000009 02 40 00 20  aged\n"
        "20010db800000000000000000000000a 02 40 00 21  aged\n"
        "fe800000000000000000000000000001 02 40 20 80  no-ipv4\n"  # of its link
        "fe800000000000000000000000000001 04 40 20 80  link-only\n"
    )
    monkeypatch.setattr(_config, "IPV6_ADDRESSES", table)
    assert interface_host("no-ipv4") == "2001:db8::7"
    assert interface_host("aged") == "2001:db8::9"
    assert interface_host("lo") == "127.0.0.1"
    with pytest.raises(ValueError, match="an interface that has one"):
        interface_host("link-only")
    table.unlink()
    with pytest.raises(ValueError, match="an interface that has one"):
        interface_host("no-ipv4")


def test_the_fields_are_those_of_the_engine() -> None:
    from conftest import ROOT

    sources = ("engine/options.h", "transport/transport.h")  # EngineOptions, LinkOptions
    text = "".join((ROOT / "csrc" / source).read_text() for source in sources)
    for name in set(Options().to_engine()) - {"token_file"}:  # what is in it becomes `tokens`
        assert f" {name}" in text, name


def test_one_torchrun_is_one_replica() -> None:
    environment = {
        "TORCHELASTIC_RUN_ID": "west",
        "RANK": "1",
        "WORLD_SIZE": "4",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    assert Replica.from_torchrun(environment) == Replica("west", rank=1, size=4, attempt=2)
    with pytest.raises(ValueError, match="WORLD_SIZE not set"):
        Replica.from_torchrun({**environment, "WORLD_SIZE": ""})


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("", 0, 1), "name is ''"),
        (("x" * 129, 0, 1), "128 bytes"),
        (("a", 2, 2), "rank is 2"),
        (("a", -1, 2), "rank is -1"),
        (("a", 0, 5000), "at most 4096"),
        (("a", 0, 1, -1), "attempt is -1"),
    ],
)
def test_what_is_no_place_in_a_replica_is_refused(place: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Replica(*place)


def test_a_join_without_a_url_means_that_of_the_environment() -> None:
    of_replica = {"PCCL_JOIN_URL": "pccl://b:2/r"}
    assert Options.from_environment(of_replica).join_target() == Target(("b:2",), "r")
    both = {"PCCL_MASTER": "pccl://a:1", **of_replica}
    assert Options.from_environment(both).join_target() == Target(("b:2",), "r")
    assert Options(master="pccl://a:1").join_target() == Target(("a:1",))
    with pytest.raises(ValueError, match="neither PCCL_JOIN_URL nor PCCL_MASTER is set; expected"):
        Options().join_target()


def test_variables_of_the_launcher_are_not_named_as_unread() -> None:
    assert unread_variables({"PCCL_RUN_NOTE": "/tmp/x", "PCCL_RUN_METADATA": ""}) == []


def test_a_variable_that_nobody_reads_is_named() -> None:
    variables = {"PCCL_STEP_TIMEOUT": "3", "PCCL_LOG_LEVEL": "info", "PCCL_XYZZY": "", "HOME": "/"}
    step, other = unread_variables(variables)
    assert step.startswith("the variable PCCL_STEP_TIMEOUT is set")
    assert step.endswith("; PCCL_STEP_TIMEOUT_S was meant?")
    assert other == "the variable PCCL_XYZZY is set, and pccl reads none of that name"
