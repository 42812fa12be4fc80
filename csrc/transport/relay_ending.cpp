// How links over a third peer end, and how the link to that peer ends after them.
//
// No frame that was sent before a close in good order is lost, in whatever order an end closes the
// relayed link and the link to the peer in between, and also if the peer in between closes first.
// So a closed link that still carries frames, of an end or between two others, is `leaving`: its
// owner hears nothing of it any more, and it is closed when it carries nothing, or when nothing has
// moved for kHandshakeMs.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/text.h"
#include "transport/relay.h"

namespace pccl {
namespace {

constexpr std::uint64_t kLeavingLookMs = 100;  // whether a link that is leaving is needed still
constexpr std::string_view kClosed = "the peer has closed the link";

}  // namespace

std::string RelayLinks::reason_of(std::span<const std::byte> said) {
  if (said.empty()) return "no reason is given";
  const auto* text = reinterpret_cast<const char*>(said.data());
  return printable({text, std::min(said.size(), kTextBytesMax)});
}

void RelayLinks::fail(Far& far, const std::string& reason, Down how) {
  if (far.state == State::failed) return;
  const bool was_up = far.state == State::up;
  far.state = State::failed;
  far.deadline.reset();
  far.again.reset();
  far.queue.clear();
  far.handed.clear();  // their memory stays borrowed until it is cancelled
  if (!was_up && how == Down::lost) how = Down::unopened;
  clock_.defer([this, peer = far.handle.peer, serial = far.serial, how, reason,
                alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    const Far* failed = find(peer);
    if (failed == nullptr || failed->serial != serial) return;
    far_.erase(peer);
    events_.link_down(peer, reason, how);
  });
}

/// The own link to `via` has ended, or ends at once: so do the links over it.
void RelayLinks::lost_over(PeerId via, const std::string& why) {
  for (auto& [id, far] : far_) {
    if (far.via != via || far.state != State::up) continue;
    fail(far, "the link to the peer in between was lost: " + why);
  }
}

void RelayLinks::distrust(Far& far, const std::string& done, Down how) {
  // The link may be up at the other end.
  if (far.seal->has_keys()) say_down(far, 0, "what this peer sent has not arrived as it was");
  fail(far,
       "the peer in between, " + to_string(far.via) + ", has " + done + " what peer " +
           name_of(far.handle) + " has sent to this peer, " + to_string(self()),
       how);
}

/// The other end has closed the link, or has lost it.
void RelayLinks::went_down(Far& far, std::span<const std::byte> said) {
  if (far.state != State::up || far.ends_after) return;  // an opening goes on until its deadline
  const auto before = BytesIn(said).number<std::uint64_t>();
  const auto text = said.subspan(sizeof(before));
  const std::string why = reason_of(text);
  if (before <= far.received) return fail(far, why);
  far.ends_after = before;  // its last segments travel on other lanes
  far.why = why;
  far.moved = far.received;
  far.deadline = clock_.timer(kHandshakeMs, kHandshakeMs, [this, peer = far.handle.peer] {
    Far& late = far_.at(peer);
    // The other end has closed the link, or lost it, so nobody can tell why the rest is missing.
    if (late.moved == late.received) return distrust(late, "left out the end of", Down::lost);
    late.moved = late.received;
  });
}

void RelayLinks::say_down(Far& far, std::uint64_t sent, std::string_view why) {
  std::vector<std::byte> plain(sizeof(sent) + why.size());
  BytesOut{std::span(plain)}.number(sent);
  const auto text = as_span(why);
  std::copy(text.begin(), text.end(), plain.begin() + sizeof(sent));
  say(far, RelayKind::down, plain);
}

void RelayLinks::say_closed(Far& far) { say_down(far, far.sent, kClosed); }

// ----------------------------------------------------------------------------------- closing

void RelayLinks::close(PeerId peer) {
  if (auto node = far_.extract(peer); !node.empty() && node.mapped().state == State::up) {
    owe(std::move(node.mapped()));
  }
  for (auto& [id, far] : far_) {
    if (far.via != peer || far.state != State::up) continue;
    Far gone;
    gone.handle = far.handle;
    gone.via = peer;
    gone.state = State::up;
    gone.serial = ++serials_;
    owe(std::exchange(far, std::move(gone)));
    fail(far, "the link to the peer in between was closed here");
  }
  let_go(peer, true);
}

void RelayLinks::drop(PeerId peer) {
  if (Far* far = find_up(peer)) say_down(*far, 0, "the peer has dropped the link");
  far_.erase(peer);
  end_rest(peer);
  lost_over(peer, "it was dropped here");
  let_go(peer, false);
}

void RelayLinks::give_up(PeerId peer, const std::string& reason) {
  if (is_leaving(peer)) return;
  Far* far = find_up(peer);
  if (far == nullptr) return direct_->give_up(peer, reason);
  say_down(*far, 0, "the peer makes the link anew");
  fail(*far, reason);
}

/// A link that is up and was closed sends the rest of its queue, as far as that moves.
void RelayLinks::owe(Far far) {
  if (far.queue.empty()) return say_closed(far);
  const PeerId peer = far.handle.peer;
  Far& rest = closing_[peer];
  rest = std::move(far);
  rest.moved = rest.sent;
  rest.deadline = clock_.timer(kHandshakeMs, kHandshakeMs, [this, peer] {
    Far& late = closing_.at(peer);
    if (late.moved == late.sent) return end_rest(peer);
    late.moved = late.sent;
  });
}

/// Sends more of the rest of a closed link, if its window has room.
void RelayLinks::pay(PeerId peer) {
  Far& rest = closing_.at(peer);
  pump(rest);
  if (rest.queue.empty()) end_rest(peer);
}

/// Ends a closed link: tells the other end how many segments were sent, all of them or fewer.
void RelayLinks::end_rest(PeerId peer) {
  const auto rest = closing_.find(peer);
  if (rest == closing_.end()) return;
  say_closed(rest->second);
  closing_.erase(rest);
}

bool RelayLinks::owes_over(PeerId via) const {
  return std::any_of(closing_.begin(), closing_.end(),
                     [via](const auto& entry) { return entry.second.via == via; });
}

// ----------------------------------------------------------- the link to the peer in between

void RelayLinks::let_go(PeerId peer, bool in_order) {
  if (is_leaving(peer)) return;
  if (direct_->is_up(peer) &&
      (owes_over(peer) || passage_->serves(peer) || (in_order && sends_over(peer)))) {
    Leaving& leaving = leaving_[peer];
    leaving.moved = passage_->moved(peer) + copies_sent_;
    leaving.since_ms = clock_.now_ms();
    leaving.look = clock_.timer(kLeavingLookMs, kLeavingLookMs, [this, peer] { look(peer); });
    return;
  }
  passage_->unlink(peer);
  forget_copies(peer);
  if (in_order) {
    direct_->close(peer);
  } else {
    direct_->drop(peer);
  }
}

void RelayLinks::look(PeerId peer) {
  Leaving& leaving = leaving_.at(peer);
  const std::uint64_t moved = passage_->moved(peer) + copies_sent_;
  if (moved != leaving.moved) {
    leaving.moved = moved;
    leaving.since_ms = clock_.now_ms();
  }
  const bool passes = (passage_->serves(peer) || sends_over(peer)) &&
                      clock_.now_ms() - leaving.since_ms < kHandshakeMs;
  if (!passes && !owes_over(peer)) end_leaving(peer);
}

void RelayLinks::end_leaving(PeerId peer) {
  if (leaving_.erase(peer) == 0) return;
  passage_->unlink(peer);
  forget_copies(peer);
  direct_->close(peer);
}

void RelayLinks::shutdown(const GoodbyeTime& time, std::function<void()> done) {
  shutdown_done_ = std::move(done);
  for (auto& [peer, far] : far_) {
    if (far.state == State::up) owe(std::move(far));
  }
  far_.clear();
  if (closing_.empty()) return finish_shutdown(time);
  for (auto& [peer, rest] : closing_) rest.deadline.reset();
  const std::uint64_t began_ms = clock_.now_ms();
  shutdown_look_ = clock_.timer(
      kLeavingLookMs, kLeavingLookMs,
      [this, time, began_ms, moved = moved_by_rests(), moved_at_ms = began_ms]() mutable {
        const std::uint64_t now = clock_.now_ms();
        if (const std::uint64_t moves = moved_by_rests(); moves != std::exchange(moved, moves)) {
          moved_at_ms = now;
        }
        // A part of each time stays for the links that these go over.
        const GoodbyeTime rests{time.quiet_ms / 4 * 3, time.all_ms / 4 * 3};
        const std::uint64_t passed_ms = now - began_ms;
        if (!closing_.empty() && now - moved_at_ms < rests.quiet_ms && passed_ms < rests.all_ms) {
          return;
        }
        const std::uint64_t left_ms = time.all_ms - std::min(time.all_ms, passed_ms);
        finish_shutdown({time.quiet_ms, left_ms});
      });
}

/// Grows while a rest moves: segments that have left, and what of these has arrived at the peer in
/// between.
std::uint64_t RelayLinks::moved_by_rests() const {
  std::uint64_t moved = 0;
  for (const auto& [peer, rest] : closing_) {
    const auto link = direct_->view(rest.via);
    moved += rest.sent + (link ? link->bytes_arrived : 0);
  }
  return moved;
}

void RelayLinks::finish_shutdown(const GoodbyeTime& time) {
  while (!closing_.empty()) end_rest(closing_.begin()->first);
  leaving_.clear();
  shutdown_look_.reset();
  direct_->shutdown(time, std::exchange(shutdown_done_, nullptr));
}

}  // namespace pccl
