"""Certificates of an authority of the test's own, made with the command `openssl`."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Its certificate is `certificate`; `issue` makes others."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl(
            *("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(self._key), "-out", str(self.certificate)),
        )

    def issue(
        self, name: str, *, hosts: str = "IP:127.0.0.1", days: int = 2, begins: str = ""
    ) -> Pair:
        """For servers and clients. With `days` below 1 it has expired; with `begins`, as
        "20990101000000Z", it lasts a year from then on. It names no CN."""
        made = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.cnf"
        extensions.write_text(
            f"subjectAltName={hosts}\nextendedKeyUsage=serverAuth,clientAuth\n", encoding="ascii"
        )
        _openssl(
            *("req", *_KEY, "-subj", f"/O={name}", "-keyout", str(made.key), "-out", str(request))
        )
        if begins:
            self._issue_later(request, extensions, made, begins)
            return made
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate)),
            *("-CAkey", str(self._key), "-CAcreateserial", "-days", str(days)),
            *("-extfile", str(extensions), "-out", str(made.certificate)),
        )
        return made

    def _issue_later(self, request: Path, extensions: Path, made: Pair, begins: str) -> None:
        settings = self._folder / "ca.cnf"
        (self._folder / "index.txt").touch()
        settings.write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={self._folder / 'index.txt'}\n"
            f"new_certs_dir={self._folder}\nrand_serial=yes\npolicy=p\ndefault_md=sha256\n"
            "[p]\norganizationName=optional\n",
            encoding="ascii",
        )
        ends = f"{int(begins[:4]) + 1}{begins[4:]}"
        _openssl(
            *("ca", "-batch", "-notext", "-config", str(settings), "-in", str(request)),
            *("-cert", str(self.certificate), "-keyfile", str(self._key)),
            *("-startdate", begins, "-enddate", ends),
            *("-extfile", str(extensions), "-out", str(made.certificate)),
        )


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
