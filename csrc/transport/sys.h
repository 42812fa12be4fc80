// What the operating system has: descriptors, options of sockets and what it knows of their
// connections, a clock. Nothing here uses a loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/line.h"

namespace pccl {

/// The descriptors that this process may have open.
[[nodiscard]] std::size_t descriptors_max();
/// How many of them are not open, by what /proc says; where there is none, all.
[[nodiscard]] std::size_t descriptors_free();
/// Could so many descriptors be opened now?
[[nodiscard]] bool descriptors_are_free(int count);

/// Sets an option of a socket, where the system knows it.
void set_option(int fd, int level, int option, int value);
/// Sets the options of a connection, or of a listening socket, whose connections inherit them: no
/// Nagle, keepalive, and an end if bytes are not acknowledged within `user_timeout_ms`.
void tune_socket(int fd, std::uint64_t user_timeout_ms);
/// Before a socket listens or connects: CUBIC or Reno in place of the BBR that the host has for
/// all, where this process may have that back, until tune_congestion knows the line. A connection
/// that began with BBR is paced by a timer for ever, whatever it has later.
void put_off_bbr(int fd);
/// For an established connection within one machine CUBIC or Reno in place of BBR, which halves the
/// rate there, and a small buffer, from which the other side reads what is still in the caches;
/// otherwise what put_off_bbr put off. Over a long way no more is taken ahead than what
/// is sent soon, and with `bbr` BBR is chosen, where the system lets this process have it, since
/// one lost packet halves the others' rate.
void tune_congestion(int fd, bool bbr);
/// For an established connection between machines: BBR, where the system lets this process have it;
/// or what the host has for all.
void go_by_model(int fd, bool by_model);
/// But for `by_model`, which has_bbr tells.
[[nodiscard]] Line line_of(int fd);
[[nodiscard]] bool has_bbr(int fd);
/// A connection sends no faster than this from now on; 0: as fast as it can.
void pace(int fd, std::uint64_t bytes_per_second);

[[nodiscard]] std::string errno_text(int error);

/// Milliseconds of a monotonic clock that also counts while the machine is suspended, where there
/// is one (Linux); the loop's stands still then.
[[nodiscard]] std::uint64_t boot_ms();

}  // namespace pccl
