"""The masters of a chaos run: one with its state in a file, or several over three etcds.

Starts and ends their processes, and reads from their logs who is in charge. What is done to them,
and when, is decided elsewhere (harm.py). Every master and every etcd has a host of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos.lines import is_in_charge
from wan.wan import Wan

from pccl_backend.demo.growing_file import GrowingFile

PORT = 48148
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
ETCDS = 3
LEASE_S = 4.0
END_S = 30.0
Popen = Callable[[int, list[str], Path], "subprocess.Popen[bytes]"]


@dataclass
class Server:
    """A master or an etcd as seen from outside; `process` is None while it was killed."""

    name: str
    host: int
    command: list[str]
    log: GrowingFile
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    in_charge: bool = False

    def look(self) -> None:
        """Is it in charge, by its own words?"""
        self.in_charge = bool(is_in_charge(self.log.new_lines(), self.in_charge))

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        process, self.process, self.in_charge = self.process, None, False
        if process is not None:
            process.kill()
            process.wait()


class Masters:
    """`count` of them; with several the first hosts are theirs, the next three the etcds'."""

    def __init__(
        self, wan: Wan, popen: Popen, folder: Path, options: list[str], count: int
    ) -> None:
        self._popen = popen
        self.hosts = list(range(1, count + 1))
        etcd_hosts = list(range(count + 1, count + 1 + ETCDS)) if count > 1 else []
        self.etcds = [
            Server(
                f"etcd {i}",
                host,
                self._etcd(wan, i, etcd_hosts, folder),
                GrowingFile(folder / f"etcd-{i}.log"),
            )
            for i, host in enumerate(etcd_hosts)
        ]
        clients = ",".join(f"{wan.address(host)}:{ETCD_PORT}" for host in etcd_hosts)
        state = f"etcd://{clients}/pccl/chaos" if etcd_hosts else str(folder / "register")
        self.all = []
        for i, host in enumerate(self.hosts):
            command = [sys.executable, "-m", "pccl_backend._cli", *options, "--state", state]
            command += ["--listen", f"{wan.address(host)}:{PORT}"]
            if count > 1:
                command += ["--lease", str(LEASE_S)]
            log = folder / ("master.log" if count == 1 else f"master-{i}.log")
            self.all.append(Server(f"master {i}", host, command, GrowingFile(log)))
        addresses = ",".join(f"{wan.address(host)}:{PORT}" for host in self.hosts)
        self.url = f"pccl://{addresses}/chaos"

    @staticmethod
    def _etcd(wan: Wan, index: int, hosts: list[int], folder: Path) -> list[str]:
        def at(host: int, port: int) -> str:
            return f"http://{wan.address(host)}:{port}"

        cluster = ",".join(f"m{i}={at(host, ETCD_PEER_PORT)}" for i, host in enumerate(hosts))
        client, peer = at(hosts[index], ETCD_PORT), at(hosts[index], ETCD_PEER_PORT)
        command = ["etcd", "--name", f"m{index}", "--data-dir", str(folder / f"etcd-{index}")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        # Its own times are for one rack: a busy machine would elect a leader every few seconds.
        command += ["--heartbeat-interval", "300", "--election-timeout", "3000"]
        return [*command, "--initial-cluster", cluster, "--unsafe-no-fsync"]

    def start(self, server: Server) -> None:
        server.process = self._popen(server.host, server.command, server.log.path)

    def in_charge(self) -> Server | None:
        """None while nobody is, as far as is known."""
        if len(self.all) == 1:
            return self.all[0] if self.all[0].process is not None else None
        found = [m for m in self.all if m.in_charge and m.process is not None]
        return found[-1] if found else None

    def standby(self) -> Server | None:
        chief = self.in_charge()
        found = [m for m in self.all if m is not chief and m.process is not None]
        return found[0] if chief is not None and found else None

    def look(self) -> list[str]:
        """Reads the logs; returns who has ended by itself."""
        wrong = []
        for server in [*self.all, *self.etcds]:
            server.look()
            status = None if server.process is None else server.process.poll()
            if status is not None:
                wrong.append(f"{server.name} ended by itself with status {status}")
                server.process = None
        return wrong

    def finish(self) -> list[str]:
        """SIGTERM to all masters, the standbys first; returns who did not end in good order."""
        chief = self.in_charge()
        wrong = []
        for master in sorted(self.all, key=lambda m: m is chief):
            process, master.process = master.process, None
            if process is None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                wrong.append(f"{master.name} did not end within {END_S:.0f} s of SIGTERM")
                continue
            if status != 0:
                wrong.append(f"{master.name} ended with status {status} after SIGTERM")
        return wrong

    def close(self) -> None:
        for server in [*self.all, *self.etcds]:
            server.kill()
