// Bounds the memory that a receiver needs. For operations that the receiver has not issued yet, a
// sender sends up to kUngrantedBytesMax to each peer, over all groups. Further segments wait here,
// at the sender, separately for each operation, so that no order of calls lets one operation block
// another. One object for each epoch of a group; engine's thread only.
//
// A receiver grants by number: a Grant says that it has issued all operations before `issued`. The
// receiver sends one when a sender asks (Want), and unasked after every quarter of the window, so
// that a sender whose receiver keeps up never waits.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "engine/context.h"
#include "wire/messages.h"

namespace pccl {

class Flow {
 public:
  Flow(EngineContext& context, GroupId group, EpochId epoch)
      : context_(context), group_(group), epoch_(epoch) {}
  ~Flow();
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  void send(PeerId peer, const SegmentHeader& header, const std::byte* data, MemoryToken token,
            std::uint32_t index);
  /// The peer has issued everything before `issued`.
  void granted(PeerId peer, OpKey issued);
  /// The peer wants to know when `op` is issued here; `issued`: one past our newest operation.
  void wanted(PeerId peer, OpKey op, OpKey issued);
  /// We have issued everything before `issued`.
  void issued(OpKey issued);
  /// Segments with `bytes` bytes came from the peer.
  void received(PeerId peer, std::uint32_t bytes, OpKey issued);
  /// The group is closed here. Its data that other members still keep stay counted.
  void close();
  /// Drops the segments that are held back under the token.
  void cancel(MemoryToken token);

 private:
  struct Held {
    SegmentHeader header;
    const std::byte* data;
    MemoryToken token;
    std::uint32_t index;
  };
  struct PeerFlow {
    OpKey granted;                             // by the peer
    std::map<OpKey, std::uint64_t> ungranted;  // bytes sent without a grant, by operation
    std::deque<Held> held;
    std::set<OpKey> asked;             // Want was sent
    std::map<OpKey, Kept> wants;       // Want came, not issued here yet
    std::uint64_t received_bytes = 0;  // since our last Grant
  };
  void tell(PeerId peer, PeerFlow& flow, OpKey issued);
  void give_back(PeerId peer, PeerFlow& flow, OpKey issued);
  [[nodiscard]] bool may_leave(PeerId peer, const PeerFlow& flow, const SegmentHeader& header);
  void pass(PeerId peer, PeerFlow& flow, const Held& segment);

  EngineContext& context_;
  GroupId group_;
  EpochId epoch_;
  std::unordered_map<PeerId, PeerFlow> peers_;
  bool any_wants_ = false;
};

/// Asks these questions of `Windows`.
void send_questions(Links& links, PeerId peer, const std::vector<Want>& wants);

}  // namespace pccl
