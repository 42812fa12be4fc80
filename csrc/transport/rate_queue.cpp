#include "transport/rate_queue.h"

#include <algorithm>

namespace pccl {
namespace {

constexpr std::uint64_t kServeMs = 10;

}  // namespace

std::size_t RateQueue::allowed(const Sender& sender) {
  const bool served = serving_ == &sender;
  if (!served && !waiting_.empty()) return 0;
  const std::int64_t level = cap_.level(clock_.now_ms());
  if (served)
    return std::min(part_left_, static_cast<std::size_t>(std::max<std::int64_t>(0, level)));
  return level < static_cast<std::int64_t>(cap_.grain()) ? 0 : static_cast<std::size_t>(level);
}

void RateQueue::took(std::uint64_t bytes) {
  cap_.took(bytes);
  part_left_ -= std::min<std::uint64_t>(part_left_, bytes);
}

void RateQueue::wait(Sender& sender) {
  if (sender.waits_) return;
  sender.waits_ = true;
  waiting_.push_back(&sender);
  if (timer_) return;
  held_since_ms_ = clock_.now_ms();
  timer_ = clock_.timer(kServeMs, kServeMs, [this] { serve(); });
}

void RateQueue::leave(Sender& sender) {
  if (serving_ == &sender) serving_ = nullptr;
  if (!sender.waits_) return;
  sender.waits_ = false;
  std::erase(waiting_, &sender);
  if (serving_ == nullptr) rest_if_empty();
}

void RateQueue::serve() {
  for (std::size_t left = waiting_.size(); left > 0 && !waiting_.empty(); --left) {
    const std::int64_t level = cap_.level(clock_.now_ms());
    if (level < static_cast<std::int64_t>(cap_.grain())) break;  // the others come first next time
    Sender& next = *waiting_.front();
    waiting_.pop_front();
    next.waits_ = false;
    serving_ = &next;
    part_left_ = std::max(cap_.grain(), static_cast<std::size_t>(level) / left);
    next.send_on();
    serving_ = nullptr;
  }
  rest_if_empty();
}

void RateQueue::rest_if_empty() {
  if (!waiting_.empty() || !timer_) return;
  held_ms_ = held_ms();
  timer_.reset();
}

std::uint64_t RateQueue::held_ms() const {
  return held_ms_ + (timer_ ? clock_.now_ms() - held_since_ms_ : 0);
}

}  // namespace pccl
