// Connections between two processes of one machine that do not go over the network: unix sockets
// with a name that no file has (unix(7), "abstract"). Such a name is seen within one network
// namespace alone, so processes of different containers or emulated hosts do not meet here. The
// system tells which user is at the other end, and passes descriptors.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/ids.h"
#include "transport/loop.h"
#include "transport/poll.h"

namespace pccl {

/// The machine and the network namespace of this process, as only processes there can know it
/// ("boot id, namespace"); empty: the system does not say. Two processes with the same place that
/// reach each other by a name below have nobody in between: the name of the other one is its own.
[[nodiscard]] const std::string& local_place();

/// Listens under the name of this process. Non-blocking, as all sockets here.
[[nodiscard]] Result<Socket> listen_locally(Loop& loop, PeerId self);
/// A connection to the process of this name; nothing: no process of this machine and of this user
/// listens there.
[[nodiscard]] std::optional<Socket> connect_locally(Loop& loop, PeerId peer);

[[nodiscard]] bool is_local_socket(int fd);
/// Is the other end of this unix socket a process of the same user?
[[nodiscard]] bool is_same_user(int fd);

/// Sends as `send` does, and a copy of the descriptor with the bytes.
[[nodiscard]] std::ptrdiff_t send_with_descriptor(int fd, std::span<const std::byte> bytes,
                                                  int descriptor);
/// Reads as `recv` does, and sets `descriptor` to one that has come with the bytes; the caller
/// closes it. Further ones are closed.
[[nodiscard]] std::ptrdiff_t receive_with_descriptor(int fd, std::span<std::byte> into,
                                                     int& descriptor);

}  // namespace pccl
