// A byte stream through memory that two processes of one machine share (shared_memory.h). The unix
// socket over which they have proven who they are stays open beside it: it has passed the memory,
// it rings when a side sleeps, and its end is the end of the stream.
//
// The beginning, on the socket, after the LaneAnswer (handshake.h). All numbers are little-endian;
// a field called zero must be zero.
//   dialler   8 bytes: u8 1 (memory comes with this message) or 2 (there is none), 3 x zero,
//             u32 bytes of a ring (shared_memory.h; zero without memory)
//   acceptor  8 bytes: u8 1 (it is mapped) or 2 (it is not), 7 x zero; nothing without memory
// Without memory, or if it is not mapped, both sides go on over the socket alone. Otherwise each
// byte on the socket is a ring of the bell, whatever its value. Two values say something besides:
//   2  with a descriptor: that of the sender's area (area.h), at any time; a second one is dropped
//   3  the area of the other side is mapped
// An area is nothing that the stream needs: one that cannot be passed or mapped is not there.
#pragma once

#include <cstddef>
#include <memory>

#include "transport/loop.h"
#include "transport/stream.h"

namespace pccl {

/// The dialling end, which makes the memory: two rings of so many bytes. `socket`: a proven unix
/// socket.
[[nodiscard]] std::unique_ptr<Stream> offer_shared_memory(Loop& loop,
                                                          std::unique_ptr<Stream> socket,
                                                          std::size_t ring_bytes);
/// The accepting end.
[[nodiscard]] std::unique_ptr<Stream> await_shared_memory(Loop& loop,
                                                          std::unique_ptr<Stream> socket);

}  // namespace pccl
