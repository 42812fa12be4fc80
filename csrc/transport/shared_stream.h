// A byte stream through memory that two processes of one machine share (shared_memory.h). The unix
// socket over which they have proven who they are stays open beside it: it has passed the memory,
// it rings when a side sleeps, and its end is the end of the stream.
//
// The beginning, on the socket, after the LaneAnswer (handshake.h). All numbers are little-endian;
// a field called zero must be zero.
//   dialler   8 bytes: u8 1 (memory comes with this message) or 2 (there is none), u8 1 (its area
//             comes behind the memory) or 0, 2 x zero, u32 bytes of a ring (shared_memory.h; zero
//             without memory)
//   acceptor  8 bytes: u8 1 (the memory is mapped) or 2 (it is not), u8 1 (the dialler's area is
//             mapped) or 0, u8 1 (its own area comes with this message) or 0, 5 x zero; nothing
//             without memory
//   dialler   1 byte, if the acceptor's area has come: u8 1 (the area is mapped) or 2 (it is not)
// Without memory, or if it is not mapped, both sides go on over the socket alone, without areas.
// Otherwise each byte on the socket, the dialler's of above too, is a ring of the bell, whatever
// its value.
//
// An area (area.h) is nothing that the stream needs: one that cannot be passed or mapped is not
// there, and the bytes go through the rings all the same.
#pragma once

#include <cstddef>
#include <memory>

#include "transport/loop.h"
#include "transport/stream.h"

namespace pccl {

class OwnArea;

/// The dialling end, which makes the memory: two rings of so many bytes. `socket`: a proven unix
/// socket. `own`: the area of this process, which is passed to the other one; null: none.
[[nodiscard]] std::unique_ptr<Stream> offer_shared_memory(Loop& loop,
                                                          std::unique_ptr<Stream> socket,
                                                          std::size_t ring_bytes,
                                                          std::shared_ptr<OwnArea> own = nullptr);
/// The accepting end.
[[nodiscard]] std::unique_ptr<Stream> await_shared_memory(Loop& loop,
                                                          std::unique_ptr<Stream> socket,
                                                          std::shared_ptr<OwnArea> own = nullptr);

}  // namespace pccl
