// The stay of the program at a boundary, from its call (refresh, resume, finish) until this call
// has its answer: the request, the conversation with the user's thread, and the time-out. Decides
// nothing about the boundary: the peer's core does (membership/peer.h). Engine's thread only; no
// clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/boundary_talk.h"
#include "membership/peer.h"

namespace pccl {

/// An elastic group has one object, which is empty while the program is between two boundaries.
class BoundaryStay {
 public:
  void begin(const BoundaryRequest& request, std::shared_ptr<BoundaryTalk> talk) {
    request_ = request;
    talk_ = std::move(talk);
    entered_ = false;
    waited_ms_ = 0;
  }
  /// Does the program stand at a boundary?
  [[nodiscard]] bool here() const { return request_.has_value(); }
  [[nodiscard]] std::uint64_t timeout_ms() const { return request_->timeout_ms; }

  /// Is the core still to be told of this stay, by the event of `enter`?
  [[nodiscard]] bool outside() const { return here() && !entered_; }
  [[nodiscard]] peer::AtBoundary enter() {
    entered_ = true;
    peer::AtBoundary event;
    event.kind = request_->kind;
    event.verify = request_->verify;
    if (request_->finish) {  // the root has no state: its revision says how far the run has come
      event.finish = event.has_root = true;
      event.root.revision = *request_->finish;
    }
    return event;
  }

  // Answers to the user's thread; without a stay they do nothing.
  /// The boundary votes: the user's thread has to hash its state.
  void ask_for_root(std::vector<std::uint32_t> contributors) {
    if (!here()) return;
    BoundaryEvent event;
    event.what = BoundaryEvent::What::hash;
    event.contributors = std::move(contributors);
    talk_->say(std::move(event));
  }
  /// This peer's state differs: the user's thread has to fetch the state of `plan`.
  void ask_to_fetch(EpochId epoch, const SyncPlan& plan) {
    if (!here()) return;
    BoundaryEvent event;
    event.what = BoundaryEvent::What::fetch;
    event.epoch = epoch;
    event.plan = plan;
    talk_->say(std::move(event));
  }
  /// These two end the stay.
  void finish(BoundaryEvent finished) {
    if (auto talk = end()) talk->say(std::move(finished));
  }
  void fail(const Error& error) {
    if (auto talk = end()) talk->fail(error);
  }

  /// Counts a tick in which the time runs. True: the time-out is over; the time begins anew.
  /// `fetched_bytes`: set for a newcomer, whose time begins anew with each byte that it fetches.
  [[nodiscard]] bool times_out(std::uint64_t elapsed_ms,
                               std::optional<std::uint64_t> fetched_bytes) {
    if (request_->timeout_ms == 0) return false;
    if (fetched_bytes && *fetched_bytes != std::exchange(fetched_bytes_, *fetched_bytes)) {
      waited_ms_ = 0;
    }
    waited_ms_ += elapsed_ms;
    if (waited_ms_ < request_->timeout_ms) return false;
    waited_ms_ = 0;
    return true;
  }

 private:
  [[nodiscard]] std::shared_ptr<BoundaryTalk> end() {
    request_.reset();
    return std::exchange(talk_, nullptr);
  }

  std::optional<BoundaryRequest> request_;
  std::shared_ptr<BoundaryTalk> talk_;  // as long as `request_`
  bool entered_ = false;
  std::uint64_t waited_ms_ = 0;
  std::uint64_t fetched_bytes_ = 0;  // at the last tick
};

}  // namespace pccl
