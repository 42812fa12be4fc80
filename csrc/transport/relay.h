// Relayed links: two peers that cannot reach each other have a link over a third peer, the peer in
// between. This file has the two ends of a relayed link; passage.h has the peer in between.
//
// Each end opens the relayed link as soon as this end has a direct link to the peer in between, and
// draws a session number, by which frames of an earlier relayed link are recognised. All frames of
// the relayed link go over the direct link to the peer in between: control messages and small
// segments in order on the small lane, large segments on the bulk lanes, with a route in their
// header. The peer in between gives credit for each segment that it has passed on. At most
// kRelayWindowBytes of segments that one end has sent are without credit. So the memory of the peer
// in between is bounded, and a slow receiver slows down only the sender that sends to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/random.h"
#include "transport/direct_links.h"
#include "transport/passage.h"
#include "transport/relay_message.h"

namespace pccl {

/// The Links of a process: passes calls for a peer with a direct link to the direct links below,
/// and keeps the ends of relayed links. On the loop's thread.
class RelayLinks final : public Links, private DirectEvents {
 public:
  RelayLinks(Clock& clock, LinkEvents& events, std::uint64_t seed)
      : clock_(clock), events_(events), sessions_(seed) {}
  [[nodiscard]] Error listen(const MakeDirectLinks& make);

  [[nodiscard]] std::uint16_t port() const override { return direct_->port(); }
  [[nodiscard]] PeerId self() const override { return direct_->self(); }
  [[nodiscard]] const PublicKey& key() const override { return direct_->key(); }

  void open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) override;
  void open_via(const Handle& peer, PeerId via, std::uint64_t deadline_ms) override;
  [[nodiscard]] std::optional<PeerId> via(PeerId peer) const override;
  void close(PeerId peer) override;
  void drop(PeerId peer) override;
  void give_up(PeerId peer, const std::string& reason) override;
  [[nodiscard]] bool is_up(PeerId peer) const override;
  void widen(PeerId peer, std::size_t bulk_lanes) override {
    if (!is_leaving(peer)) direct_->widen(peer, bulk_lanes);
  }
  void send_control(PeerId peer, std::vector<std::byte> payload) override;
  void send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                    MemoryToken token, std::uint64_t cookie) override;
  void cancel(MemoryToken token) override;
  [[nodiscard]] std::uint64_t bytes_sent() const override { return direct_->bytes_sent(); }
  [[nodiscard]] std::uint64_t bytes_received() const override { return direct_->bytes_received(); }
  [[nodiscard]] std::uint64_t segment_bytes_received() const override {
    return direct_->segment_bytes_received() - passage_->bytes();
  }
  [[nodiscard]] std::uint64_t bytes_relayed() const override { return passage_->bytes(); }
  [[nodiscard]] std::size_t queued_bytes(PeerId peer) const override;
  void shutdown(std::uint64_t deadline_ms, std::function<void()> done) override;

 private:
  enum class State : std::uint8_t { opening, up, failed };
  struct Queued {
    SegmentHeader header;
    const std::byte* payload = nullptr;
    MemoryToken token = 0;
    std::uint64_t cookie = 0;
  };
  /// This process's end of a relayed link.
  struct Far {
    Handle handle;
    PeerId via;
    State state = State::opening;
    std::uint64_t serial = 0;
    std::uint64_t mine = 0;    // session number of this end
    std::uint64_t theirs = 0;  // session number of the other end; 0: not known yet
    std::unique_ptr<Timer> deadline;
    std::unique_ptr<Timer> again;
    std::deque<Queued> queue;   // segments that wait for room in the window
    std::deque<Queued> handed;  // segments that the direct link to `via` has not sent yet
    std::size_t queued_bytes = 0;
    std::size_t handed_bytes = 0;
    std::size_t on_the_way = 0;  // bytes sent, without credit yet
    std::uint64_t sent = 0;      // number of segments
    std::uint64_t received = 0;
    std::optional<std::uint64_t> ends_after;  // the link goes down when so many segments have come
    std::string why;                          // the reason for link_down then
    std::uint64_t moved = 0;                  // `received` or `sent` when `deadline` last passed
  };
  /// A direct link that its owner has closed, and that still carries data of relayed links: queues
  /// of ends in `closing_`, or what this process passes on between others. The link is closed after
  /// them.
  struct Leaving {
    std::unique_ptr<Timer> look;
    std::uint64_t moved = 0;
    std::uint64_t since_ms = 0;  // when `moved` changed last
  };

  // DirectEvents
  void link_up(PeerId peer) override;
  void link_down(PeerId peer, const std::string& reason, Down how) override;
  void control_arrived(PeerId peer, std::span<const std::byte> payload) override {
    if (!is_leaving(peer)) events_.control_arrived(peer, payload);
  }
  void segment_sent(PeerId peer, std::uint64_t cookie) override {
    if (!is_leaving(peer)) events_.segment_sent(peer, cookie);
  }
  Placement segment_header(PeerId peer, const SegmentHeader& header) override;
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override;
  void relay_arrived(PeerId peer, std::span<const std::byte> payload) override;
  void routed_sent(PeerId far, MemoryToken token, std::uint64_t cookie) override;

  [[nodiscard]] Far* find(PeerId peer);
  [[nodiscard]] Far* find_up(PeerId peer);
  /// This end of the relayed link of that session; null: the link has ended.
  [[nodiscard]] Far* find_session(PeerId peer, std::uint64_t session);
  void say(const Far& far, RelayKind kind, std::uint64_t session, std::uint64_t number,
           std::span<const std::byte> rest = {});
  void say_open(PeerId peer);
  void opened(PeerId via, const RelayMessage& message);
  void went_down(Far& far, const RelayMessage& message);
  void take_credit(Far& far, std::uint64_t bytes);
  void now_up(Far& far);
  void pump(Far& far);
  void count_received(const Route& route);

  void fail(Far& far, const std::string& reason);
  void lost_over(PeerId via, const std::string& why);
  void say_closed(const Far& far);
  void owe(Far far);
  void pay(PeerId peer);
  void end_rest(PeerId peer);
  [[nodiscard]] bool owes_over(PeerId via) const;
  void let_go(PeerId peer, bool in_order);
  void look(PeerId peer);
  void end_leaving(PeerId peer);
  void finish_shutdown(std::uint64_t left_ms);
  [[nodiscard]] bool is_leaving(PeerId peer) const { return leaving_.contains(peer); }

  Clock& clock_;
  LinkEvents& events_;
  Random sessions_;
  std::unique_ptr<DirectLinks> direct_;
  std::optional<Passage> passage_;
  std::map<PeerId, Far> far_;
  std::map<PeerId, Far> closing_;  // closed by the owner: these send their queue and report nothing
  std::map<PeerId, Leaving> leaving_;
  std::uint64_t serials_ = 0;
  std::function<void()> shutdown_done_;
  std::unique_ptr<Timer> shutdown_look_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pccl
