"""The version of this package. Not that of the protocol (csrc/base/protocol.h).

Members and masters of several package versions work together as long as their protocol version is
the same; each tells the other its own, for people and logs.
"""

__version__ = "0.2.0"
