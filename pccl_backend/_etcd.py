"""The register of a run in an etcd cluster, which several masters share.

Two keys: KEY holds the register, as bytes that csrc/master/register_file.h makes and reads;
KEY/holder the name of the master that is in charge, under a lease. The register changes only on
condition that it has not changed since this master last read or wrote it (etcd compares the
modification revision), so two masters never both succeed; the lease keeps them from taking turns.

Speaks the JSON gateway that etcd serves on its client port (3.4 or newer), with nothing but the
standard library: `pccl-master` runs where torch is not installed.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from ._config import ETCD_SCHEME

DEFAULT_PORT = 2379
REQUEST_TIMEOUT_S = 2.0
TAG_BYTES = 8


def parse_etcd(url: str) -> tuple[list[str], str]:
    """Splits `etcd://HOST[:PORT][,HOST[:PORT]…]/KEY` into addresses and key.

    Raises:
        ValueError: `url` is not of that form.
    """
    hosts, slash, key = url.removeprefix(ETCD_SCHEME).partition("/")
    if not url.startswith(ETCD_SCHEME) or not hosts or not slash or not key:
        raise ValueError(f"{url!r} is not etcd://HOST:PORT[,HOST:PORT...]/KEY")
    addresses = []
    for host in hosts.split(","):
        try:
            parts = urlsplit(f"http://{host}")
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise ValueError(f"{url!r}: {host!r} is not HOST:PORT") from None
        if not parts.hostname or parts.path or parts.username is not None:
            raise ValueError(f"{url!r}: {host!r} is not HOST:PORT")
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        addresses.append(f"{name}:{port}")
    return addresses, key


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


class EtcdError(Exception):
    """No member of the cluster answered as it should; the text names each and what it said."""


class EtcdRegister:
    """The register of a master, in etcd. Calls may come from any thread."""

    def __init__(self, url: str, *, lease_s: float, name: str) -> None:
        """Connects to nothing yet.

        Args:
            url: As parse_etcd takes it.
            lease_s: Seconds after which a standby may take over from a master that has died.
            name: Of this master, for the others' log.
        """
        self._addresses, self._key = parse_etcd(url)
        self._lease_s = max(1, round(lease_s))
        # Two masters of one name are still two holders.
        self._name = f"{name} ({socket.gethostname()}, process {os.getpid()})"
        # This tag begins what this master writes: two masters may want to write one register (both
        # take over from the same one), and have to see that only one of them did.
        self._tag = secrets.token_bytes(TAG_BYTES)
        self._lock = threading.Lock()
        self._next = 0  # in the list of addresses: the one that answered last
        self._revision: int | None = None  # of the register, as last read or written; 0: not there
        self._writes = 0
        self._lease = 0
        self._holder = ""

    # ------------------------------------------------------------------------- the register

    def read(self) -> bytes:
        """What the register holds, b"" if it was never written. Raises EtcdError."""
        answer = self._call("kv/range", {"key": _encode(self._key.encode())})
        found = answer.get("kvs") or []
        self._revision = int(found[0]["mod_revision"]) if found else 0
        return base64.b64decode(found[0].get("value", ""))[2 * TAG_BYTES :] if found else b""

    def write(self, value: bytes) -> bool:
        """Writes `value` if nobody has written since this master last read or wrote.

        Returns:
            False: somebody has, and nothing was written.

        Raises:
            EtcdError: Nobody knows what it holds now; read it anew.
        """
        revision, self._revision = self._revision, None
        if revision is None:
            return False
        key = _encode(self._key.encode())
        self._writes += 1
        value = self._tag + self._writes.to_bytes(TAG_BYTES, "big") + value
        answer = self._call(
            "kv/txn",
            {
                "compare": [
                    {
                        "key": key,
                        "target": "MOD",
                        "result": "EQUAL",
                        "mod_revision": str(revision),
                    }
                ],
                "success": [{"request_put": {"key": key, "value": _encode(value)}}],
                "failure": [{"request_range": {"key": key}}],
            },
        )
        if answer.get("succeeded"):
            self._revision = int(answer["header"]["revision"])
            return True
        # A request that was tried again at another member may have been carried out at the first.
        found = answer["responses"][0].get("response_range", {}).get("kvs") or []
        if found and base64.b64decode(found[0].get("value", "")) == value:
            self._revision = int(found[0]["mod_revision"])
            return True
        return False

    # ---------------------------------------------------------------------------- the lease

    def hold(self) -> bool:
        """Takes the lease or renews it. False: another master holds it (`holder`)."""
        if self._lease and self._keep_alive():
            return self._take()
        found = self._call("kv/range", {"key": _encode(f"{self._key}/holder".encode())})
        if self._is_others(found.get("kvs")):
            return False
        self._lease = int(self._call("lease/grant", {"TTL": str(self._lease_s)})["ID"])
        held = self._take()
        if not held:
            self.release()
        return held

    def holder(self) -> str:
        """Who holds the lease, as of the last call of hold()."""
        return self._holder

    def release(self) -> bool:
        """Gives the lease up; a standby takes over at once. Raises EtcdError."""
        lease, self._lease = self._lease, 0
        if lease:
            self._call("lease/revoke", {"ID": str(lease)})
        return True

    def _keep_alive(self) -> bool:
        answer = self._call("lease/keepalive", {"ID": str(self._lease)})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def _take(self) -> bool:
        """Puts this master's name under its lease where there is none."""
        key = _encode(f"{self._key}/holder".encode())
        put = {"key": key, "value": _encode(self._name.encode()), "lease": str(self._lease)}
        answer = self._call(
            "kv/txn",
            {
                "compare": [
                    {
                        "key": key,
                        "target": "CREATE",
                        "result": "EQUAL",
                        "create_revision": "0",
                    }
                ],
                "success": [{"request_put": put}],
                "failure": [{"request_range": {"key": key}}],
            },
        )
        if answer.get("succeeded"):
            self._holder = self._name
            return True
        found = answer["responses"][0].get("response_range", {}).get("kvs") or []
        return bool(found) and not self._is_others(found)

    def _is_others(self, found: list[dict[str, Any]] | None) -> bool:
        """Is this entry of the holder that of another master? Notes its name."""
        if not found:
            return False
        self._holder = base64.b64decode(found[0].get("value", "")).decode(errors="replace")
        return int(found[0].get("lease", 0)) != self._lease

    # -------------------------------------------------------------------------- the gateway

    def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a request to one member of the cluster after the other, until one answers."""
        with self._lock:
            first = self._next
        said = []
        for i in range(len(self._addresses)):
            at = (first + i) % len(self._addresses)
            try:
                answer = self._ask(self._addresses[at], method, body)
            except (OSError, ValueError, http.client.HTTPException) as error:
                said.append(f"{self._addresses[at]}: {error}")
                continue
            with self._lock:
                self._next = at
            return answer
        raise EtcdError(f"no etcd answered ({'; '.join(said)})")

    @staticmethod
    def _ask(address: str, method: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{address}/v3/{method}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        began = time.monotonic()
        try:
            with _direct.open(request, timeout=REQUEST_TIMEOUT_S) as response:
                # keepalive is a stream of answers: the first is the one that was asked for
                answer = json.loads(response.readline())
        except urllib.error.HTTPError as error:
            said = error.read(1000).decode(errors="replace").strip()
            raise OSError(f"HTTP status {error.code}: {said}") from None
        except urllib.error.URLError as error:
            raise OSError(f"{error.reason} (after {time.monotonic() - began:.1f} s)") from None
        if not isinstance(answer, dict):
            raise ValueError(f"answered {answer!r}, which is no etcd")
        return answer


# The environment's proxies are for the internet, not for a cluster of one's own.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
