// A peer without an engine, for tests of the server: membership's state machine of a peer over a
// real connection. Links are up and tensors reduced at once; the test says when operations are
// issued and completed.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "membership/peer.h"
#include "transport/channel.h"
#include "transport/loop.h"
#include "wire/codec.h"

namespace pccl {

/// Runs the loop until `condition` holds: true; or for at most `timeout_ms`: false.
inline bool run_until(Loop& loop, const std::function<bool()>& condition,
                      std::uint64_t timeout_ms = 60000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  const auto wake = loop.timer(5, 5, [] {});
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    loop.run_once(true);
  }
  return true;
}

class FakePeer {
 public:
  FakePeer(Loop& loop, std::uint64_t id, std::uint16_t port, Entry entry = {})
      : loop_(loop), port_(port), entry_(std::move(entry)) {
    state.self.handle.peer.value = id;
    state.run = entry_.run;
    if (entry_.identity) {
      state.self.handle.key = entry_.identity->public_key();
      state.self.handle.peer = peer_of(state.self.handle.key);
    }
    state.self.handle.addresses = {"127.0.0.1:" + std::to_string(id)};
    state.self.place.replica = "replica " + std::to_string(id);
    connect();
  }
  FakePeer(const FakePeer&) = delete;
  FakePeer& operator=(const FakePeer&) = delete;

  void connect() {
    const auto done = [this](auto dialled) {
      if (!dialled) {
        refused = dialled.error().text;
        return again();
      }
      channel_ = std::move(dialled).value();
      channel_->set_events({[this](std::span<const std::byte> bytes) { arrived(bytes); },
                            [this](const std::string&) {
                              drop();
                              ++times_closed;
                              if (reconnects) again();
                            }});
      beat_ = loop_.timer(heartbeat_ms, heartbeat_ms, [this] {
        if (beats) send(Heartbeat{});
      });
      apply(peer::MasterConnected{});
    };
    dial_ = dial_channel(loop_, "127.0.0.1:" + std::to_string(port_), 1000, done, entry_);
  }
  /// As a crash does.
  void drop() {
    if (!channel_) return;
    channel_.reset();
    beat_.reset();
    apply(peer::MasterLost{});
  }
  /// As a crash does, once what goes on now is over; it does not come back.
  void die() {
    reconnects = false;
    loop_.defer([alive = std::weak_ptr(alive_), this] {
      if (!alive.expired()) drop();
    });
  }
  void move_to(std::uint16_t port) { port_ = port; }

  void send(const PeerToMaster& message) {
    if (channel_) channel_->send(writes ? writes(encode(message)) : encode(message));
    if (dies_after && dies_after(message)) die();
  }
  void send_bytes(std::span<const std::byte> bytes) {
    if (channel_) channel_->send(bytes);
  }
  [[nodiscard]] bool connected() const { return channel_ != nullptr; }

  void apply(const peer::Event& event) {
    for (const peer::Action& action : peer::step(state, event)) {
      std::visit([this](const auto& a) { act(a); }, action);
    }
  }
  /// Issues the next operation of this step and completes it whenever it runs.
  OpKey issue() {
    const OpKey op = peer::next_key(state);
    apply(peer::Issued{});
    return op;
  }
  /// Stands at the boundary that ends this step, without shared state.
  void refresh() {
    peer::AtBoundary at;
    at.has_root = true;
    apply(at);
  }

  template <typename Message>
  [[nodiscard]] const Message* last() const {
    for (auto at = inbox.rbegin(); at != inbox.rend(); ++at) {
      if (const auto* found = std::get_if<Message>(&*at)) return found;
    }
    return nullptr;
  }
  [[nodiscard]] bool runs(std::size_t members) const {
    return state.started && !state.stopped && state.started->members.size() == members;
  }
  [[nodiscard]] bool has_committed(OpKey op) const {
    return std::find(committed.begin(), committed.end(), op) != committed.end();
  }

  peer::State state;
  std::vector<MasterToPeer> inbox;
  std::vector<OpKey> committed;
  std::vector<OpKey> failed;
  std::string evicted;
  std::string refused;              // why the last dial failed
  std::uint64_t steps_entered = 0;  // by the newest boundary that it has passed
  std::uint64_t heartbeat_ms = 20;
  bool beats = true;
  bool reconnects = true;
  std::function<bool(const PeerToMaster&)> dies_after;                   // what it sends
  std::function<bool(const MasterToPeer&)> dies_at;                      // what it hears
  std::function<std::vector<std::byte>(std::vector<std::byte>)> writes;  // its messages otherwise
  int times_closed = 0;

 private:
  void again() {
    again_ = loop_.timer(30, 0, [this] { connect(); });
  }
  void arrived(std::span<const std::byte> bytes) {
    auto message = decode_master_to_peer(bytes);
    if (!message) return drop();
    inbox.push_back(message.value());
    if (dies_at && dies_at(message.value())) return die();
    apply(peer::FromMaster{std::move(message).value()});
  }

  void act(const peer::ToMaster& a) { send(a.message); }
  void act(const peer::Connect& a) { later(peer::LinksUp{a.epoch}); }
  void act(const peer::TryLinks& a) {
    peer::LinksTried tried;
    for (const Handle& other : a.open) tried.links.push_back({other.peer, ""});
    later(std::move(tried));
  }
  void act(const peer::HashState&) { later(peer::RootKnown{}); }
  void act(const peer::Fetch& a) { later(peer::Fetched{a.plan.root}); }
  void act(const peer::RunOp& a) { later(peer::Completed{a.op}); }
  void act(const peer::CommitOp& a) {
    committed.push_back(a.op);
    later(peer::Returned{a.op, a.in});
  }
  void act(const peer::FailOp& a) { failed.push_back(a.op); }
  void act(const peer::WasEvicted& a) { evicted = a.text; }
  void act(const peer::EnterStep& a) { steps_entered = a.step; }
  void act(const auto&) {}
  /// Events that answer an action come after the list of actions is done.
  void later(peer::Event event) {
    loop_.defer([alive = std::weak_ptr(alive_), this, event = std::move(event)] {
      if (!alive.expired()) apply(event);
    });
  }

  Loop& loop_;
  std::uint16_t port_;
  Entry entry_;
  std::unique_ptr<Dial> dial_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Timer> beat_;
  std::unique_ptr<Timer> again_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pccl
