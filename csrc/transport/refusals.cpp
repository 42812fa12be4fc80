#include "transport/refusals.h"

#include <utility>

#include "base/log.h"
#include "transport/sys.h"

namespace pccl {

void Refusals::refused(const std::string& remote_host, const std::string& reason) {
  const std::uint64_t now = clock_.now_ms();
  std::string more;
  if (lines_ == 0 || now - since_ms_ >= kRefusalsMs) {
    since_ms_ = now;
    lines_ = 0;
    said_.clear();
    if (left_out_ > 0) more = " (and " + std::to_string(left_out_) + " more before)";
    left_out_ = 0;
  }
  const std::string network = network_of(remote_host);
  next_second();
  ++refused_;
  ++refused_of_[network];
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
  const auto of = refused_of_.find(network_of(remote_host));
  return of != refused_of_.end() && of->second >= kRefusedMax;
}

void Refusals::next_second() {
  const std::uint64_t now = clock_.now_ms();
  if (now - second_ms_ < 1000) return;
  second_ms_ = now;
  refused_ = 0;
  refused_of_.clear();
}

}  // namespace pccl
