// A program's call on a group: one operation, its memory, and the numbering of its ranks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/types.h"
#include "wire/messages.h"

namespace pccl {

/// Caller's memory; `data` may be null if `bytes` is 0.
struct Buffer {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// Do the two overlap?
inline bool touch(const Buffer& a, const Buffer& b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

/// Does one of the first overlap one of the second?
inline bool touch(const std::vector<Buffer>& some, const std::vector<Buffer>& others) {
  return std::any_of(some.begin(), some.end(), [&](const Buffer& a) {
    return std::any_of(others.begin(), others.end(), [&](const Buffer& b) { return touch(a, b); });
  });
}

inline std::uint64_t total_bytes(const std::vector<Buffer>& buffers) {
  std::uint64_t bytes = 0;
  for (const Buffer& b : buffers) bytes += b.bytes;
  return bytes;
}

/// How much of an operation's inputs has come, if another thread still fills them (with copies from
/// a device). Written by that thread, read by the engine; thread-safe.
struct InputGate {
  /// So many bytes of the inputs, one after the other in their order, hold data. Grows only.
  std::atomic<std::uint64_t> bytes{0};
};

/// The peer of each rank.
using Numbering = std::shared_ptr<const std::vector<PeerId>>;

/// One operation of a group. Buffers and ranks are ordered by the numbering that the caller sees
/// (rank() and size() of the group); collectives/schedule.h says which buffers a kind has.
struct OpRequest {
  OpDescriptor descriptor;  // root: rank, -1 if none; count: 0 where shapes may differ
  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  /// The numbering that the ranks of this request refer to, as the caller saw it
  /// (GroupView::numbering); null: the numbering when the engine takes the request.
  Numbering numbering;
  /// Of a quantised all_reduce: memory as large as the output, for what the codes of sums that this
  /// rank has made take from them (0 elsewhere); null: nobody wants it.
  float* sum_error = nullptr;
  std::shared_ptr<const InputGate> gate;  // null: the inputs are complete
  std::int32_t peer = -1;                 // send, recv: the other rank; recv: -1 is any
  std::uint64_t tag = 0;                  // send, recv
  std::uint64_t timeout_ms = 0;           // 0: none
  std::uint64_t order = 0;                // among the calls of the group; the engine counts
  std::shared_ptr<void> keep_alive;  // released after the outcome (tensors), on the engine's thread
};

}  // namespace pccl
