// A process of a walk that lies: what leaves it, to masters and to other members, is now and then
// something else than its engine has said. Its engine is a sound one, so that its lies come in the
// middle of what is expected. Lies have the form that the wire demands, mostly: framing and its
// checks are not simulated here (tests/fuzz has them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../liar.h"
#include "base/random.h"
#include "wires.h"

namespace pccl::sim {

class Liar {
 public:
  /// The generator that draws the lies of the walk with this seed begins with it.
  [[nodiscard]] static std::uint64_t lies_from(std::uint64_t seed);

  explicit Liar(std::uint64_t seed);

  PeerId who;
  std::vector<PeerId> others;  // the sound ones, as far as there are any
  bool begun = false;          // from when on it lies

  /// What goes to a master in place of this message: any number of messages.
  [[nodiscard]] std::vector<std::vector<std::byte>> to_master(std::span<const std::byte> said);
  /// What goes over a link in place of this frame. The frame itself, which the liar's own engine
  /// waits for, is always among them, perhaps with another content.
  [[nodiscard]] std::vector<FramePointer> to_peer(FramePointer said);
  [[nodiscard]] std::string about() const;

 private:
  enum class Subject : std::uint8_t { reports, messages, segments, relays };
  [[nodiscard]] bool lies_about(Subject subject);
  void learn(const Frame& frame);
  [[nodiscard]] FramePointer message();
  [[nodiscard]] FramePointer segment(const SegmentHeader& like);
  [[nodiscard]] FramePointer relay();
  void spoil(SegmentHeader& header);
  void spoil_payload(Frame& frame);
  [[nodiscard]] std::vector<std::byte> spoiled_message(std::span<const std::byte> said);
  [[nodiscard]] GroupId some_group();
  [[nodiscard]] EpochId some_epoch();
  [[nodiscard]] OpKey some_op();
  [[nodiscard]] PeerId someone();
  [[nodiscard]] std::uint64_t near(std::uint64_t n);
  template <typename T>
  void spoil_field(T& field);

  Random chance_;
  std::uint64_t lies_percent_[4] = {};
  Known known_;
  std::vector<GroupId> groups_;
  std::vector<SegmentHeader> seen_;  // the newest that it has sent
  std::uint64_t lies_ = 0;
};

}  // namespace pccl::sim
