// Groups over links that a test holds in its hands: what one of two members sends stays queued
// until the test delivers it, in the order and to the byte that it wants. The test may also be the
// other member, and say what no sound one would.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/group.h"
#include "transport/loop.h"
#include "transport/network.h"
#include "wire/codec.h"

namespace pccl::testing {

class FakeLinks : public Links {
 public:
  struct Sent {
    PeerId to;
    std::vector<std::byte> control;  // empty: a segment
    SegmentHeader header;
    const std::byte* payload = nullptr;
    MemoryToken token = 0;
    std::uint64_t cookie = 0;
  };
  explicit FakeLinks(PeerId self) : self_(self) {}

  [[nodiscard]] std::uint16_t port() const override { return 1; }
  [[nodiscard]] PeerId self() const override { return self_; }
  [[nodiscard]] const PublicKey& key() const override { return key_; }
  void open(const Handle& peer, std::uint64_t deadline_ms, bool) override {
    opened.emplace_back(peer.peer, deadline_ms);
  }
  void close(PeerId) override {}
  void drop(PeerId) override {}
  void give_up(PeerId peer, const std::string& reason) override {
    given_up.emplace_back(peer, reason);
  }
  [[nodiscard]] bool is_up(PeerId peer) const override { return !not_up.contains(peer); }
  void send_control(PeerId to, std::vector<std::byte> payload) override {
    sent.push_back({to, std::move(payload), {}, nullptr, 0, 0});
  }
  void send_segment(PeerId to, const SegmentHeader& header, const std::byte* payload,
                    MemoryToken token, std::uint64_t cookie) override {
    sent.push_back({to, {}, header, payload, token, cookie});
  }
  void cancel(MemoryToken token) override {
    std::erase_if(sent, [&](const Sent& s) { return s.control.empty() && s.token == token; });
    std::erase_if(half_read, [&](const auto& half) { return half.second.token == token; });
  }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return 0; }
  [[nodiscard]] std::uint64_t bytes_received() const override { return 0; }
  [[nodiscard]] std::optional<LinkView> view(PeerId peer) const override {
    if (before_view) before_view();
    const auto found = links.find(peer);
    return found == links.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] std::uint64_t segment_bytes_received() const override { return came; }
  [[nodiscard]] std::uint64_t rate_held_ms() const override { return held_ms; }
  [[nodiscard]] std::string opening_text(PeerId) const override { return opening; }
  [[nodiscard]] std::string trouble_text(PeerId peer) const override {
    const auto found = troubles.find(peer);
    return found == troubles.end() ? "" : found->second;
  }
  [[nodiscard]] std::size_t queued_bytes(PeerId) const override { return 0; }
  void shutdown(const GoodbyeTime&, std::function<void()>) override {}
  void open_via(const Handle&, PeerId, std::uint64_t) override {}
  [[nodiscard]] std::optional<PeerId> via(PeerId peer) const override {
    const auto found = vias.find(peer);
    return found == vias.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] std::uint64_t bytes_relayed() const override { return 0; }

  std::deque<Sent> sent;
  std::vector<std::pair<SegmentHeader, Placement>> half_read;  // a lane writes to them
  std::vector<std::pair<PeerId, std::string>> given_up;
  std::vector<std::pair<PeerId, std::uint64_t>> opened;  // and the time for it
  std::set<PeerId> not_up;
  std::uint64_t came = 0;
  std::uint64_t held_ms = 0;
  std::string opening;
  std::map<PeerId, std::string> troubles;
  std::map<PeerId, PeerId> vias;
  std::map<PeerId, LinkView> links;   // of which something is known
  std::function<void()> before_view;  // may be empty

 private:
  PeerId self_;
  PublicKey key_{};
};

/// A group whose epochs and numbering the test sets by hand.
class HandGroup : public Group {
 public:
  HandGroup(EngineContext& context, GroupKind kind) : Group(context, GroupId{1}, "group", kind) {}
  ~HandGroup() override { fail_pending({ErrorCode::closed, "the group has been closed"}); }

  void accept(EpochId epoch, std::vector<PeerId> members) {
    accepted_ = epoch;
    accepted_members_ = std::move(members);
  }
  void start(EpochId epoch, std::vector<PeerId> members) {
    accept(epoch, members);
    set_epoch(epoch, std::move(members));
    start_messages([this](OpRequest request, std::shared_ptr<Ticket> ticket) {
      issue_message(std::move(request), std::move(ticket));
    });
    for (auto& [key, pending] : ops_) run(key);
  }
  void enter_step(std::uint64_t step) {
    step_ = step;
    next_ = 0;
    begin_step(step);
  }
  void stop() { stop_epoch({ErrorCode::peer_lost, "the epoch has ended"}); }
  void number(std::vector<PeerId> ranks) {
    numbering_ = std::make_shared<const std::vector<PeerId>>(std::move(ranks));
  }
  [[nodiscard]] Numbering numbering() const { return numbering_; }
  std::set<PeerId> late_ones;  // have not called the operation that is asked for
  std::set<PeerId> past_ones;  // are in a later step

  void link_up(PeerId) override {}
  void link_down(PeerId, const std::string&, Down) override {}
  void close() override {}
  void abort(const std::string&) override {}
  void fail(Error) override {}
  [[nodiscard]] GroupView view() const override { return {}; }
  [[nodiscard]] bool needs(PeerId) const override { return true; }

  std::vector<Error> mismatches;  // found here, of operations that would fail for all
  std::vector<Error> starved;

