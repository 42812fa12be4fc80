// The elastic group at a boundary: when it opens, what the user's thread is asked to do meanwhile
// (boundary_talk.h), and who contributed to the step that ends. See elastic_group.h.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "engine/elastic_group.h"

namespace pccl {

void ElasticGroup::boundary_begin(const BoundaryRequest& request,
                                  std::shared_ptr<BoundaryTalk> talk) {
  if (failure_.failed()) {
    talk->fail(failure_);
    return;
  }
  if (left_ && !said_left_) {
    size_at_boundary_ = numbering_->size();
    tell_left(*talk);
    return;
  }
  if (left_) {
    talk->fail(over());
    return;
  }
  if (request.finish && !admitted_) {
    talk->fail(
        {ErrorCode::not_admitted, "this peer has not been admitted yet: call refresh() first"});
    return;
  }
  if (boundary_) {
    talk->fail({ErrorCode::invalid, "another thread stands at this boundary already"});
    return;
  }
  boundary_ = request;
  boundary_entered_ = false;
  boundary_waited_ms_ = 0;
  talk_ = std::move(talk);
  enter_boundary();
}

/// The verdict on the step rests on its operations: the boundary opens when all have their outcome.
void ElasticGroup::enter_boundary() {
  if (!boundary_ || boundary_entered_ || !ops_.empty()) return;
  boundary_entered_ = true;
  size_at_boundary_ = admitted_ ? numbering_->size() : 0;
  peer::AtBoundary event;
  event.kind = boundary_->kind;
  event.verify = boundary_->verify;
  if (boundary_->finish) {
    event.finish = event.has_root = true;  // without a state: it says how far the run has come
    event.root.revision = *boundary_->finish;
  }
  feed(event);
}

void ElasticGroup::on(const peer::HashState&) {
  if (!talk_) return;
  BoundaryEvent event;
  event.what = BoundaryEvent::What::hash;
  event.contributors = contributors();
  talk_->say(std::move(event));
}

void ElasticGroup::on(const peer::Fetch& a) {
  if (!talk_) return;
  BoundaryEvent event;
  event.what = BoundaryEvent::What::fetch;
  event.epoch = a.epoch;
  event.plan = a.plan;
  talk_->say(std::move(event));
}

void ElasticGroup::boundary_root(const StateRoot& root, Snapshot snapshot) {
  if (!boundary_) return;
  exchange_.offer(std::move(snapshot));
  feed(peer::RootKnown{root});
}

bool ElasticGroup::boundary_adopt(const StateRoot& root) {
  if (!boundary_) return false;
  feed(peer::Verified{root});
  return core_.adopting;
}

/// From here on the program writes to the memory that it has offered.
void ElasticGroup::on(const peer::Adopt&) { exchange_.withdraw(); }

void ElasticGroup::boundary_fetched(const StateRoot& root, Snapshot snapshot) {
  if (!boundary_) return;
  exchange_.offer(std::move(snapshot));
  feed(peer::Fetched{root});
}

void ElasticGroup::on(const peer::EnterStep& a) {
  admitted_ = true;
  begin_step(a.step);
  exchange_.withdraw();
  const std::vector<std::uint32_t> contributors = this->contributors();
  contributors_.reset();
  publish();
  joined({});
  if (!talk_) return;
  BoundaryEvent finished;
  finished.epoch = run_->id;
  finished.step = a.step;
  finished.voted = a.voted;
  finished.admitted = a.admitted;
  finished.root = a.root;
  finished.contributors = contributors;
  boundary_.reset();
  std::exchange(talk_, nullptr)->say(std::move(finished));
}

/// Time stands still without a master, and for members while no epoch is in force. A newcomer hears
/// nothing of a proposal that was dropped: its time goes on, and begins anew with what it fetches.
void ElasticGroup::wait_at_boundary(std::uint64_t elapsed_ms) {
  const bool still = admitted_ ? holding() : !client_.connected();
  if (still || boundary_->timeout_ms == 0) return;
  const std::uint64_t bytes = exchange_.bytes_received();
  if (!admitted_ && bytes != state_bytes_) boundary_waited_ms_ = 0;
  state_bytes_ = bytes;
  boundary_waited_ms_ += elapsed_ms;
  if (boundary_waited_ms_ >= boundary_->timeout_ms) boundary_timed_out();
}

/// Members that do not come are evicted, so the boundary ends; a newcomer that nobody admits gives
/// up.
void ElasticGroup::boundary_timed_out() {
  const std::string limit = std::to_string(boundary_->timeout_ms) + " ms";
  if (!admitted_) {
    feed(peer::SaysBye{});
    end({ErrorCode::timed_out, "this newcomer was not admitted within " + limit +
                                   ": no member of the run passed a boundary" + client_.told() +
                                   "; join again"});
    return;
  }
  boundary_waited_ms_ = 0;
  log_warning("the boundary has not ended within " + limit +
              ": who does not come to it is evicted");
  feed(peer::TimedOut{next_key()});
}

// ------------------------------------------------------------------------------- contributors

/// Of a loss in the middle of a step: who contributed to some of its operations only does not
/// count.
void ElasticGroup::note_contributors(const Pending& pending) {
  if (pending.op->request().descriptor.kind == OpKind::barrier) return;
  std::vector<std::uint32_t> ranks = pending.op->contributors();
  std::sort(ranks.begin(), ranks.end());  // they are in the order of the ring
  if (contributors_ == ranks) return;
  if (!contributors_) {
    contributors_ = ranks;
  } else {
    std::erase_if(*contributors_, [&](std::uint32_t rank) {
      return !std::binary_search(ranks.begin(), ranks.end(), rank);
    });
  }
  publish();
}

/// To the step that ends; without an operation everybody.
std::vector<std::uint32_t> ElasticGroup::contributors() const {
  if (contributors_) return *contributors_;
  std::vector<std::uint32_t> ranks(size_at_boundary_);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

}  // namespace pccl
