"""A cluster of real `etcd` processes for tests: in the clear or by TLS, with users or without."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Pair
from conftest import PATIENCE_S, free_port, wait_until

WHERE = "Debian's etcd-server is not installed: make setup does it"


class Etcd:
    """A cluster on free ports of this machine.

    With an authority its members speak https and ask for a certificate of that authority; `own` is
    such a one, which the test shows them, and `server` theirs.
    """

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        authority: Authority | None = None,
        server: Pair | None = None,
        asks_for_certificates: bool = True,
    ) -> None:
        binary = shutil.which("etcd")
        if binary is None:
            pytest.fail(WHERE)
        self.clients = [free_port() for _ in range(count)]
        peers = [free_port() for _ in range(count)]
        cluster = ",".join(f"m{i}=http://127.0.0.1:{peers[i]}" for i in range(count))
        self.processes: list[subprocess.Popen[bytes]] = []
        self._commands: list[list[str]] = []
        self.folder = folder
        self._scheme = "http" if authority is None else "https"
        self.own: Pair | None = None
        tls: list[str] = []
        if authority is not None:
            self.own = authority.issue("test")
            server = server or authority.issue("etcd")
            tls = ["--cert-file", str(server.certificate), "--key-file", str(server.key)]
            if asks_for_certificates:
                tls += ["--client-cert-auth", "--trusted-ca-file", str(authority.certificate)]
        for i in range(count):
            client = f"{self._scheme}://127.0.0.1:{self.clients[i]}"
            peer = f"http://127.0.0.1:{peers[i]}"
            command = [binary, "--name", f"m{i}", "--data-dir", str(folder / f"etcd-{i}")]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--initial-cluster", cluster, "--unsafe-no-fsync", *tls]
            self._commands.append(command)
            self.processes.append(self._start(i))
        wait_until(self.healthy, what="the etcd cluster")

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        with (self.folder / f"etcd-{index}.log").open("ab") as log:
            return subprocess.Popen(self._commands[index], stdout=log, stderr=log)

    def restart(self) -> None:
        """All of them anew, with what they have on disk: what they had given in logins is gone."""
        self.signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(PATIENCE_S)
        self.processes = [self._start(i) for i in range(len(self.processes))]
        wait_until(self.healthy, what="the etcd cluster")

    def _open(
        self, port: int, path: str, body: dict[str, Any] | None = None, token: str = ""
    ) -> Any:
        context = None
        if self.own is not None:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.load_cert_chain(self.own.certificate, self.own.key)
        request = urllib.request.Request(  # noqa: S310
            f"{self._scheme}://127.0.0.1:{port}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": token} if token else {},
        )
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310
            return json.loads(answer.read())

    def healthy(self) -> bool:
        for port in self.clients:
            try:
                if self._open(port, "health")["health"] != "true":
                    return False
            except OSError:
                return False
        return True

    def ask(
        self, method: str, body: dict[str, Any], *, login: tuple[str, str] | None = None
    ) -> Any:
        """One request, as the user `login` (name and password)."""
        token = ""
        if login is not None:
            named = {"name": login[0], "password": login[1]}
            token = self._open(self.clients[0], "v3/auth/authenticate", named)["token"]
        return self._open(self.clients[0], f"v3/{method}", body, token)

    def make_users(self, user: str, password: str, prefix: str) -> None:
        """From now on everybody logs in: root, and a user for the keys that begin with `prefix`."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        keys = {
            "key": base64.b64encode(prefix.encode()).decode(),
            "range_end": base64.b64encode(end.encode()).decode(),
        }
        self.ask("auth/user/add", {"name": "root", "password": "of root"})
        self.ask("auth/user/grant", {"user": "root", "role": "root"})
        self.ask("auth/user/add", {"name": user, "password": password})
        self.ask("auth/role/add", {"name": user})
        self.ask("auth/role/grant", {"name": user, "perm": {"permType": "READWRITE", **keys}})
        self.ask("auth/user/grant", {"user": user, "role": user})
        self.ask("auth/enable", {})

    @property
    def state(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.clients)
        return f"{'etcd' if self.own is None else 'etcds'}://{hosts}/pccl/test"

    def signal(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait(PATIENCE_S)
