#include "transport/parking.h"

#include <algorithm>
#include <array>

#include "base/limits.h"
#include "base/log.h"
#include "transport/framing.h"

namespace pccl {
namespace {

constexpr std::uint64_t kSweepMs = 200;

enum class Seen { nothing, goodbye, data, cut_off };

/// What comes first on a connection that nobody has read from.
Seen look(Stream& stream) {
  std::array<std::byte, kFrameHeaderBytes> first{};
  const Stream::Moved got = stream.peek(first);
  if (got.outcome == Stream::Outcome::later) return Seen::nothing;
  if (got.outcome != Stream::Outcome::moved) return Seen::cut_off;
  if (got.bytes < first.size()) return Seen::data;
  const auto frame = decode_frame_header(first, kControlBytesMax);
  return frame.ok() && frame.value().type == FrameType::goodbye ? Seen::goodbye : Seen::data;
}

bool is_cut_off(const std::vector<std::unique_ptr<Stream>>& lanes) {
  return std::any_of(lanes.begin(), lanes.end(), [](const std::unique_ptr<Stream>& lane) {
    return look(*lane) == Seen::cut_off;
  });
}

/// Nothing has come over it, and nothing will.
bool is_over(const std::vector<std::unique_ptr<Stream>>& lanes) {
  return is_cut_off(lanes) ||
         std::all_of(lanes.begin(), lanes.end(), [](const std::unique_ptr<Stream>& lane) {
           return look(*lane) == Seen::goodbye;
         });
}

}  // namespace

void Parking::add(PeerId peer, std::vector<std::unique_ptr<Stream>> lanes) {
  links_[peer] = {std::move(lanes), ++order_};
  if (!sweep_) sweep_ = loop_.timer(kSweepMs, kSweepMs, [this] { sweep(); });
  if (links_.size() <= kMembersMax) return;
  const auto oldest = std::min_element(
      links_.begin(), links_.end(),
      [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
  log_warning("too many peers have connected without being wanted: dropped " +
              to_string(oldest->first));
  links_.erase(oldest);
}

std::optional<std::vector<std::unique_ptr<Stream>>> Parking::take(PeerId peer) {
  auto node = links_.extract(peer);
  if (node.empty() || is_cut_off(node.mapped().lanes)) return std::nullopt;
  return std::move(node.mapped().lanes);
}

void Parking::sweep() {
  std::erase_if(links_, [](const auto& entry) { return is_over(entry.second.lanes); });
  if (links_.empty()) sweep_.reset();
}

}  // namespace pccl
