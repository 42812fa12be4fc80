// See store.h. Time-outs are DistStoreErrors, as TCPStore's are; a master that is gone is an error
// of pccl, which says so.
#include "torch/store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "torch/errors.h"
#include "torch/work.h"

namespace pccl {
namespace {

constexpr std::uint64_t kStoreGraceMs = 5000;  // for the master's own answer that the time is over
constexpr std::size_t kWireEntryBytes = 64;    // around a key or a value on the wire, at most

/// Refuses requests that the master would refuse, before anything is sent.
void check_sizes(const EngineStore::Keys& keys, const std::vector<EngineStore::Value>& values) {
  std::size_t bytes = 0;
  for (const std::string& key : keys) {
    TORCH_CHECK_VALUE(key.size() <= kStoreKeyBytesMax, "pccl store: a key of ", key.size(),
                      " bytes; at most ", kStoreKeyBytesMax);
    bytes += key.size() + kWireEntryBytes;
  }
  for (const EngineStore::Value& value : values) bytes += value.size() + kWireEntryBytes;
  TORCH_CHECK_VALUE(bytes + kWireEntryBytes <= kControlBytesMax, "pccl store: ", bytes,
                    " bytes in one call; at most ", kControlBytesMax);
}

std::string list(const EngineStore::Keys& keys) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kShown); ++i) text += (i ? ", " : "") + keys[i];
  return keys.size() > kShown ? text + ", ..." : text;
}

/// The members that the run has lost since the last boundary: they set no key any more. A wait does
/// not know whose key it waits for.
std::string lost_text(Engine& engine) {
  const GroupView view = engine.view(kElasticGroup);
  std::string text;
  for (std::size_t rank = 0; rank < view.numbering->size(); ++rank) {
    if (std::find(view.ring->begin(), view.ring->end(), (*view.numbering)[rank]) ==
        view.ring->end()) {
      text += "; rank " + std::to_string(rank) + " was lost";
    }
  }
  if (text.empty()) return text;
  return text +
         ": a wait for the key of a lost rank, as in new_group of another backend than pccl, is in "
         "vain; make the group after the next boundary";
}

/// Parts of the keys that fit into one request: [first, last).
template <typename Function>
void in_parts(std::size_t size, Function function) {
  for (std::size_t first = 0; first < size; first += kStoreKeysMax) {
    function(first, std::min(size, first + kStoreKeysMax));
  }
}

}  // namespace

EngineStore::EngineStore(std::shared_ptr<Engine> engine, Millis timeout)
    : c10d::Store(timeout), engine_(std::move(engine)) {}

c10::intrusive_ptr<c10d::Store> EngineStore::clone() {
  return c10::make_intrusive<EngineStore>(engine_, timeout_);
}

StoreResult EngineStore::call(StoreOp op, Keys keys, std::vector<Value> values, std::int64_t amount,
                              Millis timeout) {
  refuse_fork();
  check_sizes(keys, values);
  const auto timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(timeout.count(), 0));
  StoreRequest request;
  request.op = op;
  request.keys = keys;
  request.values = std::move(values);
  request.amount = amount;
  request.timeout_ms = timeout_ms;
  auto ticket = engine_->run().store(std::move(request));
  const std::uint64_t limit_ms = timeout_ms + kStoreGraceMs;
  const std::uint64_t quiet_ms = std::min<std::uint64_t>(limit_ms, kSayWaitingMs);
  bool there = wait_interruptibly(*engine_, *ticket, quiet_ms);
  if (!there && quiet_ms < limit_ms) {
    log_info("waiting for the master's store, keys: " + list(keys) + lost_text(*engine_));
    there = wait_interruptibly(*engine_, *ticket, limit_ms - quiet_ms);
  }
  const Error error = there ? ticket->error() : Error{ErrorCode::timed_out, ""};
  if (error.code == ErrorCode::timed_out) {
    C10_THROW_ERROR(DistStoreError, "wait timeout after " + std::to_string(timeout_ms) +
                                        "ms, keys: " + list(keys) + lost_text(*engine_));
  }
  pccl::check(error);
  return ticket->take<StoreResult>();
}

