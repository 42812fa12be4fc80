// Sockets of a loop that listen or are about to connect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/loop.h"
#include "transport/poll.h"

namespace pccl {

/// A non-blocking TCP socket, closed on exec. `small_packets`: once it is connected, no packet of
/// either side carries more than kSmallPacketPayloadBytes.
[[nodiscard]] Result<Socket> new_tcp_socket(Loop& loop, int family, bool small_packets = false);
/// Listens on every host (none: all addresses, IPv6 and IPv4) at the same port: the first free one
/// of first..last, any if `first` is 0. Non-blocking sockets, whose connections have the options of
/// tune_socket from the beginning.
[[nodiscard]] Result<std::vector<Socket>> listen_on(Loop& loop,
                                                    const std::vector<std::string>& hosts,
                                                    std::uint16_t first, std::uint16_t last,
                                                    std::uint64_t user_timeout_ms = 0);

}  // namespace pccl
