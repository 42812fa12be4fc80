// The operations of the elastic group, from the call to the outcome. A call is refused, waits at
// the door, or is issued. The group then tells the core what happens to the operation here, and the
// core says when the operation runs, is restored, is committed or fails. See elastic_group.h.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/elastic_group.h"
#include "membership/members.h"

namespace pccl {

// ------------------------------------------------------------------------------------------ calls

peer::LossClass ElasticGroup::loss_class(const OpRequest& request) const {
  if (core_.self.raises) return peer::LossClass::needs_all;
  switch (request.descriptor.kind) {
    case OpKind::all_reduce:
    case OpKind::barrier:
      return peer::LossClass::replay;
    case OpKind::reduce_scatter: {
      const bool equal =
          std::all_of(request.inputs.begin(), request.inputs.end(),
                      [&](const Buffer& b) { return b.bytes == request.inputs.front().bytes; });
      return equal ? peer::LossClass::replay : peer::LossClass::needs_all;
    }
    case OpKind::broadcast:
    case OpKind::scatter:
    case OpKind::reduce:
      return peer::LossClass::needs_root;
    default:
      return peer::LossClass::needs_all;
  }
}

std::optional<Error> ElasticGroup::refuse_post(const OpRequest& request) const {
  if (end_.how() == RunEnd::How::left) {
    return Error{ErrorCode::closed, end_.error().text + "; refresh() says so"};
  }
  if (end_.over()) return end_.error();
  if (!admitted_ && (!welcome_ || welcome_->has_boundaries)) {
    return Error{ErrorCode::not_admitted,
                 "this peer has not been admitted yet: call refresh() before the first operation"};
  }
  if (admitted_ && core_.self.place.size > 1) {
    const peer::LossClass loss = loss_class(request);
    if (loss != peer::LossClass::replay) {
      return Error{ErrorCode::invalid,
                   "replicas of several ranks can only use all_reduce, reduce_scatter "
                   "of equal parts and barrier on the elastic group"};
    }
  }
  return {};
}

/// Not a member, or none any more: the call waits at the door, or fails.
bool ElasticGroup::stays_out(OpRequest& request, const std::shared_ptr<Ticket>& ticket) {
  if (auto error = refuse_post(request)) {
    error->text = describe(request.descriptor) + ": " + error->text;
    ticket->complete(*error);
    return true;
  }
  if (admitted_) return false;
  log_info(
      "this run has passed no boundary (no member calls refresh), so it cannot admit this peer");
  door_.push(std::move(request), ticket);
  return true;
}

/// The calls at the door, of one that is a member now. Their ranks and size were provisional.
void ElasticGroup::come_in() {
  for (Door::Call& waiting : door_.take()) {
    const OpDescriptor& d = waiting.request.descriptor;
    if (core_.passed > 0) {  // a boundary has admitted it: a step has what all call in it
      waiting.ticket->complete(
          {ErrorCode::not_admitted, describe(d) + ": was called before this peer was admitted"});
    } else if (d.kind == OpKind::all_reduce || d.kind == OpKind::barrier) {
      waiting.request.numbering = nullptr;
      post(std::move(waiting.request), std::move(waiting.ticket));
    } else {
      waiting.ticket->complete(
          {ErrorCode::invalid, describe(d) + ": rank and size of the group were provisional when "
                                             "it was called; call it again"});
    }
  }
}

void ElasticGroup::issue_message(OpRequest request, std::shared_ptr<Ticket> ticket) {
  if (request.timeout_ms == 0) request.timeout_ms = timeout_ms_;
  if (run_->stopped) {
    between_epochs_.emplace_back(std::move(request), std::move(ticket));
  } else {
    start_message(std::move(request), std::move(ticket));
  }
}

void ElasticGroup::start_message(OpRequest request, std::shared_ptr<Ticket> ticket) {
  const std::string kind(kind_name(request.descriptor.kind));
  if (request.peer >= 0 && !member(request.numbering->at(static_cast<std::size_t>(request.peer)))) {
    return ticket->complete(
        {ErrorCode::peer_lost, kind + ": rank " + std::to_string(request.peer) + " was lost"});
  }
  if (members().size() == 1) {
    return ticket->complete({ErrorCode::peer_lost, kind + ": all other members were lost"});
  }
  run_->point_to_point.post(std::move(request), std::move(ticket));
}

void ElasticGroup::issue(OpRequest request, std::shared_ptr<Ticket> ticket) {
  peer::Issued issued;
  issued.loss = loss_class(request);
  if (request.descriptor.root >= 0) {
    issued.root = numbering_->at(static_cast<std::size_t>(request.descriptor.root));
  }
  add(next_key(), std::move(request), std::move(ticket), numbering_);
  feed(issued);
  run_->flow.issued(next_key());
}

// ------------------------------------------------------------------------------- told to the core

void ElasticGroup::op_complete(Pending& pending) { feed(peer::Completed{pending.op->key()}); }

/// An operation that is done at this member may be committed already, and then cannot fail. A
/// member that is not done with the operation hears of the difference from this one and fails it;
/// if all are done, the next operation fails, as `fail_late` says.
void ElasticGroup::op_mismatch(OpKey op, PeerId, const std::string& text) {
  const auto known = core_.ops.find(op);
  if (known != core_.ops.end() && known->second.phase == peer::Phase::issued) {
    return feed(peer::FoundMismatch{op, text});
  }
  if (!late_)
    late_ = Late{op, "operation " + numbered(op) + ", which this rank had completed: " + text};
  Pending* pending = ops_.find(op);
  if (pending == nullptr) return fail_late();
  if (std::exchange(pending->asked_back, true)) return;
  for (const PeerId peer : pending->contributors) {
    if (peer != context_.links.self()) ask_issued(*pending, peer);
  }
}

/// The ranks differ about an operation that was committed: the oldest one that is not done fails.
void ElasticGroup::fail_late() {
  if (!late_ || ops_.find(late_->op) != nullptr) return;
  for (const auto& [key, op] : core_.ops) {
    if (op.phase == peer::Phase::issued) return feed(peer::FoundMismatch{key, late_->text});
  }
}

void ElasticGroup::op_starved(Pending& pending, const Error& error) {
  feed(peer::FoundMismatch{pending.op->key(), error.text, error.code});
}

void ElasticGroup::op_timed_out(Pending& pending) {
  log_warning(waiting_text(pending) + "; its time-out of " +
              std::to_string(pending.op->request().timeout_ms) +
              " ms is over: the master evicts the members that have not called it");
  pending.expired = false;
  pending.waited_ms = 0;
  feed(peer::TimedOut{pending.op->key()});
}

// ----------------------------------------------------------------------------- said by the core

void ElasticGroup::on(const peer::RunOp& a) {
  Pending& pending = ops_.at(a.op);
  if (!pending.contributors.empty()) {
    ++context_.counters.ops_replayed;
    say_replayed(pending);
  }
  if (late_ && late_->op == a.op) late_.reset();  // it is found again
  run(a.op);
  fail_late();
}

/// Of many operations that are replayed in an epoch a few have a line, and the rest one.
void ElasticGroup::say_replayed(const Pending& pending) {
  const std::size_t before = run_->replays_said++;
  if (before > kSaidAtOnceMax) return;
  std::string what = describe_op(pending) + " is";
  if (before == kSaidAtOnceMax) {
    const auto rest = std::count_if(ops_.begin(), ops_.end(), [&](const auto& entry) {
      return !(entry.first < pending.key()) && !entry.second.contributors.empty();
    });
    if (rest > 1) {
      what = std::to_string(rest) + " more operations, the first of them " + describe_op(pending) +
             ", are";
    }
  }
  log_info(what + " replayed among " + count_of(members().size(), "member"));
}

void ElasticGroup::on(const peer::RestoreOp& a) {
  Pending* pending = ops_.find(a.op);
  if (pending == nullptr) return;
  stop(*pending);
  pending->op->restore();
}

void ElasticGroup::on(const peer::CommitOp& a) {
  stall_.forget();
  keeper_.succeeded();
  const Pending* pending = ops_.find(a.op);
  if (pending != nullptr) pending->op->ticket()->result<CollectiveResult>().epoch = a.in;
  if (pending != nullptr && !pending->is_barrier()) {
    if (contributors_.note(pending->op->contributors())) publish();
  }
  update_renumber();  // before a caller returns
  finish(a.op, {});
  fail_late();
}

void ElasticGroup::on(const peer::FailOp& a) {
  late_.reset();
  Pending* pending = ops_.find(a.op);
  if (pending == nullptr) return;
  stop(*pending);
  pending->op->restore();
  Error error = a.error;
  error.text = describe_wait(*pending) + ": " + error.text;
  run_->early.drop(a.op);
  finish(a.op, std::move(error));
}

Tickets ElasticGroup::users_of(const std::vector<Buffer>& memory) const {
  Tickets tickets = Group::users_of(memory);
  const Tickets waiting = door_.users_of(memory);
  tickets.insert(tickets.end(), waiting.begin(), waiting.end());
  return tickets;
}

void ElasticGroup::returned(const peer::Returned& over, std::shared_ptr<Ticket> ticket) {
  if (!(core_.pinned_in < over.in)) return ticket->complete({});  // nothing newer can come here
  returns_.push_back({over, std::move(ticket)});
  settle_returns();
}

/// Rank and size change at a return behind which no earlier call is open: that place of the program
/// is the same at all members, in whichever order they hear of the commits.
void ElasticGroup::settle_returns() {
  const auto due = [&](const Return& one) {
    return ops_.empty() || one.over.op < ops_.begin()->first;
  };
  for (;;) {
    const auto next = std::find_if(returns_.begin(), returns_.end(), due);
    if (next == returns_.end()) return;
    const Return one = *next;
    returns_.erase(next);
    feed(one.over);
    update_renumber();
    one.ticket->complete({});
  }
}

/// May the next return of a committed operation change rank and size?
void ElasticGroup::update_renumber() {
  bool differs = members().size() != numbering_->size();
  for (std::size_t i = 0; !differs && i < members().size(); ++i)
    differs = members()[i] != (*numbering_)[i];
  renumber_pending_->store(differs && !core_.has_boundaries);
}

}  // namespace pccl
