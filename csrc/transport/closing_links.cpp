#include "transport/closing_links.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"

namespace pccl {
namespace {

constexpr std::uint64_t kSayClosingMs = 60'000;  // after the first line

}  // namespace

void ClosingLinks::add(std::shared_ptr<Link> link) {
  Link& closes = *link;
  links_.push_back(std::move(link));
  closes.close(kHandshakeMs);
}

void ClosingLinks::over(const Link& link) {
  const auto found = std::find_if(links_.begin(), links_.end(),
                                  [&](const auto& held) { return held.get() == &link; });
  if (found == links_.end()) return;
  const std::shared_ptr<Link> held = std::move(*found);
  links_.erase(found);
  if (held->gave_up() && held->queued_bytes() > 0) say_lost(*held, "it has taken nothing more");
  bury_(held);
  finish_if_empty();
}

void ClosingLinks::each(const std::function<void(Link&)>& body) {
  for (std::size_t i = 0; i < links_.size();) {
    const std::shared_ptr<Link> link = links_[i];
    body(*link);
    if (i < links_.size() && links_[i] == link) ++i;
  }
}

void ClosingLinks::finish(const GoodbyeTime& time, std::function<void()> done) {
  done_ = std::move(done);
  since_ms_ = loop_.now_ms();
  all_ms_ = std::max(time.all_ms, time.quiet_ms);
  for (const auto& link : links_) link->close(time.quiet_ms);
  if (links_.empty()) return finish_if_empty();
  limit_ = loop_.timer(all_ms_, 0, [this] { cut_all(); });
  // By then a link that does not move is over.
  word_ = loop_.timer(2 * time.quiet_ms, kSayClosingMs, [this] { say_waiting(); });
}

void ClosingLinks::say_lost(const Link& link, const std::string& why) {
  log_warning("the link to peer " + name_of(link.handle) + " is closed, and " +
              bytes_text(link.queued_bytes()) + " that it had to bring there are lost: " + why);
}

void ClosingLinks::say_waiting() {
  std::string whom;
  for (const auto& link : links_) {
    const std::uint64_t queued = link->queued_bytes();
    add_to_list(whom, name_of(link->handle) + (queued > 0 ? " (" + bytes_text(queued) + ")" : ""));
  }
  const std::uint64_t passed_ms = loop_.now_ms() - since_ms_;
  log_warning("this process ends, and has been sending what others still need for " +
              seconds(passed_ms) + ": to peer " + whom +
              ". It goes on as long as bytes move, for " +
              seconds(all_ms_ - std::min(all_ms_, passed_ms)) + " more at most");
}

void ClosingLinks::cut_all() {
  while (!links_.empty()) {
    const Link& late = *links_.back();
    if (late.queued_bytes() > 0) say_lost(late, "it has taken too long");
    over(late);
  }
}

void ClosingLinks::finish_if_empty() {
  if (!links_.empty() || !done_) return;
  limit_.reset();
  word_.reset();
  loop_.defer(std::exchange(done_, nullptr));
}

}  // namespace pccl
