"""The flags of `pccl-master` that say how etcd is spoken to: authorities, certificate, user.

A password is never an argument, which every user of a machine can read. Only words are judged here;
the files are read by _etcd_gateway.py, which is loaded where etcd is used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ._config import ETCD_PASSWORD, ETCD_SCHEMES, ETCD_TLS_SCHEME, take_etcd_password

if TYPE_CHECKING:
    import argparse

    from ._etcd_gateway import Access, Login

_OF_TLS = ("etcd_ca", "etcd_cert", "etcd_key")
_OF_ETCD = ("etcd_user", "etcd_password_file", "lease")


def of_arguments(arguments: argparse.Namespace) -> Access | None:
    """How the etcd of --state is spoken to; None: --state names no etcd.

    Prints a warning where others can read and change what is said.

    Raises:
        ValueError: The flags do not fit, or a file is not what it has to be; names the flag.
    """
    state: str = arguments.state or ""
    for flags, scheme in ((_OF_TLS, ETCD_TLS_SCHEME), (_OF_ETCD, ETCD_SCHEMES)):
        for flag in flags:
            if getattr(arguments, flag) is None:
                continue
            name = f"argument --{flag.replace('_', '-')}"
            if not state.startswith(scheme):
                raise ValueError(f"{name}: only with --state {ETCD_TLS_SCHEME}HOST:PORT/KEY")
            if not getattr(arguments, flag):
                raise ValueError(f"{name}: an empty name")
    if not state.startswith(ETCD_SCHEMES):
        return None
    if (arguments.etcd_cert is None) != (arguments.etcd_key is None):
        raise ValueError("argument --etcd-cert: only with --etcd-key, and the other way round")
    from . import _etcd_gateway as gateway

    try:
        addresses, _ = gateway.parse_etcd(state)
    except ValueError as error:
        raise ValueError(f"argument --state: {error}") from None
    tls = None
    if state.startswith(ETCD_TLS_SCHEME):
        tls = gateway.Tls(
            ca=arguments.etcd_ca or "",
            certificate=arguments.etcd_cert or "",
            key=arguments.etcd_key or "",
        )
    access = gateway.Access(tls=tls, login=_login(arguments))
    warning = gateway.check_access(addresses, access)
    if warning:
        print(f"pccl-master: warning: {warning}", file=sys.stderr)
    return access


def _login(arguments: argparse.Namespace) -> Login | None:
    from ._etcd_gateway import Login

    user: str | None = arguments.etcd_user
    file: str = arguments.etcd_password_file or ""
    password = take_etcd_password()
    if user is None:
        if file or password:
            what = "argument --etcd-password-file" if file else f"the variable {ETCD_PASSWORD}"
            raise ValueError(f"{what}: only with --etcd-user, whose password it is")
        return None
    if not file and not password:
        raise ValueError(
            "argument --etcd-user: needs the password of this user, in --etcd-password-file FILE "
            f"or in the variable {ETCD_PASSWORD}"
        )
    return Login(user, file=file, password=password)
