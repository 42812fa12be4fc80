// Relayed links: two peers that cannot reach each other have a link over a third peer, the peer in
// between. This file has the two ends of a relayed link; passage.h has the peer in between.
//
// Each end opens the relayed link as soon as this end has a direct link to the peer in between, and
// draws a session number, by which frames of an earlier relayed link are recognised. All frames of
// the relayed link go over the direct link to the peer in between: control messages and small
// segments in order on the small lane, large segments on the bulk lanes, with a route in their
// header. Each end seals what it sends for the other end (relay_seal.h): the link is up where the
// other end has proven to have the same keys, and ends where something does not arrive as it was
// sent. What arrives waits in memory of this file until it is whole and proven, then it is copied
// to its place. The peer in between gives credit for each segment that it has passed on. At most
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

#include "transport/buffers.h"
#include "transport/direct_links.h"
#include "transport/passage.h"
#include "transport/relay_message.h"
#include "transport/relay_seal.h"

namespace pccl {

/// The Links of a process: passes calls for a peer with a direct link to the direct links below,
/// and keeps the ends of relayed links. On the loop's thread.
class RelayLinks final : public Links, private DirectEvents {
 public:
  RelayLinks(Clock& clock, LinkEvents& events, RelayTrust trust)
      : clock_(clock), events_(events), trust_(std::move(trust)) {}
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
  [[nodiscard]] std::string opening_text(PeerId peer) const override {
    return direct_->opening_text(peer);
  }
  [[nodiscard]] std::string trouble_text(PeerId peer) const override {
    return direct_->trouble_text(peer);
  }
  [[nodiscard]] bool is_up(PeerId peer) const override;
  void send_control(PeerId peer, std::vector<std::byte> payload) override;
  void send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                    MemoryToken token, std::uint64_t cookie) override;
  [[nodiscard]] OwnArea* area() override { return direct_->area(); }
  void cancel(MemoryToken token) override;
  [[nodiscard]] std::uint64_t bytes_sent() const override { return direct_->bytes_sent(); }
  [[nodiscard]] std::uint64_t bytes_received() const override { return direct_->bytes_received(); }
  [[nodiscard]] std::uint64_t bytes_shared() const override { return direct_->bytes_shared(); }
  [[nodiscard]] std::uint64_t rate_held_ms() const override { return direct_->rate_held_ms(); }
  [[nodiscard]] std::vector<LinkView> views() const override { return direct_->views(); }
  [[nodiscard]] std::optional<LinkView> view(PeerId peer) const override {
    return is_leaving(peer) ? std::nullopt : direct_->view(peer);
  }
  [[nodiscard]] std::uint64_t segment_bytes_received() const override {
    return direct_->segment_bytes_received() - passage_->bytes();
  }
  [[nodiscard]] std::uint64_t bytes_relayed() const override { return passage_->bytes(); }
  [[nodiscard]] std::size_t queued_bytes(PeerId peer) const override;
  void shutdown(const GoodbyeTime& time, std::function<void()> done) override;

 private:
  enum class State : std::uint8_t { opening, up, failed };
  struct Queued {
    SegmentHeader header;
    const std::byte* payload = nullptr;
    MemoryToken token = 0;
    std::uint64_t cookie = 0;
    MemoryToken sent_as = 0;  // of its sealed copy
    bool tells = true;        // false: cancelled since
  };
  /// This process's end of a relayed link.
  struct Far {
    Handle handle;
    PeerId via;
    PeerId asked;  // over which the owner wants it: `via`, or the next way of a link that is up
    State state = State::opening;
    std::uint64_t serial = 0;
    std::unique_ptr<RelaySeal> seal;  // null: `state` is failed
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
  /// A segment on its way over the direct link to `via`: sealed for the other end, or from there.
  struct Copy {
    PeerId via;
    std::vector<std::byte> buffer;
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
  void link_trouble(PeerId peer, const std::string& what) override {
    if (!is_leaving(peer)) events_.link_trouble(peer, what);
  }
  void control_arrived(PeerId peer, std::span<const std::byte> payload) override;
  void segment_sent(PeerId peer, std::uint64_t cookie) override {
    if (!is_leaving(peer)) events_.segment_sent(peer, cookie);
  }
  Placement segment_header(PeerId peer, const SegmentHeader& header) override;
  void segment_part(PeerId peer, const SegmentHeader& header, const Placement& at,
                    std::uint32_t offset, std::span<const std::byte> bytes) override;
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override;
  void segment_lost(PeerId peer, const SegmentHeader& header, const Placement& at) override {
    if (!is_leaving(peer)) events_.segment_lost(peer, header, at);
  }
  void relay_arrived(PeerId peer, std::span<const std::byte> payload) override;
  void routed_sent(PeerId far, MemoryToken token, std::uint64_t cookie) override;

  [[nodiscard]] Far* find(PeerId peer);
  [[nodiscard]] Far* find_up(PeerId peer);
  /// This end of the relayed link of that session; null: the link has ended.
  [[nodiscard]] Far* find_session(PeerId peer, std::uint64_t session);
  [[nodiscard]] bool reads_no_answers(PeerId peer);
  void say(Far& far, RelayKind kind, std::span<const std::byte> plain);
  void say_down(Far& far, std::uint64_t sent, std::string_view why);
  void say_open(PeerId peer);
  void opened(PeerId via, const RelayMessage& message);
  void heard(Far& far, const RelayMessage& message);
  void rest_heard(PeerId via, const RelayMessage& message);
  void went_down(Far& far, std::span<const std::byte> said);
  void came(const SegmentHeader& header, std::byte* payload);
  void take_credit(Far& far, std::uint64_t bytes);
  void now_up(Far& far);
  void pump(Far& far);
  void hand_over(Far& far);
  void count_received(const Route& route);

  [[nodiscard]] std::byte* copy(std::map<MemoryToken, Copy>& copies, PeerId via, std::size_t bytes,
                                MemoryToken& token);
  void forget_copies(PeerId via);
  [[nodiscard]] bool sends_over(PeerId via) const;

  [[nodiscard]] static std::string reason_of(std::span<const std::byte> said);
  void fail(Far& far, const std::string& reason, Down how = Down::lost);
  /// What the other end has sent has not arrived as it was sent.
  void distrust(Far& far, const std::string& done, Down how = Down::spoiled);
  void lost_over(PeerId via, const std::string& why);
  void say_closed(Far& far);
  void owe(Far far);
  void pay(PeerId peer);
  void end_rest(PeerId peer);
  [[nodiscard]] bool owes_over(PeerId via) const;
  void let_go(PeerId peer, bool in_order);
  void look(PeerId peer);
  void end_leaving(PeerId peer);
  [[nodiscard]] std::uint64_t moved_by_rests() const;
  void finish_shutdown(const GoodbyeTime& time);
  [[nodiscard]] bool is_leaving(PeerId peer) const { return leaving_.contains(peer); }

  Clock& clock_;
  LinkEvents& events_;
  RelayTrust trust_;
  static constexpr MemoryToken kMark = 1ULL << 62;  // the bit is set in no other token
  Buffers buffers_;
  std::map<MemoryToken, Copy> sealed_;  // to be sent
  std::map<MemoryToken, Copy> arriving_;
  MemoryToken copies_ = 0;
  std::uint64_t copies_sent_ = 0;
  std::unique_ptr<DirectLinks> direct_;  // ends before the copies that it sends
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
