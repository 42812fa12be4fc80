#include "transport/widening.h"

#include <algorithm>
#include <utility>

#include "transport/sys.h"

namespace pccl {
namespace {

constexpr std::uint64_t kLookMs = 50;
constexpr std::uint64_t kOtherDialsMs = 500;
constexpr std::uint64_t kRefusedMs = 600'000;  // then lanes are dialled again
constexpr std::size_t kDescriptorsLeft = 256;  // for everything else

}  // namespace

void Widening::wake() {
  if (timer_) return;
  last_ = calls_.load();
  last_ms_ = loop_.now_ms();
  timer_ = loop_.timer(kLookMs, kLookMs, [this] { look(); });
}

void Widening::refused() { not_before_ms_ = loop_.now_ms() + kRefusedMs; }

void Widening::look() {
  const LinkLoad load = calls_.load();
  const std::uint64_t now = loop_.now_ms();
  const LinkLoad before = std::exchange(last_, load);
  const std::uint64_t since_ms = std::exchange(last_ms_, now);
  if (!load.sends) {
    timer_.reset();
    return;
  }
  if (!load.full || !before.full) return;
  const std::uint64_t delivered = std::max(load.delivered, before.delivered) - before.delivered;
  const std::size_t wanted = count_.look({(now - since_ms) * 1000, delivered, load.round_trip_us});
  calls_.use(wanted);
  if (wanted <= least_ || load.lanes + load.joining >= wanted) {
    lacks_since_ms_ = 0;
  } else {
    dial(load);
  }
}

void Widening::dial(const LinkLoad& load) {
  const std::uint64_t now = loop_.now_ms();
  if (lacks_since_ms_ == 0) lacks_since_ms_ = now;
  if (now < not_before_ms_ || (!dials_ && now - lacks_since_ms_ < kOtherDialsMs)) return;
  const std::size_t more = count_.wanted() - load.lanes - load.joining;
  if (!descriptors_are_free(static_cast<int>(more + kDescriptorsLeft))) return refused();
  calls_.dial(more);
}

}  // namespace pccl
