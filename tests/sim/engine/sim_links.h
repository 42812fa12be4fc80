// DirectLinks in memory: who dials, what is parked, when the owner is told, as transport/links.cpp
// has it, over wires. The relay of transport/relay.cpp lies on top of it, the real one.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "transport/direct_links.h"
#include "wires.h"

namespace pccl::sim {

class SimLinks;
class Liar;

/// Which processes there are, and which of them reach each other.
class Cables {
 public:
  explicit Cables(Time& of) : time(of) {}
  Time& time;
  std::map<PeerId, SimLinks*> links;  // of processes that live
  std::size_t bulk_lanes = 1;
  bool slow = false;          // some wires have small windows and long delays
  std::uint64_t trip_us = 0;  // as links say, except those within one machine or site
  std::uint64_t sites = 1;    // of which processes stand at one by chance; 1: none is a site
  bool one_machine = false;   // links say so, and large calls go through areas
  Liar* liar = nullptr;       // null: nobody lies

  void cut(PeerId a, PeerId b) { cut_[std::minmax(a, b)] = true; }
  void mend_all() { cut_.clear(); }
  [[nodiscard]] bool is_cut(PeerId a, PeerId b) const { return cut_.contains(std::minmax(a, b)); }
  [[nodiscard]] Weather weather();
  /// By chances of their own, so that all else is as without long lines.
  void stretch(std::uint64_t seed) {
    Random chance(seed);
    trip_us = chance.below(2) * 80'000;
    sites = 1 + chance.below(3);
    one_machine = chance.below(6) == 5;  // none of seeds.txt
  }

 private:
  std::map<std::pair<PeerId, PeerId>, bool> cut_;
};

class SimLinks final : public DirectLinks, private WireEnd {
 public:
  SimLinks(Cables& cables, Process& process, PeerId self, const PublicKey& key,
           DirectEvents& events);
  ~SimLinks() override;

  [[nodiscard]] std::uint16_t port() const override { return 1; }
  [[nodiscard]] PeerId self() const override { return self_; }
  [[nodiscard]] const PublicKey& key() const override { return key_; }
  void open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) override;
  void close(PeerId peer) override;
  void drop(PeerId peer) override;
  void give_up(PeerId peer, const std::string& reason) override;
  [[nodiscard]] bool is_up(PeerId peer) const override;
  [[nodiscard]] std::optional<LinkView> view(PeerId peer) const override;
  void send_control(PeerId peer, std::vector<std::byte> payload) override;
  void send_relay(PeerId peer, std::vector<std::byte> payload) override;
  void send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                    MemoryToken token, std::uint64_t cookie) override;
  void cancel(MemoryToken token) override;
  [[nodiscard]] std::uint64_t bytes_sent() const override { return bytes_sent_; }
  [[nodiscard]] std::uint64_t bytes_received() const override { return bytes_received_; }
  [[nodiscard]] std::uint64_t segment_bytes_received() const override { return segment_bytes_; }
  [[nodiscard]] std::size_t queued_bytes(PeerId peer) const override;
  [[nodiscard]] std::size_t queued_message_bytes(PeerId peer) const override {
    return queued_bytes(peer);
  }
  void shutdown(const GoodbyeTime& time, std::function<void()> done) override;

  /// Faults. The process has ended: `silent`, and nobody is told (its machine is gone).
  void ended(bool silent);
  /// This side loses the link at once, the other one hears nothing of it for now.
  void lose(PeerId peer);
  /// Nothing goes from here to there any more over this link; both sides find out later.
  void mute(PeerId peer);
  [[nodiscard]] std::vector<PeerId> peers_up() const;

 private:
  enum class State : std::uint8_t { opening, proven, up, failed };
  struct Link {
    Handle handle;
    State state = State::opening;
    std::uint64_t serial = 0;
    std::uint64_t bytes_sent = 0;
    std::shared_ptr<Wire> wire;
    int side = 0;
    bool dialling = false;
    std::uint64_t proven_at_ms = 0;
    std::uint64_t refused_since_ms = 0;
    std::uint64_t refused_long_ms = 0;
    std::uint64_t backoff_ms = 50;
    std::uint64_t deadline_at_ms = 0;
    std::unique_ptr<Timer> deadline;
    std::unique_ptr<Timer> retry;
  };
  struct Told {
    enum class What : std::uint8_t { up, down, sent };
    What what = What::up;
    PeerId peer;
    std::uint64_t serial = 0;
    std::string reason;
    Down how = Down::lost;
    MemoryToken token = 0;
    std::uint64_t cookie = 0;
    PeerId far;
  };
  struct Parked {
    std::shared_ptr<Wire> wire;
    int side;
  };
  struct Closing {
    std::shared_ptr<Wire> wire;
    int side = 0;
    std::uint64_t moved = 0;
    std::uint64_t moved_at_ms = 0;
  };

  Process& process() override { return process_; }
  Placement header(Wire& wire, const Frame& frame) override;
  void bytes(Wire& wire, const Frame& frame, std::size_t count) override;
  void whole(Wire& wire, const Frame& frame, const Placement& at) override;
  void taken(Wire& wire, const Frame& frame) override;
  void over(Wire& wire, const std::string& reason, bool broken) override;

  void dial(Link& link);
  void dial_later(Link& link, std::uint64_t delay_ms);
  void dial_failed(PeerId peer, std::uint64_t serial, bool refused);
  [[nodiscard]] bool takes(PeerId dialler);
  void arrived(PeerId peer, const std::shared_ptr<Wire>& wire);
  void adopt(Link& link, const std::shared_ptr<Wire>& wire, int side);
  void fail(Link& link, const std::string& reason, bool refused);
  void send(PeerId peer, FramePointer frame);
  void tell(Told told);
  void tell_owner();
  void look_at_closing();
  void finish_closing(const std::shared_ptr<Wire>& wire, int side);
  Link* find(PeerId peer);
  Link* of(const Wire& wire);

  Cables& cables_;
  Process& process_;
  PeerId self_;
  PublicKey key_;
  DirectEvents& events_;
  std::map<PeerId, Link> links_;
  std::map<PeerId, Parked> parked_;
  std::vector<Closing> closing_;
  std::deque<Told> told_;
  bool tells_ = false;
  bool shut_ = false;
  std::uint64_t serials_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t segment_bytes_ = 0;
  std::function<void()> shutdown_done_;
  std::unique_ptr<Timer> shutdown_deadline_;
  std::unique_ptr<Timer> closing_timer_;
  std::uint64_t quiet_ms_ = kHandshakeMs;  // then a link that closes and does not move ends
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
};

}  // namespace pccl::sim
