// The elastic group while the program stands at a boundary: passes the calls of the program to the
// core, and the core's questions to the program (boundary_stay.h). See elastic_group.h.
#include <utility>

#include "base/log.h"
#include "engine/elastic_group.h"

namespace pccl {

void ElasticGroup::boundary_begin(const BoundaryRequest& request,
                                  std::shared_ptr<BoundaryTalk> talk) {
  if (const auto error = refuse_boundary(request)) return talk->fail(*error);
  if (end_.in_order()) {
    contributors_.end_step(numbering_->size());
    return talk->say(tell_left());
  }
  idleness_.at_boundary(request.timeout_ms);
  stay_.begin(request, std::move(talk));
  enter_boundary();
}

std::optional<Error> ElasticGroup::refuse_boundary(const BoundaryRequest& request) const {
  if (end_.failed() || said_left_) return end_.error();
  if (end_.in_order()) return {};
  if (request.finish && !admitted_) {
    return Error{ErrorCode::not_admitted,
                 "this peer has not been admitted yet: call refresh() first"};
  }
  if (stay_.here()) {
    return Error{ErrorCode::invalid, "another thread stands at this boundary already"};
  }
  return {};
}

/// The verdict on the step rests on its operations: the boundary opens when all have their outcome.
void ElasticGroup::enter_boundary() {
  if (!stay_.outside() || !ops_.empty()) return;
  contributors_.end_step(admitted_ ? numbering_->size() : 0);
  feed(stay_.enter());
}

void ElasticGroup::on(const peer::HashState&) { stay_.ask_for_root(contributors_.of_step()); }

void ElasticGroup::on(const peer::Fetch& a) { stay_.ask_to_fetch(a.epoch, a.plan); }

void ElasticGroup::boundary_root(const StateRoot& root, Snapshot snapshot) {
  if (!stay_.here()) return;
  exchange_.offer(std::move(snapshot));
  feed(peer::RootKnown{root});
}

bool ElasticGroup::boundary_adopt(const StateRoot& root) {
  if (!stay_.here()) return false;
  feed(peer::Verified{root});
  return core_.adopting;
}

/// From here on the program writes to the memory that it has offered.
void ElasticGroup::on(const peer::Adopt&) { exchange_.withdraw(); }

void ElasticGroup::boundary_fetched(const StateRoot& root, Snapshot snapshot) {
  if (!stay_.here()) return;
  exchange_.offer(std::move(snapshot));
  feed(peer::Fetched{root});
}

void ElasticGroup::on(const peer::EnterStep& a) {
  admitted_ = true;
  begin_step(a.step);
  exchange_.withdraw();
  BoundaryEvent finished;
  finished.epoch = run_->id;
  finished.step = a.step;
  finished.voted = a.voted;
  finished.admitted = a.admitted;
  finished.root = a.root;
  finished.contributors = contributors_.of_step();
  contributors_.begin_step();
  client_.goes_on();
  publish();
  joining_.end({});
  stay_.finish(std::move(finished));
}

/// Time stands still without a master, and for members while no epoch is in force. A newcomer hears
/// nothing of a proposal that was dropped, so the newcomer's time goes on without an epoch.
void ElasticGroup::wait_at_boundary(std::uint64_t elapsed_ms) {
  if (!stay_.here()) return;
  const bool still = admitted_ ? holding() : !client_.connected();
  if (still) return;
  const auto fetched = admitted_ ? std::nullopt : std::optional(exchange_.bytes_received());
  if (stay_.times_out(elapsed_ms, fetched)) boundary_timed_out();
}

/// The master evicts members that do not come, so the boundary ends; a newcomer gives up.
void ElasticGroup::boundary_timed_out() {
  const std::string limit = std::to_string(stay_.timeout_ms()) + " ms";
  if (!admitted_) {
    feed(peer::SaysBye{});
    end({ErrorCode::timed_out, "this newcomer was not admitted within " + limit +
                                   ": no member of the run passed a boundary" + client_.told() +
                                   "; join again"});
    return;
  }
  log_warning("the boundary has not ended within " + limit +
              ": the master evicts the members that have not come to it, but for those that wait "
              "in an operation which this process has not called");
  feed(peer::TimedOut{next_key()});
}

}  // namespace pccl