void EngineStore::set(const std::string& key, const Value& value) {
  call(StoreOp::set, {key}, {value}, 0, timeout_);
}

EngineStore::Value EngineStore::compareSet(const std::string& key, const Value& expected,
                                           const Value& desired) {
  StoreResult result = call(StoreOp::compare_set, {key}, {expected, desired}, 0, timeout_);
  return result.values.empty() ? Value{} : std::move(result.values.front());
}

EngineStore::Value EngineStore::get(const std::string& key) { return multiGet({key}).front(); }

int64_t EngineStore::add(const std::string& key, int64_t value) {
  return call(StoreOp::add, {key}, {}, value, timeout_).amount;
}

bool EngineStore::deleteKey(const std::string& key) {
  return call(StoreOp::remove, {key}, {}, 0, timeout_).amount != 0;
}

bool EngineStore::check(const Keys& keys) {
  bool all = true;
  in_parts(keys.size(), [&](std::size_t first, std::size_t last) {
    const Keys part(keys.begin() + static_cast<std::ptrdiff_t>(first),
                    keys.begin() + static_cast<std::ptrdiff_t>(last));
    all = all && call(StoreOp::check, part, {}, 0, timeout_).amount != 0;
  });
  return all;
}

int64_t EngineStore::getNumKeys() { return call(StoreOp::num_keys, {}, {}, 0, timeout_).amount; }

void EngineStore::wait(const Keys& keys) { wait(keys, timeout_); }

void EngineStore::wait(const Keys& keys, const Millis& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  in_parts(keys.size(), [&](std::size_t first, std::size_t last) {
    const auto left =
        std::chrono::duration_cast<Millis>(deadline - std::chrono::steady_clock::now());
    call(StoreOp::wait,
         Keys(keys.begin() + static_cast<std::ptrdiff_t>(first),
              keys.begin() + static_cast<std::ptrdiff_t>(last)),
         {}, 0, first == 0 ? timeout : left);
  });
}

void EngineStore::append(const std::string& key, const Value& value) {
  call(StoreOp::append, {key}, {value}, 0, timeout_);
}

std::vector<EngineStore::Value> EngineStore::multiGet(const Keys& keys) {
  std::vector<Value> values;
  in_parts(keys.size(), [&](std::size_t first, std::size_t last) {
    const Keys part(keys.begin() + static_cast<std::ptrdiff_t>(first),
                    keys.begin() + static_cast<std::ptrdiff_t>(last));
    StoreResult result = call(StoreOp::get, part, {}, 0, timeout_);
    if (result.values.size() != part.size()) {
      raise({ErrorCode::malformed, "the store answered " + std::to_string(result.values.size()) +
                                       " values for " + std::to_string(part.size()) + " keys"});
    }
    std::move(result.values.begin(), result.values.end(), std::back_inserter(values));
  });
  return values;
}

void EngineStore::multiSet(const Keys& keys, const std::vector<Value>& values) {
  TORCH_CHECK(keys.size() == values.size(), "multiSet: ", keys.size(), " keys and ", values.size(),
              " values");
  in_parts(keys.size(), [&](std::size_t first, std::size_t last) {
    const auto from = static_cast<std::ptrdiff_t>(first);
    const auto to = static_cast<std::ptrdiff_t>(last);
    call(StoreOp::set, Keys(keys.begin() + from, keys.begin() + to),
         std::vector<Value>(values.begin() + from, values.begin() + to), 0, timeout_);
  });
}

EngineStore::Keys EngineStore::listKeys() {
  return call(StoreOp::list_keys, {}, {}, 0, timeout_).keys;
}

}  // namespace pccl
