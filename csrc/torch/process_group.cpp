// See process_group.h.
//
// Keys of a fixed group in its store: `made/<rank>`, how often this rank has made a group under
// this prefix, so that a program that ends its groups and makes them anew never reads an old value;
// then, under that number, `handle/<rank>` of each rank (sealed where there are tokens: seal.h) and
// the `group`'s random number.
#include "torch/process_group.h"

#include <c10/core/Device.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "python/engine_owner.h"
#include "state/sha256.h"
#include "torch/errors.h"
#include "torch/store.h"
#include "trust/seal.h"
#include "wire/codec.h"

namespace pccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Value = std::vector<std::uint8_t>;

constexpr milliseconds kPauseMin{100};   // the longest between two looks into the store: 1 ms for
constexpr milliseconds kPauseMax{1000};  // each rank, within these
constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kFarAway = "192.0.2.1:9";  // a documentation address: nothing is sent to it

void keep_spare_thread() {
  if (Completions::keep_spare()) return;
  raise({ErrorCode::broken, "no thread can be started for the callbacks of operations"});
}

std::shared_ptr<Engine> own_engine() {
  auto engine = EngineOwner::instance().engine();
  check(engine.error());
  keep_spare_thread();
  return std::move(engine).value();
}

/// Addresses under which the other ranks may reach this process: that from which the store's host
/// is reached. If the host name leads to a loopback address (the store is on this machine, and its
/// name is in /etc/hosts), the others need another address.
Handle own_handle(const Engine& engine, const c10::intrusive_ptr<c10d::Store>& store) {
  c10::intrusive_ptr<c10d::Store> bare = store;
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(bare.get())) {
    bare = prefixed->getUnderlyingNonPrefixStore();
  }
  auto* tcp = dynamic_cast<c10d::TCPStore*>(bare.get());
  if (tcp == nullptr) return engine.handle(kLoopback);
  const std::string& name = tcp->getHost();
  const std::string host = name.find(':') == std::string::npos ? name : "[" + name + "]";
  const std::string seen = engine.local_host_towards(host + ":" + std::to_string(tcp->getPort()));
  Handle handle = engine.handle(seen.empty() ? kLoopback : seen);
  if ((seen.empty() || is_loopback_host(seen)) && !is_loopback_host(name)) {
    const std::string outside = engine.local_host_towards(kFarAway);
    if (!outside.empty()) {
      const Handle second = engine.handle(outside);
      handle.addresses.insert(handle.addresses.begin(), second.addresses.begin(),
                              second.addresses.end());
      const auto end = std::unique(handle.addresses.begin(), handle.addresses.end());
      handle.addresses.erase(end, handle.addresses.end());
    }
  }
  return handle;
}

GroupId random_group() {
  std::random_device device;
  return GroupId{(static_cast<std::uint64_t>(device()) << 32) | device() | 1U << 31};
}

/// Said once, by rank 0, of ranks that are not all on this machine.
void warn_without_token(const Engine& engine, const std::vector<Handle>& members) {
  static std::atomic<bool> said{false};
  if (engine.tokens() != nullptr) return;
  const bool beyond = std::any_of(members.begin(), members.end(), [](const Handle& member) {
    return std::any_of(member.addresses.begin(), member.addresses.end(), [](const auto& address) {
      return !is_loopback_host(address.substr(0, address.rfind(':')));
    });
  });
  if (!beyond || said.exchange(true)) return;
  const std::string clear = engine.encrypts() ? "" : "their data is not encrypted, and ";
  log_warning("the ranks of this group have no token: " + clear +
              "whoever can write into their store can take a rank's place. On a network of others "
              "give all ranks the same token file (PCCL_TOKEN_FILE)");
}

/// A replica goes as a whole: who makes a group with a rank that was lost would wait in vain.
void check_evicted(const Engine& engine) {
  const GroupView run = engine.view(kElasticGroup);
  if (run.evicted) raise(run.failure);
}

