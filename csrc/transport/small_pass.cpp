#include "transport/small_pass.h"

#include <utility>

namespace pccl {
namespace {

constexpr std::uint64_t kOnTheWayMs = SmallPass::kSeenMs / 3;  // of what was sent before
constexpr std::uint64_t kMessagesBytes = 64U << 10;            // that messages may take on a lane

constexpr std::uint64_t kJoinedBytes = 4U << 10;  // the first frames of new lanes

}  // namespace

void SmallPass::begin(const Look& look) {
  found_ = false;
  since_ms_ = look.now_ms;
  arrived_ = look.arrived_bytes;
  resent_ = 0;
  messages_.reset();
}

bool SmallPass::look(const Look& look) {
  const Look last = std::exchange(last_, look);
  const bool begins = !std::exchange(busy_, look.sends);  // nobody looks at an idle link
  if (begins || !look.sends) {
    begin(look);
    return false;
  }
  if (look.bulk_lanes != last.bulk_lanes || look.arrived_bytes < arrived_) {
    arrived_ = look.arrived_bytes;  // lanes have come or gone: no news
  }
  // Once the bulk lanes are lost, the lane of the messages has to carry large data, too.
  const std::uint64_t others = found_ ? kMessagesBytes : kJoinedBytes;
  if (look.arrived_bytes > arrived_ + others) {
    begin(look);
    return false;
  }
  if (look.resent_bytes > last.resent_bytes) resent_ += look.resent_bytes - last.resent_bytes;
  const std::uint64_t passed_ms = look.now_ms - since_ms_;
  if (!messages_ && passed_ms >= kOnTheWayMs) messages_ = look.messages;
  if (found_ || look.bulk_lanes == 0 || passed_ms < kSeenMs || resent_ == 0) return false;
  found_ = messages_ && look.messages >= *messages_ + kMessages;
  return found_;
}

}  // namespace pccl
