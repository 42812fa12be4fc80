// The reference of point-to-point: the rule of docs/explanation/losses.md, and nothing of how it is
// kept.
//  - A receive gets what was sent to it, as a whole, and no two receives get the same.
//  - Both belong to one epoch: a call counts to the epoch in force, one between two to the next. So
//  a
//    call's epoch is the one in force at its end, since the end of an epoch fails what is pending.
//  - The receives of a tag take a sender's sends in order, and pass over none.
//  - A send that succeeds was received. One that waits for long beside a receive that waits is
//  lost.
// A group that was made from it has one epoch, and its sends succeed when their bytes have left.
// What is numbered by calls after a failure is the program's own: numbers are compared nowhere.
#include <algorithm>

#include "book.h"
#include "engine/elastic_group.h"

namespace pccl::sim {
namespace {

constexpr std::uint64_t kTogetherMs = 45000;  // a send and its receive meet within this
constexpr std::uint64_t kTogetherInGroupMs = 15000;

std::string end_of(PeerId peer) { return peer == PeerId{} ? "any" : to_string(peer).substr(0, 4); }

std::string told(const Message& m) {
  return end_of(m.from) + " to " + end_of(m.to) + ", tag " + std::to_string(m.tag) + ", " +
         std::to_string(m.bytes.size()) + " bytes, posted at " + std::to_string(m.posted_ms) +
         " ms" +
         (m.completions == 0
              ? ", pending"
              : ", ended at " + std::to_string(m.ended_ms) + " ms in epoch " + to_string(m.epoch));
}

bool timed_out(const Message& m) {
  return m.completions > 0 && m.ticket->error().code == ErrorCode::timed_out;
}

bool takes(const Message& receive, PeerId from) {
  return receive.from == PeerId{} || receive.from == from;
}

/// It has taken a send of another size, and failed: nobody says which.
bool has_refused(const std::shared_ptr<Message>& m) {
  return m->completions > 0 && m->ticket->error().code == ErrorCode::mismatch;
}

/// Its own rank has given it up, or a receive has refused it: nobody waits for it.
bool given_up(const Message& m) {
  if (m.completions == 0 || !m.ticket->error().failed()) return false;
  return m.ticket->error().code != ErrorCode::peer_lost;
}

}  // namespace

/// Nobody is to post its other side, or some do not. What is posted after a message has timed out
/// may meet another than it is meant for.
bool Book::in_vain(const Message& message) const {
  const auto expected = expected_.find(message.group);
  return message.unmet ||
         (expected != expected_.end() && message.place >= expected->second.leaves_at);
}

void Book::sent(std::shared_ptr<Message> message) {
  auto& sends = box_of(*message).sends;
  sends.push_back(std::move(message));
}

void Book::receives(std::shared_ptr<Message> message) {
  auto& receives = box_of(*message).receives;
  receives.push_back(std::move(message));
}

void Book::send_ended(const Message& send) {
  if (lies(send.from) || lies(send.to)) return;
  const std::string what = "the send from " + told(send);
  if (send.completions != 1) throw Violation(what + " ended twice");
  if (send.group != kElasticGroup && send.ticket->error().failed() && !in_vain(send)) {
    group_failed(send.group, send.members, send.place, what, send.ticket->error());
  }
}

void Book::receive_ended(Message& receive) {
  if (lies(receive.from) || lies(receive.to)) return;
  const std::string what = "the receive from " + told(receive);
  if (receive.completions != 1) throw Violation(what + " ended twice");
  const bool elastic = receive.group == kElasticGroup;
  if (receive.ticket->error().failed() && !elastic) {  // its memory may hold a part
    if (in_vain(receive)) return;
    return group_failed(receive.group, receive.members, receive.place, what,
                        receive.ticket->error());
  }
  if (receive.ticket->error().failed()) {
    if (receive.bytes != receive.before) {
      throw Violation(what + " has failed and left other bits behind");
    }
    return;
  }
  ++messages_checked;
  bits_checked += 8 * receive.bytes.size();
  for (const auto& send : box_of(receive).sends) {
    if (!takes(receive, send->from) || send->bytes != receive.bytes) continue;
    if (send->received) throw Violation(what + " got a message that was received before");
    send->received = &receive;
    receive.received = send.get();
    return;
  }
  throw Violation(what + " got bits that nobody has sent");
}

void Book::check_order(const Mailbox& box) const {
  std::map<PeerId, const Message*> newest;
  std::map<const Message*, std::size_t> places;
  for (const auto& send : box.sends) places.emplace(send.get(), places.size());
  for (const auto& receive : box.receives) {
    if (!receive->received) continue;
    const Message& send = *receive->received;
    if (send.completions > 0 && send.epoch != receive->epoch) {
      throw Violation("a send from " + told(send) + " went to the receive from " + told(*receive));
    }
    const Message*& before = newest[send.from];
    if (before != nullptr && places.at(before) > places.at(&send)) {
      throw Violation("a receive got the send from " + told(send) + " after that from " +
                      told(*before));
    }
    before = &send;
  }
}

/// Of the sends before the one that a receive got, each was received too, or was given up, or a
/// receive posted before that one has taken it and failed.
void Book::check_skipped(const Mailbox& box) const {
  for (auto receive = box.receives.begin(); receive != box.receives.end(); ++receive) {
    if (!(*receive)->received) continue;
    const Message& got = *(*receive)->received;
    const auto failed = std::count_if(box.receives.begin(), receive, [&](const auto& before) {
      return !before->received && takes(*before, got.from) &&
             (before->completions == 0 || before->epoch == (*receive)->epoch);
    });
    std::ptrdiff_t skipped = 0;
    for (const auto& send : box.sends) {
      if (send.get() == &got) break;
      if (send->from != got.from || send->received || given_up(*send)) continue;
      if (lies(send->from)) continue;
      if (send->epoch != (*receive)->epoch || ++skipped <= failed) continue;
      throw Violation("the send from " + told(*send) + " was passed over: the receive from " +
                      told(**receive) + " got a later one");
    }
  }
}

void Book::check_lost(const Mailbox& box, const std::map<PeerId, bool>& lived) const {
  const auto lives = [&](PeerId peer) { return lived.contains(peer) && lived.at(peer); };
  for (const auto& send : box.sends) {
    if (lies(send->from)) continue;
    const bool succeeded = send->completions > 0 && !send->ticket->error().failed();
    if (succeeded && !send->received && lives(send->to)) {
      throw Violation("the send from " + told(*send) + " has succeeded, and nobody received it");
    }
    if (!timed_out(*send) || send->received) continue;
    for (const auto& receive : box.receives) {
      if (!timed_out(*receive) || !takes(*receive, send->from)) continue;
      if (receive->epoch != send->epoch) continue;
      const std::uint64_t from = std::max(send->posted_ms, receive->posted_ms);
      if (from + kTogetherMs > std::min(send->ended_ms, receive->ended_ms)) continue;
      throw Violation("the send from " + told(*send) + " and the receive from " + told(*receive) +
                      " waited for each other, and both timed out");
    }
  }
}

/// Of two that nothing has happened to, as long as the receive waited.
void Book::check_lost_of_group(const Mailbox& box) const {
  if (all_harmed_ || std::any_of(box.receives.begin(), box.receives.end(), has_refused)) return;
  for (const auto& receive : box.receives) {
    if (!timed_out(*receive) || harmed_.contains(receive->to)) continue;
    for (const auto& send : box.sends) {
      if (send->received || !takes(*receive, send->from) || harmed_.contains(send->from)) continue;
      if (lies(send->from)) continue;
      if (send->completions > 0 && send->ticket->error().failed() && !timed_out(*send)) continue;
      const std::uint64_t until =
          timed_out(*send) ? std::min(send->ended_ms, receive->ended_ms) : receive->ended_ms;
      if (std::max(send->posted_ms, receive->posted_ms) + kTogetherInGroupMs > until) continue;
      throw Violation("in a group the send from " + told(*send) +
                      " never came to the receive from " + told(*receive));
    }
  }
}

void Book::close(const std::map<PeerId, bool>& lived) const {
  for (const auto& [key, box] : mail_) {
    if (lies(std::get<1>(key))) continue;
    check_order(box);
    check_skipped(box);
    if (std::get<0>(key) == kElasticGroup) {
      check_lost(box, lived);
    } else {
      check_lost_of_group(box);
    }
  }
}

}  // namespace pccl::sim