/// The meeting of the ranks of a fixed group in their store.
class Meeting {
 public:
  Meeting(const Engine& engine, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
          milliseconds timeout)
      : engine_(engine),
        store_(std::move(store)),
        rank_(rank),
        size_(size),
        timeout_(timeout),
        deadline_(steady_clock::now() + timeout) {
    turn_ = store_->add(made_key(), 1);
  }
  ~Meeting() {
    if (met_) return;
    try {
      store_->add(made_key(), -1);  // the next attempt is the same turn: the others may still wait
    } catch (const std::exception&) {
      // The store is gone, and the turn with it.
    }
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  std::vector<Handle> exchange(const Handle& own) {
    store_->set(handle_key(rank_), seal(engine_.tokens(), place(rank_), encode(own)));
    std::vector<std::string> keys;
    for (const int other : c10::irange(size_)) keys.push_back(handle_key(other));
    wait(keys);
    std::vector<Handle> handles;
    for (const int other : c10::irange(size_)) {
      const Value value = store_->get(handle_key(other));
      const auto opened = unseal(engine_.tokens(), place(other), std::as_bytes(std::span(value)));
      check(opened.error());
      auto handle = decode_handle(opened.value());
      check(handle.error());
      for (const int before : c10::irange(other)) {
        if (handles[static_cast<std::size_t>(before)].peer != handle.value().peer) continue;
        raise({ErrorCode::refused, "the store names one process as rank " + std::to_string(before) +
                                       " and as rank " + std::to_string(other) +
                                       ": two ranks were started with one handle, or somebody who "
                                       "writes into the store has copied it"});
      }
      handles.push_back(std::move(handle).value());
    }
    return handles;
  }

  /// Chosen by rank 0; the first one stays.
  GroupId group() {
    const std::string key = std::to_string(turn_) + "/group";
    if (rank_ == 0) store_->compareSet(key, "", std::to_string(random_group().value));
    wait({key});
    return GroupId{std::stoull(store_->get_to_str(key))};
  }

  void met() { met_ = true; }
  [[nodiscard]] milliseconds left() const {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - steady_clock::now());
    return std::max(left, milliseconds(1));
  }

 private:
  [[nodiscard]] std::string made_key() const { return "made/" + std::to_string(rank_); }
  [[nodiscard]] SealedPlace place(int rank) const {
    return {static_cast<std::uint64_t>(turn_), static_cast<std::uint32_t>(rank),
            static_cast<std::uint32_t>(size_)};
  }
  [[nodiscard]] std::string handle_key(int rank) const {
    return std::to_string(turn_) + "/handle/" + std::to_string(rank);
  }

  /// Asks again and again: torch's TCPStore prints two warnings whenever a wait of its own runs
  /// out, and a long one would not hear Ctrl-C.
  void wait(const std::vector<std::string>& keys) {
    const milliseconds longest = std::clamp(milliseconds(size_), kPauseMin, kPauseMax);
    milliseconds pause{0};
    while (!store_->check(keys)) {
      check_signals();
      check_evicted(engine_);
      const milliseconds left = this->left();
      if (steady_clock::now() >= deadline_) {
        raise({ErrorCode::timed_out,
               "after " + std::to_string(timeout_.count() / 1000) + " s " + who_is_missing()});
      }
      if (!said_waiting_ && timeout_ - left >= milliseconds(kSayWaitingMs)) {
        said_waiting_ = true;
        log_info("rank " + std::to_string(rank_) + " waits: " + who_is_missing());
      }
      pause = std::min(pause + pause / 4 + milliseconds(1), longest);
      std::this_thread::sleep_for(std::min(pause, left));
    }
  }

  std::string who_is_missing() {
    constexpr int kNamed = 16;
    std::string names;
    int missing = 0;
    for (const int other : c10::irange(size_)) {
      if (store_->check({handle_key(other)})) continue;
      if (++missing <= kNamed) add_to_list(names, std::to_string(other));
    }
    if (missing > kNamed) names += ", ...";
    return std::to_string(missing) + " of " + std::to_string(size_) +
           " ranks have not come to make the group: " + names;
  }

  const Engine& engine_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const milliseconds timeout_;
  const steady_clock::time_point deadline_;
  std::int64_t turn_ = 0;
  bool met_ = false;
  bool said_waiting_ = false;
};

}  // namespace

// ------------------------------------------------------------------------------- fixed groups

c10::intrusive_ptr<c10d::Backend> create_fixed(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size, milliseconds timeout,
                                               const std::string& name) {
  TORCH_CHECK_VALUE(size > 0 && rank >= 0 && rank < size, "pccl: invalid rank ", rank,
                    " of a group of ", size);
  const auto engine = own_engine();
  Meeting meeting(*engine, store, rank, size, timeout);
  const Handle own = own_handle(*engine, store);
  const std::vector<Handle> members = meeting.exchange(own);
  if (rank == 0) warn_without_token(*engine, members);
  const GroupId group = meeting.group();
  meeting.met();  // also if the connections fail: the number is used up
  check_evicted(*engine);
  open_group(engine, group, name, members, rank, meeting.left());
  return c10::make_intrusive<PcclBackend>(engine, group, members, rank, size, timeout);
}

