#include "book.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "engine/elastic_group.h"
#include "kernels/quantise.h"

namespace pccl::sim {
namespace {

std::uint64_t filler(std::uint64_t a, std::uint64_t b) { return Random(a ^ (b << 20)).next(); }

template <typename T>
void fill_as(Memory& to, std::uint64_t salt) {
  for (std::size_t i = 0; i < to.size() / sizeof(T); ++i) {
    const T value = static_cast<T>(filler(salt, i / 64) % 61 + (i * 7) % 59);
    std::memcpy(to.data() + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
void reduce_as(Memory& to, const Memory& with, ReduceOp op) {
  for (std::size_t i = 0; i < to.size() / sizeof(T); ++i) {
    T a;
    T b;
    std::memcpy(&a, to.data() + i * sizeof(T), sizeof(T));
    std::memcpy(&b, with.data() + i * sizeof(T), sizeof(T));
    if (op == ReduceOp::max) {
      a = std::max(a, b);
    } else if (op == ReduceOp::min) {
      a = std::min(a, b);
    } else {
      a = static_cast<T>(a + b);
    }
    std::memcpy(to.data() + i * sizeof(T), &a, sizeof(T));
  }
}

template <typename T>
void divide_as(Memory& to, std::size_t by) {
  for (std::size_t i = 0; i < to.size() / sizeof(T); ++i) {
    T a;
    std::memcpy(&a, to.data() + i * sizeof(T), sizeof(T));
    a = static_cast<T>(a / static_cast<T>(by));
    std::memcpy(to.data() + i * sizeof(T), &a, sizeof(T));
  }
}

void reduce(Memory& to, const Memory& with, const OpDescriptor& d) {
  switch (d.dtype) {
    case DType::i32:
      return reduce_as<std::int32_t>(to, with, d.reduce);
    case DType::i64:
      return reduce_as<std::int64_t>(to, with, d.reduce);
    case DType::f32:
      return reduce_as<float>(to, with, d.reduce);
    default:
      return reduce_as<std::uint8_t>(to, with, d.reduce);
  }
}

using Floats = std::vector<float>;

/// Blocks begin at multiples of their length, so that no chunk shows in the result.
Floats as_sent(Floats values, Quantisation how) {
  std::vector<std::byte> codes(quantised_bytes(values.size(), how));
  quantise(codes.data(), values.data(), values.size(), how);
  dequantise(values.data(), codes.data(), values.size(), how);
  return values;
}

/// Of what has been sent, added in this order.
Floats sum_as_sent(const std::vector<Floats>& all, Quantisation how) {
  Floats sum = as_sent(all.front(), how);
  for (std::size_t i = 1; i < all.size(); ++i) {
    const Floats values = as_sent(all[i], how);
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += values[j];
  }
  return sum;
}

/// Each contribution is quantised once, and the sum once; or, where contributors stand at sites,
/// the sum of each site, and then that of all sites unless there are two. An average is divided
/// before the first sum is quantised.
Memory quantised_sum(const std::vector<Memory>& contributions, const Sites& sites,
                     const OpDescriptor& d) {
  std::vector<Floats> all;
  for (const Memory& contribution : contributions) {
    Floats& values = all.emplace_back(contribution.size() / sizeof(float));
    std::memcpy(values.data(), contribution.data(), contribution.size());
  }
  const auto divided = [&](Floats values) {
    if (d.reduce == ReduceOp::avg) {
      for (float& value : values) value /= static_cast<float>(contributions.size());
    }
    return values;
  };
  if (!sites.empty()) {
    std::vector<Floats> sums;
    for (const auto& site : ranks_by_site(sites)) {
      std::vector<Floats> own;
      for (const std::uint32_t rank : site) own.push_back(all.at(rank));
      const bool is_sum = own.size() == 1 && d.reduce != ReduceOp::avg;
      sums.push_back(is_sum ? own[0] : divided(sum_as_sent(own, d.quantisation)));
    }
    all = std::move(sums);
  }
  Floats sum = sum_as_sent(all, d.quantisation);
  if (sites.empty()) sum = divided(std::move(sum));
  if (sites.empty() || all.size() > 2) sum = as_sent(std::move(sum), d.quantisation);
  Memory result(contributions.front().size());
  std::memcpy(result.data(), sum.data(), result.size());
  return result;
}

std::string name_of(PeerId peer) { return to_string(peer).substr(0, 4); }

}  // namespace

void fill(Memory& to, std::uint64_t salt, DType dtype) {
  switch (dtype) {
    case DType::i32:
      return fill_as<std::int32_t>(to, salt);
    case DType::i64:
      return fill_as<std::int64_t>(to, salt);
    case DType::f32:
      return fill_as<float>(to, salt);
    case DType::bytes:
      for (std::size_t i = 0; i < to.size(); ++i) {
        to[i] = static_cast<std::byte>(filler(salt, i / 8) >> (8 * (i % 8)));
      }
      return;
    default:
      return fill_as<std::uint8_t>(to, salt);
  }
}

Memory filled(std::size_t bytes, std::uint64_t salt, DType dtype) {
  Memory memory(bytes);
  fill(memory, salt, dtype);
  return memory;
}

/// Its call of the same operation.
const Call& Book::call_of(PeerId peer, const Call& like) const {
  const OpKey key = like.ticket->seen<CollectiveResult>().op;
  if (const auto calls = calls_.find(peer); calls != calls_.end()) {
    for (const auto& call : calls->second) {
      if (call->group == like.group && call->ticket->seen<CollectiveResult>().op == key)
        return *call;
    }
  }
  throw Violation("peer " + name_of(peer) + " counts as a contributor of operation " +
                  to_string(key) + ", which it has not called");
}

Memory Book::expected(const Call& call, std::size_t output,
                      const std::vector<PeerId>& contributors) const {
  const OpDescriptor& d = call.descriptor;
  const std::size_t bytes = call.outputs[output].size();
  const auto input_of = [&](PeerId peer, std::size_t buffer) {
    return filled(bytes, call_of(peer, call).salt_of(buffer), d.dtype);
  };
  const auto rank = static_cast<std::size_t>(call.rank);
  const auto root = static_cast<std::size_t>(std::max(d.root, 0));
  switch (d.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::reduce_scatter: {
      const auto part_of = [&](PeerId contributor) {  // its parts are in its own numbering
        if (d.kind != OpKind::reduce_scatter) return input_of(contributor, 0);
        const auto& theirs = call_of(contributor, call).numbering;
        const auto place = std::find(theirs.begin(), theirs.end(), call.numbering.at(rank));
        return input_of(contributor, static_cast<std::size_t>(place - theirs.begin()));
      };
      if (d.quantisation != Quantisation::none && contributors.size() > 1) {
        std::vector<Memory> parts;
        for (const PeerId contributor : contributors) parts.push_back(part_of(contributor));
        return quantised_sum(parts, call.ticket->seen<CollectiveResult>().sites, d);
      }
      Memory sum = part_of(contributors.front());
      for (std::size_t i = 1; i < contributors.size(); ++i) {
        reduce(sum, part_of(contributors[i]), d);
      }
      if (d.reduce == ReduceOp::avg) divide_as<float>(sum, contributors.size());
      return sum;
    }
    case OpKind::broadcast:
      return input_of(call.numbering.at(root), 0);
    case OpKind::scatter:
      return input_of(call.numbering.at(root), rank);
    case OpKind::all_to_all:
      return input_of(call.numbering.at(output), rank);
    default:
      return input_of(call.numbering.at(output), 0);
  }
}

void Book::joined(PeerId who, const std::vector<PeerId>& members) {
  if (runs_.contains(who)) return;
  for (const PeerId member : members) {
    if (const auto known = runs_.find(member); known != runs_.end()) {
      runs_[who] = known->second;
      return;
    }
  }
  runs_[who] = ++last_run_;
}

bool Book::has_liar(const std::vector<PeerId>& peers) const {
  return std::any_of(peers.begin(), peers.end(), [this](PeerId peer) { return lies(peer); });
}

/// A replica that is alone with a liar cannot be told from it. Of two members that cannot reach
/// each other nobody can tell which one lies: so a liar costs one sound member its place, and no
/// second one (membership/reachability.cpp).
void Book::over(PeerId who, const std::string& why) {
  if (lies(who) || sound == 0) return;
  const bool majority = sound-- > 1;
  if (why.empty() || !majority) return;
  const bool apart = why.find(" cannot reach ") != std::string::npos;
  if (apart && !std::exchange(parted_, true)) return;
  throw Violation("peer " + name_of(who) + " was evicted (" + why +
                  "): one liar did it, where two sound members say otherwise");
}

void Book::ended(PeerId at, const Call& call) {
  if (lies(at)) return;
  if (call.completions != 1) throw Violation("a ticket was completed twice");
  const Error error = call.ticket->error();
  const bool elastic = call.group == kElasticGroup;
  const Operation key{runs_[at], call.ticket->seen<CollectiveResult>().op};
  const std::string what = std::string(kind_name(call.descriptor.kind)) + " " +
                           to_string(key.second) + (elastic ? "" : " of a group") + " at peer " +
                           name_of(at);
  if (error.failed()) {
    if (!elastic)
      return group_failed(call.group, call.numbering,
                          call.ticket->seen<CollectiveResult>().op.index, what, error);
    if (!faults) throw Violation(what + " has failed without any fault: " + error.text);
    if (error.code != ErrorCode::peer_lost && error.code != ErrorCode::mismatch) return;
    if (committed_.contains(key)) {
      throw Violation(what + " has failed (" + error.text + "), another member has committed it");
    }
    failed_[key].insert(at);
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      const Memory& now = call.in_place ? call.inputs[i] : call.outputs[i];
      if (now != call.before[i]) throw Violation(what + " has failed and left other bits behind");
    }
    return;
  }
  const std::vector<PeerId>& contributors = call.ticket->seen<CollectiveResult>().contributors;
  const bool believed = has_liar(contributors);
  if (std::find(contributors.begin(), contributors.end(), at) == contributors.end()) {
    throw Violation(what + " was committed without its own contribution");
  }
  std::vector<PeerId> sorted = contributors;
  std::sort(sorted.begin(), sorted.end());
  if (elastic) {
    const auto [known, first] = committed_.emplace(key, sorted);
    if (!first && known->second != sorted) {
      throw Violation(what + ": members name others as theirs");
    }
    // Where the master and all that know of a failure are gone, the rest may do the call anew.
    for (const PeerId other : sorted) {
      if (failed_.contains(key) && failed_.at(key).contains(other)) {
        throw Violation(what + " was committed, and has failed at " + name_of(other));
      }
    }
  } else if (sorted.size() != call.numbering.size()) {
    throw Violation(what + " has succeeded without all members");
  }
  ++calls_checked;
  if (believed) return;  // a liar contributed: what it has sent is in the result
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    const Memory& now = call.in_place ? call.inputs[i] : call.outputs[i];
    const Memory right = expected(call, i, contributors);
    bits_checked += 8 * right.size();
    if (now == right) continue;
    const auto at_byte = std::mismatch(now.begin(), now.end(), right.begin()).first - now.begin();
    throw Violation(what + ": wrong bits in output " + std::to_string(i) + " at byte " +
                    std::to_string(at_byte) + " of " + std::to_string(now.size()));
  }
}

void Book::harmed(const std::vector<PeerId>& peers) {
  if (peers.empty()) all_harmed_ = true;
  harmed_.insert(peers.begin(), peers.end());
}

/// Is there one in a group that waits in a call, or did until its time-out, for which another rank
/// means another root? Those who could tell it so may have left: nobody sends to it or answers.
bool Book::waits_for_another_root() const {
  std::map<std::pair<GroupId, OpKey>, std::set<std::int32_t>> roots;
  std::set<std::pair<GroupId, OpKey>> waited_for;
  for (const auto& [peer, calls] : calls_) {
    for (const auto& call : calls) {
      if (call->group == kElasticGroup) continue;
      const std::pair key(call->group, call->ticket->seen<CollectiveResult>().op);
      roots[key].insert(call->descriptor.root);
      const bool waits =
          call->completions == 0 || call->ticket->error().code == ErrorCode::timed_out;
      if (waits) waited_for.insert(key);
    }
  }
  return std::any_of(waited_for.begin(), waited_for.end(),
                     [&](const auto& key) { return roots.at(key).size() > 1; });
}

/// Each member of such a group has its own outcome. Members may wait in vain for one that is held
/// up elsewhere; that none is there any more must have begun with a fault.
void Book::group_failed(GroupId group, const std::vector<PeerId>& members, std::uint64_t index,
                        const std::string& what, const Error& error) {
  if (has_liar(members)) return;
  const Expected expected = expected_[group];
  // Who has heard of the mismatch may leave before the others hear of it.
  if (error.code == ErrorCode::mismatch && index >= expected.odd_at) return;
  if (error.code == ErrorCode::peer_lost && index >= expected.odd_at) return;
  if (error.code == ErrorCode::peer_lost && index >= expected.leaves_at) return;
  // Its program is not here either, where others wait for it.
  if (error.code == ErrorCode::timed_out && waits_for_another_root()) return;
  const bool first = failed_groups_.insert(group).second;
  if (!faults) throw Violation(what + " has failed without any fault: " + error.text);
  if (!first || all_harmed_) return;
  if (error.code != ErrorCode::peer_lost && error.code != ErrorCode::mismatch) return;
  const auto harm = [this](PeerId peer) { return harmed_.contains(peer); };
  if (std::any_of(members.begin(), members.end(), harm)) return;
  throw Violation(what + " has failed, and nothing has happened to its members: " + error.text);
}

/// A member that is still in the run loses others, and goes on with the rest.
void Book::not_made(const std::vector<PeerId>& members, const Error& error) {
  if (error.code == ErrorCode::peer_lost || error.code == ErrorCode::timed_out) return;
  if (!has_liar(members)) throw Violation("a member of the run makes no group: " + error.text);
}

void Book::entered(PeerId who, std::uint64_t step, std::uint64_t state, const std::string& what) {
  if (lies(who)) return;
  const auto [known, first] = states_.emplace(std::pair(runs_[who], step), std::pair(state, who));
  if (first || known->second.first == state) return;
  throw Violation("peer " + name_of(who) + " enters step " + std::to_string(step) + " with " +
                  what + ", peer " + name_of(known->second.second) + " with another state");
}

}  // namespace pccl::sim
