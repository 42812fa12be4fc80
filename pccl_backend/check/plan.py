"""Which checks there are, in the order in which they run."""

from __future__ import annotations

from .cases import Case, Check

PLAIN = (
    Check("versions", (Case(".installation:versions", ranks=1),), needed=True),
    Check("build", (Case(".installation:build", ranks=1),), needed=True),
    Check("options", (Case(".installation:options", ranks=1),)),
    Check("ports", (Case(".ports:ports", ranks=1),)),
    Check("fixed group", (Case(".fixed:results", ranks=3),)),
    Check("loss of a rank", (Case(".fixed:loss", ranks=3, dies=2),)),
    Check("elastic group", (Case(".elastic:survives", ranks=3, dies=2, master=True),)),
)
