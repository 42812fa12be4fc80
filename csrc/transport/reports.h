// What the owner of links is told of them: that a link is up or down, that a segment is sent. Each
// report waits until the loop has finished the call it comes from, so that the owner is never
// called from inside its own call.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/types.h"
#include "transport/loop.h"
#include "transport/transport.h"

namespace pccl {

struct LinkReport {
  enum class What : std::uint8_t { up, down, sent };
  What what = What::up;
  PeerId peer;
  std::uint64_t serial = 0;  // of the link
  std::string reason;
  Down how = Down::lost;
  MemoryToken token = 0;
  std::uint64_t cookie = 0;
  PeerId far;  // of a routed segment: its receiver
};

/// On the loop's thread.
class Reports {
 public:
  /// `tell`: is called with one report after the other; each call may add and cancel some.
  Reports(Loop& loop, std::function<void(const LinkReport&)> tell)
      : loop_(loop), tell_(std::move(tell)) {}

  /// If it throws std::bad_alloc, the report is told with the next one.
  void add(LinkReport report) {
    waiting_.push_back(std::move(report));
    if (later_) return;
    tell_later();
    later_ = true;
  }
  /// Segments of this memory are not reported.
  void cancel(MemoryToken token) {
    std::erase_if(waiting_, [token](const LinkReport& report) {
      return report.what == LinkReport::What::sent && report.token == token;
    });
  }

 private:
  void tell_later() {
    loop_.defer([this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) tell_all();
    });
  }
  /// Reports that are added meanwhile have their turn later, so that sockets need not wait for an
  /// owner that sends in every call.
  void tell_all() {
    for (std::size_t left = waiting_.size(); left > 0 && !waiting_.empty(); --left) {
      const LinkReport report = std::move(waiting_.front());
      waiting_.pop_front();
      tell_(report);
    }
    later_ = !waiting_.empty();
    if (later_) tell_later();
  }

  Loop& loop_;
  std::function<void(const LinkReport&)> tell_;
  std::deque<LinkReport> waiting_;
  bool later_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>();
};

}  // namespace pccl
