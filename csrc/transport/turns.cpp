#include "transport/turns.h"

#include <algorithm>
#include <utility>

#include "transport/helpers.h"

namespace pccl {
namespace {

constexpr std::uint64_t kTurnsNs = 4'000'000;  // of a round
// To move less takes no longer than to hand it over to another thread.
constexpr std::size_t kWorthHelpBytes = 16U << 10;
constexpr std::size_t kPerThread = 2;  // since some have less to move than others

}  // namespace

void Turns::enter(Mover& mover) {
  if (!std::exchange(mover.waits_, true)) waiting_.push_back(&mover);
}

void Turns::leave(Mover& mover) {
  if (std::exchange(mover.waits_, false)) std::erase(waiting_, &mover);
  std::replace(served_.begin(), served_.end(), &mover, static_cast<Mover*>(nullptr));
}

void Turns::serve(Helpers& helpers, std::uint64_t (*now_ns)()) {
  const std::uint64_t began_ns = now_ns();
  const auto over = [&] { return now_ns() - began_ns > kTurnsNs; };
  const std::size_t at_once = helpers.threads() > 1 ? kPerThread * helpers.threads() : 1;
  for (std::size_t left = waiting_.size(); left > 0 && !waiting_.empty() && !over();) {
    const std::size_t count = std::min({left, at_once, waiting_.size()});
    left -= count;
    begin(count);
    do {
      step(helpers);
    } while (!served_.empty() && !over());
    while (!served_.empty()) {  // in any order: a mover that rests may end others
      Mover* last = served_.back();
      served_.pop_back();
      if (last != nullptr) last->rest();
    }
  }
}

void Turns::begin(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Mover* mover = waiting_.front();
    waiting_.pop_front();
    mover->waits_ = false;
    mover->largest_before_ = std::exchange(mover->largest_, 0);
    served_.push_back(mover);
  }
}

void Turns::step(Helpers& helpers) {
  std::size_t heavy = 0;
  for (std::size_t i = 0; i < served_.size(); ++i) {
    Mover* mover = served_[i];
    if (mover == nullptr) continue;
    if (mover->prepare()) {
      const bool stays = served_[i] != nullptr;
      if (stays && std::max(mover->largest_, mover->largest_before_) >= kWorthHelpBytes) ++heavy;
      continue;
    }
    if (std::exchange(served_[i], nullptr) != nullptr) mover->rest();
  }
  std::erase(served_, nullptr);
  const auto move = [this](std::size_t i) {
    served_[i]->largest_ = std::max(served_[i]->largest_, served_[i]->move());
  };
  if (heavy > 1) {
    helpers.each(served_.size(), move);
  } else {
    for (std::size_t i = 0; i < served_.size(); ++i) move(i);
  }
  for (std::size_t i = 0; i < served_.size(); ++i) {
    if (served_[i] != nullptr) served_[i]->settle();
  }
}

}  // namespace pccl