c10::intrusive_ptr<c10d::Backend> create_unconfigured(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size, milliseconds timeout) {
  const auto engine = own_engine();
  const std::vector<Handle> members{own_handle(*engine, store)};
  return c10::make_intrusive<PcclBackend>(engine, kNotConfigured, members, rank, size, timeout);
}

GroupId number_of(const std::string& text) {
  const Digest digest = sha256(std::as_bytes(std::span(text)));
  std::uint64_t value = 0;
  std::memcpy(&value, digest.data(), sizeof(value));
  return GroupId{value | 1ULL << 31};  // never one of the small numbers, which are given by hand
}

/// Waits until all members have their links for the group.
void open(const std::shared_ptr<Engine>& engine, GroupId group,
          const std::shared_ptr<Ticket>& connected) {
  try {
    wait_interruptibly(*engine, *connected, std::nullopt);
    check(connected->error());
  } catch (...) {
    engine->close(group);
    throw;
  }
}

void open_group(const std::shared_ptr<Engine>& engine, GroupId group, const std::string& name,
                const std::vector<Handle>& members, int rank, milliseconds timeout) {
  open(engine, group,
       engine->configure_fixed(group, name, members, rank,
                               static_cast<std::uint64_t>(timeout.count())));
}

c10::intrusive_ptr<c10d::Backend> create_of_run(const std::vector<PeerId>& peers, int rank,
                                                milliseconds timeout, const std::string& name,
                                                const std::string& number) {
  const auto engine = joined_engine();
  const GroupId group = number_of(number);
  open(engine, group,
       engine->configure_of_run(group, name, peers, rank,
                                static_cast<std::uint64_t>(timeout.count())));
  Result<std::vector<Handle>> members = engine->members_of(group);
  if (members.ok() && members.value().empty()) {
    members = Error{ErrorCode::closed, "it was closed while it was made"};
  }
  if (!members.ok()) {
    engine->close(group);
    raise({members.error().code, "the new group " + name + ": " + members.error().text});
  }
  return c10::make_intrusive<PcclBackend>(engine, group, std::move(members).value(), rank,
                                          static_cast<int>(peers.size()), timeout);
}

// ------------------------------------------------------------------------------- elastic group

std::shared_ptr<Engine> joined_engine() {
  refuse_fork();
  auto engine = EngineOwner::instance().existing();
  if (!engine || !engine->view(kElasticGroup).elastic) {
    raise({ErrorCode::closed, "this process has not joined a run; call join first"});
  }
  return engine;
}

GroupView join_run(const JoinOptions& options) {
  auto engine = EngineOwner::instance().engine();
  check(engine.error());
  keep_spare_thread();
  const auto ticket = engine.value()->run().join(options);
  wait_interruptibly(*engine.value(), *ticket, std::nullopt);
  check(ticket->error());
  return engine.value()->view(kElasticGroup);
}

ElasticProcessGroup::ElasticProcessGroup(c10::intrusive_ptr<c10d::Store> store,
                                         c10::intrusive_ptr<PcclBackend> backend,
                                         const std::string& name,
                                         const std::vector<c10::DeviceType>& devices)
    : c10d::ProcessGroup(std::move(store), backend->numbers().rank, backend->numbers().size),
      backend_(std::move(backend)) {
  for (const c10::DeviceType device : devices) {
    setBackend(device, BackendType::CUSTOM, c10::intrusive_ptr<c10d::Backend>(backend_));
  }
  setDefaultBackend(BackendType::CUSTOM);
  setGroupName(name);
}

c10::intrusive_ptr<c10d::ProcessGroup> create_elastic(milliseconds timeout, const std::string& name,
                                                      const std::vector<std::string>& device_types,
                                                      Quantisation quantisation) {
  const auto engine = joined_engine();
  TORCH_CHECK_VALUE(!device_types.empty(), "pccl: a group needs a device type");
  std::vector<c10::DeviceType> devices;
  for (const std::string& type : device_types) devices.push_back(c10::Device(type).type());
  const GroupView view = engine->view(kElasticGroup);
  auto backend = c10::make_intrusive<PcclBackend>(engine, kElasticGroup, std::vector<Handle>{},
                                                  view.rank, view.size, timeout);
  backend->set_quantisation(quantisation);
  return c10::make_intrusive<ElasticProcessGroup>(c10::make_intrusive<EngineStore>(engine, timeout),
                                                  std::move(backend), name, devices);
}

}  // namespace pccl
