// The shared state of a member's program: what _state.py does at a boundary. A state is a number
// from which every byte follows, so that a torn one is seen.
#include <algorithm>
#include <cstring>
#include <utility>

#include "member.h"
#include "state/sha256.h"

namespace pccl::sim {
namespace {

constexpr std::size_t kItemBytes[] = {72, 700, 9000};
constexpr std::size_t kItems = std::size(kItemBytes);

constexpr std::uint64_t kBoundaryUs = 300000000;  // its time-out, that of calls before it, holds

struct Manifest {
  std::uint64_t state;
  std::uint64_t revision;
  Digest digests[kItems];
};

Memory item_of(std::uint64_t state, std::size_t item) {
  return filled(kItemBytes[item], state * 16 + item, DType::bytes);
}

Memory manifest_of(std::uint64_t state, std::uint64_t revision, const std::vector<Memory>& items) {
  Manifest manifest{state, revision, {}};
  for (std::size_t i = 0; i < kItems; ++i) manifest.digests[i] = sha256(items[i + 1]);
  Memory bytes(sizeof(Manifest));
  std::memcpy(bytes.data(), &manifest, sizeof(Manifest));
  return bytes;
}

}  // namespace

void Member::set_state(std::uint64_t state) {
  state_ = state;
  items_.resize(1 + kItems);
  for (std::size_t i = 0; i < kItems; ++i) items_[i + 1] = item_of(state, i);
  items_[0] = manifest_of(state_, revision_, items_);
}

StateRoot Member::root() const { return {true, revision_, sha256(items_[0])}; }

Snapshot Member::snapshot() {
  items_[0] = manifest_of(state_, revision_, items_);
  Snapshot snapshot;
  snapshot.digest = sha256(items_[0]);
  for (Memory& item : items_) snapshot.items.push_back({item.data(), item.size()});
  return snapshot;
}

/// A state is one that some program has had, as a whole.
void Member::check_state() {
  for (std::size_t i = 0; i < kItems; ++i) {
    if (items_[i + 1] != item_of(state_, i)) {
      throw Violation(process_.name() + ": item " + std::to_string(i) + " of its state is torn");
    }
  }
}

/// Into memory of its own; the state changes when all of it is here, and verified.
Task Member::fetch(const BoundaryEvent& event, const std::function<bool()>& superseded) {
  const SyncPlan plan = event.plan;
  auto staged = std::make_shared<std::vector<Memory>>(1 + kItems);
  kept_.push_back(staged);
  const auto root_digest = plan.root.digest;
  for (const PeerId source : plan.sources) {
    bool good = true;
    for (std::size_t i = 0; good && i <= kItems; ++i) {
      auto* group = core_->elastic();
      if (group == nullptr) co_return;
      Memory& to = (*staged)[i];
      to.resize(i == 0 ? 0 : kItemBytes[i - 1]);
      auto ticket = std::make_shared<Ticket>();
      kept_.push_back(ticket);
      group->pull(source, root_digest, static_cast<std::uint32_t>(i),
                  i == 0 ? Buffer{} : Buffer{to.data(), to.size()}, ticket);
      co_await done(ticket);
      if (superseded()) co_return;
      good = !ticket->error().failed();
      if (!good) {
        time_.say(&process_, "pull failed: " + ticket->error().text);
        break;
      }
      if (i == 0) to = ticket->bytes;
      Manifest manifest{};
      if ((*staged)[0].size() != sizeof(Manifest)) {
        good = false;
        break;
      }
      std::memcpy(&manifest, (*staged)[0].data(), sizeof(Manifest));
      const Digest right = i == 0 ? root_digest : manifest.digests[i - 1];
      good = sha256(to) == right;  // its owner has gone on with another state in the middle
    }
    if (!good) continue;
    auto* group = core_->elastic();
    if (group == nullptr) co_return;
    if (!group->boundary_adopt(plan.root)) {
      answered_ = true;
      co_return;
    }
    // The program may be slow here, and the run moves on meanwhile.
    if (time_.hit(30)) co_await pause(time_.chance.below(300000));
    group = core_->elastic();
    if (group == nullptr) co_return;
    Manifest manifest{};
    std::memcpy(&manifest, (*staged)[0].data(), sizeof(Manifest));
    state_ = manifest.state;
    revision_ = manifest.revision;
    for (std::size_t i = 1; i <= kItems; ++i) {
      std::copy((*staged)[i].begin(), (*staged)[i].end(), items_[i].begin());
    }
    check_state();
    time_.say(&process_, "has fetched state " + std::to_string(state_));
    Snapshot offered = snapshot();
    group->boundary_fetched(root(), std::move(offered));
    answered_ = true;
    co_return;
  }
  co_await pause(200000);
}

Task Member::refresh() {
  boundary_error_ = {};
  auto talk = std::make_shared<BoundaryTalk>();
  auto* group = core_->elastic();
  if (group == nullptr) {
    boundary_error_ = {ErrorCode::closed, "no group"};
    co_return;
  }
  check_state();
  const std::uint64_t began_us = time_.now_us();
  doing_ = "refresh after step " + std::to_string(view_.step);
  BoundaryRequest request;
  request.timeout_ms = 2 * plan_.op_timeout_ms;
  group->boundary_begin(request, talk);
  std::optional<Result<BoundaryEvent>> next;
  auto newest = std::make_shared<std::optional<Result<BoundaryEvent>>>();
  // A name of its own: g++ 12 destroys temporaries of a co_await twice.
  const std::function<bool()> said = [talk, newest] {
    if (!newest->has_value()) {
      if (auto event = talk->next(0)) newest->emplace(std::move(*event));
    }
    return newest->has_value();
  };
  BoundaryEvent asked;
  bool to_fetch = false;
  while (true) {
    if (!to_fetch) {
      co_await until(said);
    } else {
      (void)said();
    }
    if (newest->has_value()) {
      Result<BoundaryEvent> event = std::move(**newest);
      newest->reset();
      to_fetch = false;
      if (!event.ok()) {
        boundary_error_ = event.error();
        co_return;
      }
      if (event.value().what == BoundaryEvent::What::finished) {
        boundary_ = event.value();
        if (time_.now_us() - began_us > kBoundaryUs) {
          throw Violation(process_.name() + " stood at a boundary for longer than its time-out");
        }
        check_state();
        co_return;
      }
      group = core_->elastic();
      if (group == nullptr) continue;
      if (event.value().what == BoundaryEvent::What::hash) {
        Snapshot offered = snapshot();
        group->boundary_root(root(), std::move(offered));
        continue;
      }
      asked = event.value();
      to_fetch = true;
    }
    if (to_fetch) {
      doing_ = "fetches the state of " + std::to_string(asked.plan.sources.size()) + " sources";
      answered_ = false;
      co_await fetch(asked, said);
      if (answered_ || core_->elastic() == nullptr) to_fetch = false;
    }
  }
}

}  // namespace pccl::sim
