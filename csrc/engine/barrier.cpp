// Barriers: the parts of Group and PointToPoint that hold a barrier back until all calls before it
// are done at this rank, and until the other ranks have received the messages of this rank.
//
// The engine of a rank answers such a question without the rank's program. The answer waits until
// the bytes have arrived, and until the rank has called the barrier, for which the barrier itself
// would wait. So no message that is sent or received after the barrier can hold the barrier up.
#include <algorithm>
#include <utility>

#include "engine/group.h"
#include "wire/codec.h"

namespace pccl {

std::map<PeerId, std::uint64_t> PointToPoint::unconfirmed_sends() const {
  std::map<PeerId, std::uint64_t> sends;
  for (const auto& [peer, count] : next_index_) {
    const auto confirmed = confirmed_sends_.find(peer);
    if (confirmed == confirmed_sends_.end() || confirmed->second < count) sends[peer] = count;
  }
  return sends;
}

std::uint64_t PointToPoint::sends_begun(PeerId peer) const {
  if (const auto waiting = waiting_.find(peer); waiting != waiting_.end()) {
    return waiting->second.front().index;
  }
  const auto next = next_index_.find(peer);
  return next == next_index_.end() ? 0 : next->second;
}

bool PointToPoint::leaves(std::uint64_t order) const {
  // In an elastic group the end of the receive is the end of the send.
  return !confirmed_ && std::any_of(sends_.begin(), sends_.end(), [&](const auto& entry) {
    return entry.second.token != 0 && entry.second.request.order < order;
  });
}

void PointToPoint::flush_asked(PeerId from, const Flush& question) {
  auto kept = context_.keep(from, kKeptMessageBytes);
  if (!kept) return;
  questions_.insert_or_assign({from, question.op}, Question{question.sends, std::move(*kept)});
  moved();
}

void PointToPoint::flushed(PeerId from, const Flushed& answer) {
  std::uint64_t& confirmed = confirmed_sends_[from];
  confirmed = std::max(confirmed, answer.received);
}

/// Is one of the first `sends` sends of this peer on its way, or taken by a receive from before
/// `order` that is not complete?
bool PointToPoint::waits_for(PeerId from, std::uint64_t sends, std::uint64_t order) const {
  if (!matcher_.all_ready(from, sends)) return true;
  return std::any_of(receives_.begin(), receives_.end(), [&](const auto& entry) {
    const ReceiveState& receive = entry.second;
    return receive.matched && receive.name.peer == from && receive.name.index < sends &&
           receive.request.order < order;
  });
}

/// All sends of this peer below this number have been received.
std::uint64_t PointToPoint::received(PeerId from) const {
  std::uint64_t end = matcher_.untaken(from);
  for (const auto& [id, receive] : receives_) {
    if (receive.matched && receive.name.peer == from) end = std::min(end, receive.name.index);
  }
  return end;
}

void PointToPoint::answer_flushes(const OrderOf& order_of) {
  for (auto it = questions_.begin(); it != questions_.end();) {
    const auto& [from, op] = it->first;
    const auto order = order_of(op);
    if (!order || (*order > 0 && waits_for(from, it->second.sends, *order))) {
      ++it;
      continue;
    }
    context_.links.send_control(from,
                                encode(PeerToPeer{Flushed{group_, epoch_, op, received(from)}}));
    it = questions_.erase(it);
  }
}

// ------------------------------------------------------------------------------------- the group

/// A barrier begins when this rank is done with all that it has called before.
bool Group::must_wait(const Pending& pending) const {
  if (ops_.must_wait(pending)) return true;
  return pending.is_barrier() &&
         (!pending.unanswered.empty() || run_->point_to_point.leaves(pending.op->request().order));
}

/// By this rank to each peer, in this epoch or, between two, in the next.
std::map<PeerId, std::uint64_t> Group::sends_so_far() const {
  if (!run_->stopped) return run_->point_to_point.unconfirmed_sends();
  std::map<PeerId, std::uint64_t> sends;
  for (const auto& [request, ticket] : between_epochs_) {
    if (request.descriptor.kind == OpKind::send) {
      ++sends[request.numbering->at(static_cast<std::size_t>(request.peer))];
    }
  }
  return sends;
}

/// A barrier begins when what this rank has sent before it has arrived (barrier.cpp).
void Group::ask_for_messages(Pending& barrier) {
  barrier.unanswered.clear();
  barrier.sends_asked.clear();
  const OpKey key = barrier.op->key();
  for (const auto& [peer, sends] : barrier.sends_before) {
    if (peer == context_.links.self() || !member(peer)) continue;
    barrier.unanswered.insert(peer);
    const std::uint64_t begun = std::min(sends, run_->point_to_point.sends_begun(peer));
    barrier.sends_asked[peer] = begun;
    context_.links.send_control(peer, encode(PeerToPeer{Flush{id_, run_->id, key, begun}}));
  }
}

void Group::flushed(EpochRun& run, PeerId from, const Flushed& answer) {
  run.point_to_point.flushed(from, answer);
  Pending* barrier = ops_.find(answer.op);
  if (&run != run_.get() || barrier == nullptr) return;
  // Sends that had to wait when this question was asked have begun since if receives took earlier
  // ones. Otherwise they wait for receives that are called later, and the barrier not for them.
  const auto asked = barrier->sends_asked.find(from);
  const auto before = barrier->sends_before.find(from);
  if (asked != barrier->sends_asked.end() && before != barrier->sends_before.end()) {
    const std::uint64_t begun = std::min(before->second, run.point_to_point.sends_begun(from));
    if (begun > std::exchange(asked->second, begun)) {
      context_.links.send_control(from, encode(PeerToPeer{Flush{id_, run.id, answer.op, begun}}));
      return;
    }
  }
  barrier->unanswered.erase(from);
  messages_moved();
}

/// Messages called before a barrier that come further may let it begin, here or at their sender.
void Group::messages_moved() {
  answer_flushes();
  if (ops_.barrier_deferred() && !starting_messages_) start_deferred();
}

void Group::answer_flushes() {
  if (!run_->point_to_point.asked() || stopped_ || run_->stopped || starting_messages_) return;
  run_->point_to_point.answer_flushes([this](OpKey key) -> std::optional<std::uint64_t> {
    const Pending* pending = ops_.find(key);
    if (pending != nullptr) return pending->is_barrier() ? pending->op->request().order : 0;
    return key < next_key() ? std::optional<std::uint64_t>(0) : std::nullopt;
  });
}

}  // namespace pccl
