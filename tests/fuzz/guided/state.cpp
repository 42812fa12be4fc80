// The fetch of a shared state, and its plan: pulls that come, fail, or bring other bytes, in any
// order, with memory that is exchanged and taken back. A fetch asks each source once for an item at
// most, keeps nothing whose digest is wrong, and changes the caller's memory as a whole or not.
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "input.h"
#include "state/fetch.h"
#include "targets.h"

namespace pccl::fuzz {
namespace {

constexpr std::size_t kItems = 4;

std::vector<std::byte> content_of(std::size_t item) {
  return std::vector<std::byte>(item * 7, static_cast<std::byte>(item));
}
Digest digest_of(std::span<const std::byte> bytes) { return sha256(bytes); }

class Fetching {
 public:
  explicit Fetching(Input& in) : in_(in) {
    for (std::size_t i = 0; i < kItems; ++i) {
      digests_[i] = digest_of(content_of(i));
      memory_[i].assign(i * 7, std::byte{0xEE});
    }
  }

  void run() {
    while (!in_.ended()) act(in_.byte());
    fetch_.clear();
  }

 private:
  void act(std::uint8_t what) {
    switch (what % 8) {
      case 0:
      case 1:
        return begin();
      case 2:
        return replace();
      case 3:
        fetch_.take_back();
        if (replaced_) check(before_);
        replaced_ = false;
        return;
      case 4:
        fetch_.clear();
        complete_ = replaced_ = false;
        return;
      default:
        return came(what / 8);
    }
  }
  void begin() {
    std::vector<WantedItem> wanted;
    wanted_.clear();
    for (std::size_t n = in_.below(6); n > 0; --n) {
      const std::size_t item = in_.below(kItems);
      const bool known = in_.flag();
      wanted_.insert(item);
      wanted.push_back({static_cast<std::uint32_t>(item), digests_[item],
                        known ? std::optional<std::uint64_t>(item * 7) : std::nullopt});
    }
    std::vector<PeerId> sources;
    for (std::size_t n = in_.below(4); n > 0; --n) sources.push_back(PeerId{n});
    asked_.clear();
    fetch_.begin(wanted, sources);
    replaced_ = false;
    complete_ = true;
  }
  void came(std::size_t how) {
    const auto due = fetch_.next();
    if (!due) return;
    require(!fetch_.complete(), "nothing is due at the end");
    std::vector<std::byte> bytes = content_of(due->item.index);
    Error error;
    if (how % 4 == 1) bytes.assign(in_.below(40), static_cast<std::byte>(in_.byte()));
    if (how % 4 == 2) {
      error = {static_cast<ErrorCode>(in_.below(20)), "it failed"};
      if (error.code == ErrorCode::none) error.code = ErrorCode::closed;
    }
    const bool right = !error.failed() && digest_of(bytes) == due->item.digest;
    if (!right) {
      require(asked_.emplace(due->item.digest, due->source).second, "a source is asked once");
    }
    const Error ended = fetch_.came(*due, error, StateFetch::Memory(std::span(bytes)), digest_of);
    if (ended.failed()) {
      complete_ = false;
      fetch_.begin({}, {});
      wanted_.clear();
    }
  }
  void replace() {
    if (!complete_ || !fetch_.complete()) return;
    std::vector<StateFetch::Target> targets;
    before_ = memory_;
    for (const std::size_t item : wanted_) {
      require(digest_of(fetch_.at(digests_[item])) == digests_[item], "it keeps what is right");
      const bool is_same = digest_of(memory_[item]) == digests_[item];
      if (!is_same) targets.push_back({digests_[item], memory_[item]});
    }
    const Error error = fetch_.replace(targets);
    if (error.failed()) return check(before_);
    for (const std::size_t item : wanted_) {
      require(digest_of(memory_[item]) == digests_[item], "the fetched state is there");
    }
    replaced_ = true;
    complete_ = false;  // what was fetched lies in the caller's memory now
  }
  void check(const std::array<std::vector<std::byte>, kItems>& right) const {
    require(memory_ == right, "the caller's memory is what it was");
  }

  Input& in_;
  StateFetch fetch_;
  std::array<Digest, kItems> digests_;
  std::array<std::vector<std::byte>, kItems> memory_;
  std::array<std::vector<std::byte>, kItems> before_;
  std::set<std::size_t> wanted_;
  std::set<std::pair<Digest, PeerId>> asked_;
  bool complete_ = false;
  bool replaced_ = false;
};

}  // namespace

void state(Bytes input) {
  Input in(input);
  Fetching(in).run();
}

}  // namespace pccl::fuzz
