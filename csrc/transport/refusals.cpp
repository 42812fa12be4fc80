#include "transport/refusals.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/sys.h"

namespace pccl {

void Refusals::refused(const std::string& remote_host, const std::string& reason) {
  const std::uint64_t now = clock_.now_ms();
  std::string more;
  if (lines_ == 0 || now - since_ms_ >= kRefusalLogMs) {
    since_ms_ = now;
    lines_ = 0;
    said_.clear();
    if (left_out_ > 0) more = " (and " + std::to_string(left_out_) + " more before)";
    left_out_ = 0;
  }
  const std::string network = network_of(remote_host);
  next_second();
  ++refused_;
  refused_networks_.insert(network);
  const auto of = said_.find(network);
  const bool known = of != said_.end();
  if (lines_ >= kRefusalLinesOfAllMax ||
      (known && (of->second.size() >= kRefusalLinesMax || of->second.contains(reason)))) {
    ++left_out_;
    return;
  }
  ++lines_;
  said_[network].insert(reason);
  log_warning("refused a connection from " + remote_host + ": " + reason + more);
}

bool Refusals::too_often(const std::string& remote_host) {
  next_second();
  if (refused_ <= kRefusedOfAllMax) return false;
  const std::string network = network_of(remote_host);
  if (!refused_networks_.contains(network)) return false;
  const auto proven = proven_.find(network);
  return proven == proven_.end() || clock_.now_ms() - proven->second > kProvenMs;
}

void Refusals::proven(const std::string& remote_host) {
  proven_[network_of(remote_host)] = clock_.now_ms();
  if (proven_.size() <= kProvenMax) return;
  proven_.erase(std::min_element(proven_.begin(), proven_.end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; }));
}

void Refusals::next_second() {
  const std::uint64_t now = clock_.now_ms();
  if (now - second_ms_ < 1000) return;
  second_ms_ = now;
  refused_ = 0;
  refused_networks_.clear();
}

}  // namespace pccl
