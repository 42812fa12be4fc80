// The key-value store: see the header. A request changes the entries or waits. Then requests that
// waited for a key which exists now are looked at again, until no more can be answered.
#include "master/store.h"

#include <charconv>
#include <utility>

namespace pccl::master {
namespace {

StoreReply failed(const StoreRequest& request, ErrorCode code, std::string text) {
  StoreReply reply;
  reply.id = request.id;
  reply.error = Error{code, std::move(text)};
  return reply;
}

StoreReply with_amount(const StoreRequest& request, std::int64_t amount) {
  StoreReply reply;
  reply.id = request.id;
  reply.amount = amount;
  return reply;
}

std::string in_quotes(std::string_view key) {
  constexpr std::size_t kShownMax = 80;
  std::string text = "\"";
  for (const char c : key.substr(0, kShownMax)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (key.size() > kShownMax ? "...\"" : "\"");
}

/// The whole of `value` as a decimal number.
std::optional<std::int64_t> as_number(const Bytes& value) {
  const std::string text(value.begin(), value.end());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  if (end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The error in the shape of a request; empty: there is none.
std::string shape_error(const StoreRequest& request) {
  const std::size_t keys = request.keys.size();
  const std::size_t values = request.values.size();
  switch (request.op) {
    case StoreOp::set:
    case StoreOp::append:
      return keys >= 1 && keys == values ? "" : "takes as many values as keys, at least one";
    case StoreOp::get:
    case StoreOp::wait:
    case StoreOp::check:
      return values == 0 ? "" : "takes keys only";
    case StoreOp::add:
    case StoreOp::remove:
      return keys == 1 && values == 0 ? "" : "takes one key";
    case StoreOp::compare_set:
      return keys == 1 && values == 2 ? "" : "takes one key and two values";
    case StoreOp::num_keys:
    case StoreOp::list_keys:
      return keys == 0 && values == 0 ? "" : "takes neither keys nor values";
  }
  return "is not known";
}

StoreReply too_long(const StoreRequest& request, std::string_view key, std::size_t bytes) {
  return failed(request, ErrorCode::invalid,
                "the value of " + in_quotes(key) + " would have " + std::to_string(bytes) +
                    " bytes; a value has at most " + std::to_string(kStoreValueBytesMax));
}

std::size_t entry_bytes(const std::string& key, std::size_t value_bytes) {
  return key.size() + value_bytes + kStoreEntryBytes;
}

bool writes(StoreOp op) {
  return op == StoreOp::set || op == StoreOp::append || op == StoreOp::add ||
         op == StoreOp::compare_set;
}

}  // namespace

StoreReply no_room(std::uint64_t request, const std::string& why) {
  StoreReply reply;
  reply.id = request;
  reply.error = Error{ErrorCode::no_memory, "the master's store: " + why + "; try again"};
  return reply;
}

std::size_t value_bytes(const StoreReply& reply) {
  std::size_t bytes = 0;
  for (const Bytes& value : reply.values) bytes += value.size();
  return bytes;
}

std::vector<StoreAnswer> KeyValueStore::request(PeerId peer, const StoreRequest& request,
                                                const std::string& owner) {
  asking_ = peer;
  owner_ = owner;
  const Waiter self{peer, request.id};
  const auto only = [&](StoreReply reply) {
    return std::vector<StoreAnswer>{{self, std::move(reply)}};
  };
  if (const std::string wrong = shape_error(request); !wrong.empty()) {
    return only(failed(request, ErrorCode::invalid, "the store request " + wrong));
  }
  if (waits(self)) {
    return only(failed(request, ErrorCode::invalid, "a store request with this number waits"));
  }
  if (request.op == StoreOp::get || request.op == StoreOp::wait) {
    auto missing = first_missing(request);
    if (!missing) return only(read(request));
    StoreReply refusal = wait(peer, request, *std::move(missing));
    if (refusal.error.failed()) return only(std::move(refusal));
    return {};
  }
  std::vector<StoreAnswer> answers = only(apply(peer, request));
  if (writes(request.op)) {
    // Also after a failure: some of its keys may have been set.
    for (const std::string& key : request.keys) {
      if (entries_.contains(key)) wake(key, answers);
    }
  }
  return answers;
}

std::optional<StoreAnswer> KeyValueStore::expire(const Waiter& waiter) {
  const auto at = waiting_.find(waiter);
  if (at == waiting_.end()) return std::nullopt;
  StoreAnswer answer{waiter,
                     failed(at->second.request, ErrorCode::timed_out,
                            "after " + std::to_string(at->second.request.timeout_ms) +
                                " ms nobody had set the key " + in_quotes(at->second.missing))};
  forget(at);
  return answer;
}

void KeyValueStore::drop(PeerId peer) {
  for (auto at = waiting_.lower_bound(Waiter{peer, 0});
       at != waiting_.end() && at->first.peer == peer;) {
    const auto next = std::next(at);
    forget(at);
    at = next;
  }
}

void KeyValueStore::clear() {
  while (!entries_.empty()) erase(entries_.begin()->first);
}

StoreReply KeyValueStore::apply(PeerId peer, const StoreRequest& request) {
  switch (request.op) {
    case StoreOp::set:
      return put_all(peer, request, false);
    case StoreOp::append:
      return put_all(peer, request, true);
    case StoreOp::add:
      return add(peer, request);
    case StoreOp::compare_set:
      return compare_set(peer, request);
    case StoreOp::check:
      return with_amount(request, first_missing(request) ? 0 : 1);
    case StoreOp::remove: {
      const bool there = entries_.contains(request.keys[0]);
      if (there) erase(request.keys[0]);
      return with_amount(request, there ? 1 : 0);
    }
    case StoreOp::num_keys:
      return with_amount(request, static_cast<std::int64_t>(entries_.size()));
    case StoreOp::list_keys:
      return list_keys(request);
    case StoreOp::get:
    case StoreOp::wait:
      break;
  }
  return failed(request, ErrorCode::invalid, "the store request is not known");
}

StoreReply KeyValueStore::put_all(PeerId peer, const StoreRequest& request, bool append) {
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    const std::string& key = request.keys[i];
    const Bytes& value = request.values[i];
    const auto at = entries_.find(key);
    const std::size_t kept = append && at != entries_.end() ? at->second.value.size() : 0;
    if (kept + value.size() > kStoreValueBytesMax) {
      return too_long(request, key, kept + value.size());
    }
    if (!fits(peer, key, kept + value.size())) return full(peer, request, key);
    if (kept > 0) {
      Entry& entry = at->second;
      give_back(entry.holder, entry_bytes(key, kept), 1);
      entry.value.insert(entry.value.end(), value.begin(), value.end());
      entry.holder = peer;
      take(peer, entry_bytes(key, entry.value.size()), 1);
    } else {
      put(peer, key, value);
    }
  }
  return with_amount(request, 0);
}

StoreReply KeyValueStore::add(PeerId peer, const StoreRequest& request) {
  const std::string& key = request.keys[0];
  std::int64_t sum = 0;
  if (const auto at = entries_.find(key); at != entries_.end()) {
    const auto number = as_number(at->second.value);
    if (!number) {
      return failed(request, ErrorCode::invalid,
                    "add: the value of " + in_quotes(key) + " is not a decimal number");
    }
    sum = *number;
  }
  if (__builtin_add_overflow(sum, request.amount, &sum)) {
    return failed(request, ErrorCode::invalid, "add: the sum at " + in_quotes(key) + " overflows");
  }
  const std::string text = std::to_string(sum);
  if (!fits(peer, key, text.size())) return full(peer, request, key);
  put(peer, key, Bytes(text.begin(), text.end()));
  return with_amount(request, sum);
}

StoreReply KeyValueStore::compare_set(PeerId peer, const StoreRequest& request) {
  // As TCPStore: a missing key counts as empty. Without a match the reply is the value that is
  // there, or, for a missing key, the expected value.
  const std::string& key = request.keys[0];
  const Bytes& expected = request.values[0];
  const Bytes& desired = request.values[1];
  const auto at = entries_.find(key);
  const bool matches = at == entries_.end() ? expected.empty() : at->second.value == expected;
  StoreReply reply = with_amount(request, 0);
  if (!matches) {
    reply.values.push_back(at == entries_.end() ? expected : at->second.value);
    return reply;
  }
  if (desired.size() > kStoreValueBytesMax) return too_long(request, key, desired.size());
  if (!fits(peer, key, desired.size())) return full(peer, request, key);
  put(peer, key, desired);
  reply.values.push_back(desired);
  return reply;
}

StoreReply KeyValueStore::list_keys(const StoreRequest& request) const {
  StoreReply reply = with_amount(request, 0);
  std::size_t bytes = 0;
  for (const auto& [key, entry] : entries_) {
    bytes += key.size() + kStoreEntryBytes;
    if (reply.keys.size() == kStoreKeysMax || bytes > kStoreReplyBytesMax) {
      return failed(request, ErrorCode::invalid,
                    "list_keys: the store holds " + std::to_string(entries_.size()) +
                        " keys, which do not fit in one reply");
    }
    reply.keys.push_back(key);
  }
  return reply;
}

StoreReply KeyValueStore::read(const StoreRequest& request) const {
  StoreReply reply = with_amount(request, 0);
  if (request.op == StoreOp::wait) return reply;
  std::size_t bytes = 0;
  for (const std::string& key : request.keys) {
    const Bytes& value = entries_.find(key)->second.value;
    bytes += value.size() + kStoreEntryBytes;
    if (bytes > kStoreReplyBytesMax) {
      return failed(request, ErrorCode::invalid,
                    "get: the values do not fit in one reply of " +
                        std::to_string(kStoreReplyBytesMax) + " bytes; get fewer keys at once");
    }
    reply.values.push_back(value);
  }
  return reply;
}

StoreReply KeyValueStore::wait(PeerId peer, const StoreRequest& request, std::string missing) {
  std::size_t bytes = kStoreEntryBytes;
  for (const std::string& key : request.keys) bytes += key.size() + sizeof(std::string);
  const auto count = waits_of_.find(peer);
  if (count != waits_of_.end() && count->second >= kStoreWaitsMax) {
    return failed(request, ErrorCode::invalid,
                  "this peer has " + std::to_string(kStoreWaitsMax) +
                      " store requests that wait, more are not taken");
  }
  if (!may_hold(bytes_, held_by(peer), held_by_owner_of(peer), bytes, 0)) {
    return full(peer, request, missing);
  }
  let_wait(peer, request, std::move(missing), bytes);
  return with_amount(request, 0);
}

void KeyValueStore::let_wait(PeerId peer, const StoreRequest& request, std::string missing,
                             std::size_t bytes) {
  take(peer, bytes, 0);
  ++waits_of_[peer];
  const Waiter self{peer, request.id};
  by_missing_.emplace(missing, self);
  waiting_.emplace(self, Waiting{request, std::move(missing), bytes});
}

std::optional<std::string> KeyValueStore::first_missing(const StoreRequest& request) const {
  for (const std::string& key : request.keys) {
    if (!entries_.contains(key)) return key;
  }
  return std::nullopt;
}

StoreReply KeyValueStore::full(PeerId peer, const StoreRequest& request,
                               const std::string& key) const {
  const Held held = held_by(peer);
  const bool all = bytes_ + kStoreEntryBytes + key.size() > bytes_max_;
  const std::string whole = "the master's store is full (" + std::to_string(bytes_) + " of " +
                            std::to_string(bytes_max_) + " bytes";
  const Held together = held_by_owner_of(peer);
  const std::string own =
      "the master's store is full for this peer (it holds " + std::to_string(held.bytes) +
      " of its " + std::to_string(bytes_of_peer_max_) + " bytes, and " + std::to_string(held.keys) +
      " of its " + std::to_string(keys_of_peer_max_) + " keys; the peers with its token, or from " +
      "its network, hold " + std::to_string(together.bytes) + " bytes and " +
      std::to_string(together.keys) + " keys; all peers hold " + std::to_string(bytes_) + " of " +
      std::to_string(bytes_max_) + " bytes";
  return failed(request, ErrorCode::invalid,
                (all ? whole : own) + "): no room for " + in_quotes(key));
}

KeyValueStore::Held KeyValueStore::held_by(PeerId peer) const {
  const auto held = held_.find(peer);
  return held == held_.end() ? Held{} : held->second;
}

std::string KeyValueStore::owner_of(PeerId peer) const {
  const auto held = held_.find(peer);
  if (held != held_.end()) return held->second.owner;
  return peer == asking_ && !owner_.empty() ? owner_ : to_string(peer);
}

KeyValueStore::Held KeyValueStore::held_by_owner_of(PeerId peer) const {
  const auto held = held_by_owner_.find(owner_of(peer));
  return held == held_by_owner_.end() ? Held{} : held->second;
}

bool KeyValueStore::may_hold(std::size_t all, Held peer, Held owner, std::size_t bytes,
                             std::size_t keys) const {
  peer.bytes += bytes;
  peer.keys += keys;
  if (all + bytes > bytes_max_) return false;
  if (peer.bytes > bytes_of_peer_max_ || peer.keys > keys_of_peer_max_) return false;
  const bool little = peer.bytes <= kStoreLittleBytes && peer.keys <= kStoreLittleKeys;
  if (!little && owner.keys + keys > keys_of_owner_max_) return false;
  const std::size_t most = little ? kStoreBytesOfLittleMax : kStoreBytesOfOwnerMax;
  return owner.bytes + bytes <= bytes_max_ / 4 * (most / (kStoreBytesMax / 4));
}

bool KeyValueStore::fits(PeerId peer, const std::string& key, std::size_t value_bytes) const {
  std::size_t all = bytes_;
  Held of_peer = held_by(peer);
  Held of_owner = held_by_owner_of(peer);
  const std::size_t bytes = entry_bytes(key, value_bytes);
  if (const auto at = entries_.find(key); at != entries_.end()) {
    const std::size_t old = entry_bytes(key, at->second.value.size());
    const PeerId holder = at->second.holder;
    if (holder == peer && bytes <= old) return true;
    all -= old;
    if (holder == peer) of_peer.bytes -= old, --of_peer.keys;
    if (owner_of(holder) == owner_of(peer)) of_owner.bytes -= old, --of_owner.keys;
  }
  return may_hold(all, std::move(of_peer), std::move(of_owner), bytes, 1);
}

void KeyValueStore::take(PeerId peer, std::size_t bytes, std::size_t keys) {
  std::string owner = owner_of(peer);
  bytes_ += bytes;
  Held& together = held_by_owner_[owner];
  together.bytes += bytes;
  together.keys += keys;
  Held& held = held_[peer];
  held.bytes += bytes;
  held.keys += keys;
  held.owner = std::move(owner);
}

void KeyValueStore::give_back(PeerId peer, std::size_t bytes, std::size_t keys) {
  bytes_ -= bytes;
  const auto held = held_.find(peer);
  const auto together = held_by_owner_.find(held->second.owner);
  together->second.bytes -= bytes;
  together->second.keys -= keys;
  if (together->second.bytes == 0) held_by_owner_.erase(together);
  held->second.bytes -= bytes;
  held->second.keys -= keys;
  if (held->second.bytes == 0) held_.erase(held);
}

void KeyValueStore::put(PeerId peer, const std::string& key, Bytes value) {
  erase(key);
  take(peer, entry_bytes(key, value.size()), 1);
  entries_.emplace(key, Entry{std::move(value), peer});
}

void KeyValueStore::erase(const std::string& key) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  give_back(at->second.holder, entry_bytes(key, at->second.value.size()), 1);
  entries_.erase(at);
}

void KeyValueStore::forget(std::map<Waiter, Waiting>::iterator at) {
  give_back(at->first.peer, at->second.bytes, 0);
  const auto [first, last] = by_missing_.equal_range(at->second.missing);
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second == at->first) {
      by_missing_.erase(entry);
      break;
    }
  }
  const auto count = waits_of_.find(at->first.peer);
  if (--count->second == 0) waits_of_.erase(count);
  waiting_.erase(at);
}

void KeyValueStore::wake(const std::string& key, std::vector<StoreAnswer>& answers) {
  const auto [first, last] = by_missing_.equal_range(key);
  std::size_t bytes = 0;
  for (const StoreAnswer& answer : answers) bytes += value_bytes(answer.reply);
  std::vector<Waiter> woken;
  for (auto entry = first; entry != last; ++entry) woken.push_back(entry->second);
  for (const Waiter& waiter : woken) {
    const auto at = waiting_.find(waiter);
    const StoreRequest request = at->second.request;
    const std::size_t bytes_held = at->second.bytes;
    const std::string owner = owner_of(waiter.peer);
    auto missing = first_missing(request);
    forget(at);
    if (!missing) {
      StoreReply reply = bytes < answers_bytes_max_
                             ? read(request)
                             : no_room(request.id, "too many wait at once for " + in_quotes(key));
      bytes += value_bytes(reply);
      answers.push_back({waiter, std::move(reply), request});
    } else {
      // There was room for the request, and its number of bytes is the same.
      asking_ = waiter.peer;
      owner_ = owner;
      let_wait(waiter.peer, request, *std::move(missing), bytes_held);
    }
  }
}

}  // namespace pccl::master
