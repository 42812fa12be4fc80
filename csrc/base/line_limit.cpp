#include "base/line_limit.h"

namespace pccl {

std::optional<std::string> LineLimit::admit(const std::string& sender, const std::string& text,
                                            std::uint64_t now_ms) {
  std::string more;
  if (lines_ == 0 || now_ms - since_ms_ >= kLineLimitMs) {
    since_ms_ = now_ms;
    lines_ = 0;
    said_.clear();
    if (left_out_ > 0) more = " (and " + std::to_string(left_out_) + " more before)";
    left_out_ = 0;
  }
  const auto of = said_.find(sender);
  const bool too_many = lines_ >= kLinesOfAllMax;
  if (too_many ||
      (of != said_.end() && (of->second.size() >= kLinesOfOneMax || of->second.contains(text)))) {
    ++left_out_;
    return std::nullopt;
  }
  ++lines_;
  said_[sender].insert(text);
  return more;
}

}  // namespace pccl
