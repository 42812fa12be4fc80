// See fetch.h.
#include "state/fetch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/log.h"

namespace pccl {
namespace {

/// May another source still deliver?
bool is_of_source(ErrorCode code) {
  return code == ErrorCode::closed || code == ErrorCode::peer_lost ||
         code == ErrorCode::timed_out || code == ErrorCode::unreachable;
}

void change_places(std::span<std::byte> a, std::span<std::byte> b) {
  std::array<std::byte, 16384> held;
  for (std::size_t at = 0; at < a.size(); at += held.size()) {
    const std::size_t bytes = std::min(held.size(), a.size() - at);
    std::memcpy(held.data(), a.data() + at, bytes);
    std::memcpy(a.data() + at, b.data() + at, bytes);
    std::memcpy(b.data() + at, held.data(), bytes);
  }
}

Error no_memory(std::uint64_t bytes) {
  return {ErrorCode::no_memory, "there is no memory for " + std::to_string(bytes) +
                                    " bytes of the run's shared state; the own one is unchanged"};
}

}  // namespace

StateFetch::Memory::Memory(std::span<const std::byte> copied) : Memory(copied.size()) {
  std::copy(copied.begin(), copied.end(), data_.get());
}

Result<bool> StateFetch::run(std::vector<WantedItem> wanted, std::vector<PeerId> sources,
                             const PullInto& pull, const Hash& hash) {
  begin(std::move(wanted), std::move(sources));
  while (const auto due = next()) {
    Memory memory;
    try {
      if (due->item.bytes) memory = Memory(*due->item.bytes);
    } catch (const std::bad_alloc&) {
      return no_memory(*due->item.bytes);
    }
    const Error ended = pull(*due, memory);
    Error error = came(*due, ended, std::move(memory), hash);
    if (error.failed()) return error;
  }
  return complete();
}

void StateFetch::begin(std::vector<WantedItem> wanted, std::vector<PeerId> sources) {
  replaced_.clear();
  plan_.want(wanted, std::move(sources));
  for (const WantedItem& item : wanted) {
    if (here_.contains(item.digest)) plan_.arrived(item.digest);
  }
}

Error StateFetch::came(const TransferPlan::Pull& pull, const Error& error, Memory memory,
                       const Hash& hash) {
  const auto which = [&] {
    return "shared state: item " + std::to_string(pull.item.index) + " of " +
           to_string(pull.source);
  };
  if (error.failed()) {
    plan_.failed(pull.source);
    if (!is_of_source(error.code)) return error;
    log_info(which() + " does not come: " + error.text);
    return {};
  }
  bytes_received_ += memory.span().size();
  const Digest digest = pull.item.index == 0 ? sha256(memory.span()) : hash(memory.span());
  if (digest == pull.item.digest) {
    here_.insert_or_assign(digest, std::move(memory));
    plan_.arrived(digest);
  } else {
    log_warning(which() + " has another digest");
    plan_.failed(pull.source);
  }
  return {};
}

std::span<const std::byte> StateFetch::at(const Digest& digest) const {
  const auto it = here_.find(digest);
  PCCL_ASSERT(it != here_.end(), "it has not been fetched");
  return it->second.span();
}

Error StateFetch::replace(const std::vector<Target>& targets) {
  replaced_.clear();
  // Targets that want the same item: each but the first gets a copy.
  std::vector<Memory> copies;
  std::set<Digest> used;
  for (const Target& target : targets) {
    const auto it = here_.find(target.digest);
    if (it == here_.end() || it->second.span().size() != target.memory.size()) {
      return {ErrorCode::invalid, "this memory is not that of an item that has been fetched"};
    }
    if (used.insert(target.digest).second) continue;
    try {
      copies.emplace_back(it->second.span());
    } catch (const std::bad_alloc&) {
      return no_memory(target.memory.size());
    }
  }
  replaced_.reserve(targets.size());
  auto copy = copies.begin();
  for (const Target& target : targets) {
    auto node = here_.extract(target.digest);
    Memory memory = node.empty() ? std::move(*copy++) : std::move(node.mapped());
    change_places(memory.span(), target.memory);
    replaced_.push_back({target, std::move(memory)});
  }
  return {};
}

void StateFetch::take_back() {
  // The last first: targets may share memory.
  for (auto it = replaced_.rbegin(); it != replaced_.rend(); ++it) {
    change_places(it->memory.span(), it->target.memory);
  }
  std::vector<Replaced> back = std::exchange(replaced_, {});
  try {
    for (auto& [target, memory] : back) here_.insert_or_assign(target.digest, std::move(memory));
  } catch (const std::bad_alloc&) {
    log_info("shared state: without memory some of what was fetched has to be fetched again");
  }
}

void StateFetch::clear() {
  replaced_.clear();
  here_.clear();
}

}  // namespace pccl