 protected:
  void issue(OpRequest request, std::shared_ptr<Ticket> ticket) override {
    const OpKey key = next_key();
    ++next_;
    add(key, std::move(request), std::move(ticket), numbering_);
    run_->flow.issued(next_key());
    if (!run_->stopped) run(key);
  }
  void issue_message(OpRequest request, std::shared_ptr<Ticket> ticket) override {
    if (run_->stopped) {
      between_epochs_.emplace_back(std::move(request), std::move(ticket));
    } else {
      run_->point_to_point.post(std::move(request), std::move(ticket));
    }
  }
  void op_complete(Pending& pending) override { finish(pending.op->key(), {}); }
  void op_mismatch(OpKey, PeerId, const std::string& text) override {
    mismatches.push_back({ErrorCode::mismatch, text});
  }
  void op_timed_out(Pending&) override {}
  void op_starved(Pending& pending, const Error& error) override {
    starved.push_back(error);
    finish(pending.op->key(), error);
  }
  void end_waits(const Error& error) override { fail_pending(error); }
  [[nodiscard]] OpKey next_key() const override { return {step_, next_}; }
  [[nodiscard]] bool late(OpKey, PeerId peer) const override { return late_ones.contains(peer); }
  [[nodiscard]] bool past(OpKey, PeerId peer) const override { return past_ones.contains(peer); }
  [[nodiscard]] EpochId accepted_epoch() const override { return accepted_; }
  [[nodiscard]] bool accepted_member(PeerId peer) const override {
    return std::find(accepted_members_.begin(), accepted_members_.end(), peer) !=
           accepted_members_.end();
  }

 private:
  std::uint64_t step_ = 0;
  std::uint64_t next_ = 0;
  EpochId accepted_;
  std::vector<PeerId> accepted_members_;
};

/// An engine of one group, whose links are never released.
class FakeHost : public GroupHost {
 public:
  void publish(GroupId, GroupView) override {}
  void release_link(PeerId, bool) override {}
  [[nodiscard]] bool is_sibling(PeerId peer) const override { return sibling == peer; }
  [[nodiscard]] bool needed_beside(PeerId, GroupId) const override { return false; }

  std::optional<PeerId> sibling;
};

/// One member.
struct Node {
  explicit Node(PeerId self, GroupKind kind = GroupKind::elastic)
      : links(self),
        context{network, loop, links, pool, options, counters, host},
        group(std::make_unique<HandGroup>(context, kind)) {}

  std::shared_ptr<Ticket> post(OpRequest request) {
    auto ticket = std::make_shared<Ticket>();
    group->post(std::move(request), ticket);
    return ticket;
  }
  void hears(PeerId from, const PeerToPeer& message) { group->control(from, message); }
  /// The first `bytes` of a segment have come; `goes_on` brings the rest.
  void reads(PeerId from, const SegmentHeader& header, const std::byte* payload,
             std::uint32_t bytes) {
    const Placement at = group->segment_header(from, header);
    if (at.to == nullptr) return;
    std::memcpy(at.to, payload, bytes);
    links.half_read.emplace_back(header, at);
  }
  /// As a lane does it: nothing where its memory has been taken away meanwhile.
  void goes_on(PeerId from, std::size_t which, const std::byte* payload, std::uint32_t begun) {
    const auto [header, at] = links.half_read.at(which);
    links.half_read.erase(links.half_read.begin() + static_cast<std::ptrdiff_t>(which));
    std::memcpy(at.to + begun, payload + begun, header.bytes - begun);
    whole(from, header, at);
  }
  void gets(PeerId from, const SegmentHeader& header, const std::byte* payload) {
    const Placement at = group->segment_header(from, header);
    if (at.to == nullptr) return;
    if (header.bytes > 0) std::memcpy(at.to, payload, header.bytes);
    whole(from, header, at);
  }
  void whole(PeerId from, const SegmentHeader& header, const Placement& at) {
    const auto owner = context.owners.find(static_cast<std::uint32_t>(at.token));
    if (owner != context.owners.end()) owner->second->segment_arrived(from, header, at);
  }

  Loop loop;
  TcpNetwork network{loop};  // dials nobody
  FakeLinks links;
  BufferPool pool{1U << 20};
  EngineOptions options;
  EngineCounters counters;
  FakeHost host;
  EngineContext context;
  std::unique_ptr<HandGroup> group;
};

/// Delivers what `from` has sent to `to` by now; true if there was anything.
inline bool deliver(Node& from, Node& to) {
  bool any = false;
  for (auto it = from.links.sent.begin(); it != from.links.sent.end();) {
    if (it->to != to.links.self()) {
      ++it;
      continue;
    }
    const FakeLinks::Sent sent = std::move(*it);
    it = from.links.sent.erase(it);
    any = true;
    if (!sent.control.empty()) {
      const auto message = decode_peer_to_peer(sent.control);
      EXPECT_TRUE(message.ok()) << message.error().text;
      to.hears(from.links.self(), message.value());
      continue;
    }
    to.gets(from.links.self(), sent.header, sent.payload);
    const MemoryToken token = sent.cookie >> 32;
    const auto owner = from.context.owners.find(static_cast<std::uint32_t>(token));
    if (owner != from.context.owners.end()) {
      owner->second->segment_sent(token, to.links.self(), static_cast<std::uint32_t>(sent.cookie));
    }
    it = from.links.sent.begin();  // what was sent or taken back meanwhile
  }
  return any;
}

/// Until nobody has anything to say any more.
inline void settle(Node& a, Node& b) {
  while (deliver(a, b) || deliver(b, a)) {
  }
}

}  // namespace pccl::testing
