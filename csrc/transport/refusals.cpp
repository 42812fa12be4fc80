#include "transport/refusals.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/address.h"

namespace pccl {

void Refusals::gone(const std::string& remote_host) {
  next_second();
  ++refused_;
  refused_networks_.insert(network_of(remote_host));
}

void Refusals::refused(const std::string& remote_host, const std::string& reason) {
  gone(remote_host);
  if (const auto more = lines_.admit(network_of(remote_host), reason, clock_.now_ms())) {
    log_warning("refused a connection from " + remote_host + ": " + reason + *more);
  }
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
