#include "engine/group.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "base/text.h"
#include "collectives/schedule.h"
#include "engine/state_exchange.h"
#include "wire/codec.h"

namespace pccl {

Group::Group(EngineContext& context, GroupId id, std::string name, bool elastic)
    : context_(context),
      id_(id),
      name_(std::move(name)),
      elastic_(elastic),
      flow_(context, id),
      early_(context, *this),
      point_to_point_(context, id, elastic) {}

Group::~Group() {
  if (!stopped_) fail_pending({ErrorCode::closed, "the group has been closed"});
}

// -------------------------------------------------------------------------------- life of
// operations

Group::Pending& Group::add(OpKey key, OpRequest request, std::shared_ptr<Ticket> ticket,
                           Numbering numbering) {
  if (request.timeout_ms == 0) request.timeout_ms = timeout_ms_;
  ticket->op = key;
  context_.note(kind_name(request.descriptor.kind), {}, id_, key.index);
  Pending& pending = ops_[key];
  pending.op =
      std::make_unique<Operation>(context_.pool, key, std::move(request), std::move(ticket));
  pending.numbering = std::move(numbering);
  return pending;
}

void Group::run(OpKey key) {
  Pending& pending = ops_.at(key);
  if (must_wait(pending)) {
    deferred_ += !pending.op->deferred;
    pending.op->deferred = true;
    return;
  }
  start_now(pending);
}

/// Operations on the same memory run one after the other; and what does not fit in the memory for
/// preimages starts after a commit, in the order of the calls at every member, so the oldest always
/// runs.
bool Group::must_wait(const Pending& pending) const {
  const Operation& op = *pending.op;
  if (elastic_ && preimage_bytes_ > 0 &&
      preimage_bytes_ + op.output_bytes() > context_.options.preimage_bytes_max) {
    return true;
  }
  for (const auto& [key, other] : ops_) {
    if (!(key < op.key())) break;
    if (elastic_ && other.op->deferred) return true;
    if (op.overlaps(*other.op)) return true;
  }
  return false;
}

/// The ranks in this numbering that are members, in the order in which data go round.
std::vector<std::size_t> Group::along_ring(const std::vector<PeerId>& numbering) const {
  std::vector<std::size_t> ranks;
  if (ring_ == numbering) {
    ranks.resize(ring_.size());
    std::iota(ranks.begin(), ranks.end(), std::size_t{0});
    return ranks;
  }
  for (const PeerId peer : ring_) {
    const auto at = std::find(numbering.begin(), numbering.end(), peer);
    if (at != numbering.end()) ranks.push_back(static_cast<std::size_t>(at - numbering.begin()));
  }
  return ranks;
}

void Group::start_now(Pending& pending) {
  Operation& op = *pending.op;
  if (op.deferred) --deferred_;
  op.deferred = false;
  pending.contributors.clear();
  std::vector<std::uint32_t> ranks;
  std::uint32_t me = 0;
  for (const std::size_t rank : along_ring(*pending.numbering)) {
    const PeerId peer = (*pending.numbering)[rank];
    if (peer == context_.links.self()) me = static_cast<std::uint32_t>(ranks.size());
    ranks.push_back(static_cast<std::uint32_t>(rank));
    pending.contributors.push_back(peer);
  }
  const MemoryToken token = context_.token(*this);
  running_[token] = op.key();
  if (elastic_) preimage_bytes_ += op.output_bytes();
  const OpKey key = op.key();
  op.start(*this, std::move(ranks), me, token, elastic_);
  for (EarlySegment& segment : early_.take(epoch_, key)) {
    const auto it = ops_.find(key);
    if (it == ops_.end() || !it->second.op->running()) return;  // a mismatch has ended it
    if (!fits(it->second, segment.from, segment.header)) return;
    const auto at =
        std::find(it->second.contributors.begin(), it->second.contributors.end(), segment.from);
    if (at == it->second.contributors.end()) continue;
    const Error error =
        it->second.op->deliver(static_cast<std::uint32_t>(at - it->second.contributors.begin()),
                               segment.header, std::move(segment.payload));
    if (error.failed()) {
      op_mismatch(key, segment.from, error.text);
      return;
    }
  }
  progress(key);
}

void Group::stop(Pending& pending) {
  Operation& op = *pending.op;
  if (op.deferred) --deferred_;
  op.deferred = false;
  if (!op.running()) return;
  if (elastic_) preimage_bytes_ -= op.output_bytes();
  flow_.cancel(op.token());
  running_.erase(op.token());
  context_.retire(op.token());
  op.stop();
}

void Group::finish(OpKey key, Error error) {
  const auto it = ops_.find(key);
  if (it == ops_.end()) return;
  stop(it->second);
  auto node = ops_.extract(it);
  const auto ticket = node.mapped().op->ticket();
  ticket->contributors = std::move(node.mapped().contributors);
  const bool failed = error.failed();
  context_.note(failed ? "failed" : "completed", {}, id_, key.index);
  if (failed) {
    ++context_.counters.ops_failed;
  } else {
    ++context_.counters.ops_committed;
  }
  ticket->complete(std::move(error));
  node = {};
  if (deferred_ > 0) start_deferred();
}

void Group::start_deferred() {
  std::vector<OpKey> keys;
  for (const auto& [key, pending] : ops_) {
    if (pending.op->deferred) keys.push_back(key);
  }
  for (const OpKey key : keys) {
    const auto it = ops_.find(key);
    if (it == ops_.end() || !it->second.op->deferred) continue;
    if (must_wait(it->second)) continue;
    start_now(it->second);
  }
}

void Group::fail_pending(const Error& error) {
  std::vector<OpKey> keys;
  for (const auto& [key, pending] : ops_) keys.push_back(key);
  for (const OpKey key : keys) {
    const auto it = ops_.find(key);
    if (it == ops_.end()) continue;
    Error own = error;
    own.text = describe_wait(it->second) + ": " + own.text;
    stop(it->second);
    it->second.op->restore();
    finish(key, std::move(own));
  }
  point_to_point_.fail_all(error);
}

void Group::stop_for_good(const Error& error) {
  std::vector<std::shared_ptr<Ticket>> tickets = point_to_point_.tickets();
  for (const auto& [key, pending] : ops_) tickets.push_back(pending.op->ticket());
  try {
    end_waits(error);
  } catch (const std::exception& e) {  // what broke the engine may do so again
    log_error(name_ + ": " + e.what());
  }
  stopped_ = true;
  for (const auto& ticket : tickets) ticket->complete(error);
}

std::string Group::report() const {
  constexpr std::size_t kShown = 16;
  std::string text =
      name_ + " " + std::to_string(id_.value) + ": epoch " + to_string(epoch_) + ", members";
  for (const PeerId peer : members_) text += " " + to_string(peer);
  text +=
      ", next operation " + to_string(next_key()) + ", in flight " + std::to_string(ops_.size());
  std::size_t shown = 0;
  for (const auto& [key, pending] : ops_) {
    if (++shown > kShown) break;
    text += "; " + describe_wait(pending) + (pending.op->running() ? "" : ", not running") +
            (pending.op->complete() ? ", complete here" : "");
  }
  return text;
}

void Group::set_epoch(EpochId epoch, std::vector<PeerId> members,
                      const std::vector<Relay>& relays) {
  epoch_ = epoch;
  members_ = std::move(members);
  const auto place = [&](PeerId peer) {
    return static_cast<std::uint32_t>(std::find(members_.begin(), members_.end(), peer) -
                                      members_.begin());
  };
  RankPairs apart;
  for (const Relay& relay : relays) apart.insert(std::minmax(place(relay.a), place(relay.b)));
  ring_.clear();
  for (const std::uint32_t m : ring_order(static_cast<std::uint32_t>(members_.size()), apart)) {
    ring_.push_back(members_[m]);
  }
  flow_.reset();
  early_.drop_before(epoch);
}

void Group::progress(OpKey key) {
  const auto it = ops_.find(key);
  if (it != ops_.end() && it->second.op->complete()) op_complete(it->second);
}

// ---------------------------------------------------------------------------------------- segments

void Group::send_segment(Operation& op, std::uint32_t contributor, std::uint32_t channel,
                         std::uint64_t offset, const std::byte* data, std::uint32_t bytes,
                         std::uint32_t index) {
  SegmentHeader header;
  header.kind = SegmentKind::collective;
  header.group = id_;
  header.epoch = epoch_;
  header.op = op.key();
  header.channel = channel;
  header.offset = offset;
  header.bytes = bytes;
  header.descriptor = op.request().descriptor;
  flow_.send(ops_.at(op.key()).contributors[contributor], header, data, op.token(), index);
}

/// Does the sender mean the same operation as we do? If not, it ends for all.
bool Group::fits(Pending& pending, PeerId from, const SegmentHeader& header) {
  const OpDescriptor& mine = pending.op->request().descriptor;
  const OpDescriptor& theirs = header.descriptor;
  const bool counts = mine.count == 0 || theirs.count == 0 || mine.count == theirs.count;
  if (counts && mine.kind == theirs.kind && mine.reduce == theirs.reduce &&
      mine.dtype == theirs.dtype && mine.root == theirs.root) {
    return true;
  }
  op_mismatch(pending.op->key(), from,
              describe_peer(from, *pending.numbering) + " calls " + describe(theirs) + ", " +
                  describe_peer(context_.links.self(), *pending.numbering) + " calls " +
                  describe(mine));
  return false;
}

Placement Group::segment_header(PeerId from, const SegmentHeader& header) {
  switch (header.kind) {
    case SegmentKind::state:
      return pull_header(from, header);
    case SegmentKind::message:
    case SegmentKind::eager:
      return point_to_point_.segment_header(from, header);
    case SegmentKind::collective:
      break;
  }
  if (header.epoch < epoch_) return {};
  const auto it = ops_.find(header.op);
  const bool now = header.epoch == epoch_;
  if (now && it == ops_.end() && header.op < next_key()) return {};  // it has ended
  if (now && it != ops_.end()) flow_.received(from, header.bytes, next_key());
  if (!now || it == ops_.end() || !it->second.op->running()) return early_.place(header);
  const auto& contributors = it->second.contributors;
  const auto at = std::find(contributors.begin(), contributors.end(), from);
  if (at == contributors.end() || !fits(it->second, from, header)) return {};
  auto placed = it->second.op->place(static_cast<std::uint32_t>(at - contributors.begin()), header);
  if (!placed) {
    op_mismatch(header.op, from,
                describe_peer(from, *it->second.numbering) + ": " + placed.error().text);
    return {};
  }
  return placed.value();
}

void Group::adopt(EarlySegment segment) {
  const SegmentHeader& header = segment.header;
  if (header.kind == SegmentKind::eager) {
    point_to_point_.adopt(segment.from, header, std::move(segment.payload));
    return;
  }
  if (header.kind != SegmentKind::collective) return;  // what follows a request has a group here
  const auto it = ops_.find(header.op);
  const bool now = header.epoch == epoch_;
  if (header.epoch < epoch_ || (now && it == ops_.end() && header.op < next_key())) return;
  if (!now || it == ops_.end() || !it->second.op->running()) {
    early_.keep(std::move(segment));
    return;
  }
  const auto& contributors = it->second.contributors;
  const auto from = std::find(contributors.begin(), contributors.end(), segment.from);
  if (from == contributors.end() || !fits(it->second, segment.from, header)) return;
  const OpKey key = header.op;
  const PeerId sender = segment.from;
  const Error error = it->second.op->deliver(
      static_cast<std::uint32_t>(from - contributors.begin()), header, std::move(segment.payload));
  if (error.failed()) {
    op_mismatch(key, sender, describe_peer(sender, *it->second.numbering) + ": " + error.text);
    return;
  }
  progress(key);
}

void Group::segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) {
  if (early_.owns(at)) {
    adopt({peer, header, early_.take(at)});
    return;
  }
  const auto run = running_.find(at.token);
  if (run == running_.end()) return;
  Pending& pending = ops_.at(run->second);
  const auto from = std::find(pending.contributors.begin(), pending.contributors.end(), peer);
  const OpKey key = run->second;
  pending.op->arrived(static_cast<std::uint32_t>(from - pending.contributors.begin()), header, at);
  progress(key);
}

void Group::segment_sent(MemoryToken token, PeerId, std::uint32_t index) {
  const auto run = running_.find(token);
  if (run == running_.end()) return;
  const OpKey key = run->second;
  ops_.at(key).op->sent(index);
  progress(key);
}

void Group::inputs_came(const InputGate& gate) {
  const auto it = std::find_if(ops_.begin(), ops_.end(), [&](const auto& entry) {
    return entry.second.op->request().gate.get() == &gate;
  });
  if (it == ops_.end()) return point_to_point_.inputs_came(gate);
  const OpKey key = it->first;
  it->second.op->inputs_came();
  progress(key);
}

void Group::control(PeerId peer, const PeerToPeer& message) {
  if (const auto* grant = std::get_if<Grant>(&message)) {
    flow_.granted(peer, grant->issued);
  } else if (const auto* want = std::get_if<Want>(&message)) {
    flow_.wanted(peer, want->op, next_key());
  } else if (const auto* announce = std::get_if<Announce>(&message)) {
    point_to_point_.announced(peer, *announce);
  } else if (const auto* accept = std::get_if<Accept>(&message)) {
    point_to_point_.accepted(peer, *accept);
  } else if (const auto* withdraw = std::get_if<Withdraw>(&message)) {
    point_to_point_.withdrawn(peer, *withdraw);
  } else if (const auto* ask = std::get_if<AskIssued>(&message)) {
    const auto it = ops_.find(ask->op);
    TellIssued told{id_, ask->op, next_key(), 0};
    if (it == ops_.end()) {
      told.waits_at = ask->op < told.issued ? TellIssued::kNoStep : 0;
    } else if (it->second.op->running() && !it->second.op->waits_for_inputs()) {
      told.waits_at = it->second.op->waits_at();
    } else if (elastic_) {
      told.issued = ask->op;  // for its own device, or for memory: as late as one not called yet
    }
    context_.links.send_control(peer, encode(PeerToPeer{told}));
    // Ranks that call different operations may all wait for a first segment: this is how they find
    // out.
    if (it == ops_.end() || !it->second.op->running()) return;
    SegmentHeader theirs;
    theirs.descriptor = {static_cast<OpKind>(ask->kind), static_cast<ReduceOp>(ask->reduce),
                         static_cast<DType>(ask->dtype), static_cast<std::int32_t>(ask->root),
                         ask->count};
    static_cast<void>(fits(it->second, peer, theirs));
  }
}

void Group::ask_issued(const Pending& pending, PeerId peer) {
  const OpDescriptor& d = pending.op->request().descriptor;
  context_.links.send_control(
      peer, encode(PeerToPeer{AskIssued{id_, pending.op->key(), static_cast<std::uint32_t>(d.kind),
                                        static_cast<std::uint32_t>(d.reduce),
                                        static_cast<std::uint32_t>(d.dtype), d.root, d.count}}));
}

// ----------------------------------------------------------------------------------------- waiting

void Group::tick(std::uint64_t elapsed_ms) {
  const bool held = holding();
  point_to_point_.tick(elapsed_ms, held);
  std::vector<OpKey> expired;
  for (auto& [key, pending] : ops_) {
    Operation& op = *pending.op;
    op.waited_total_ms += elapsed_ms;
    if (op.waited_total_ms >= kAskMs && !op.asked && op.running()) {
      op.asked = true;
      for (const PeerId peer : pending.contributors) {
        if (peer != context_.links.self()) ask_issued(pending, peer);
      }
    }
    if (op.waited_total_ms >= op.say_waiting_ms) {
      op.say_waiting_ms *= 2;
      log_info(name_ + ": " + waiting_text(pending));
    }
    if (held) continue;
    op.waited_ms += elapsed_ms;
    if (op.request().timeout_ms > 0 && op.waited_ms >= op.request().timeout_ms && !op.expired) {
      op.expired = true;
      expired.push_back(key);
    }
  }
  for (const OpKey key : expired) {
    const auto it = ops_.find(key);
    if (it != ops_.end()) op_timed_out(it->second);
  }
}

std::string Group::waiting_text(const Pending& pending) const {
  const Operation& op = *pending.op;
  std::string text = describe(pending) + " has been waiting for " +
                     std::to_string(op.waited_total_ms / 1000) + " s ";
  if (op.deferred)
    return text + "for an earlier operation (same memory, or no room for its preimage)";
  if (op.complete()) return text + "for the commit";
  if (!op.running()) return text + "for the next epoch";
  if (op.waits_for_inputs()) return text + "for its own tensors: the device has not computed them";
  const auto peers = op.waiting_for();
  if (peers.empty()) return text + "to send its part";
  std::string owing;
  for (const std::uint32_t i : peers) {
    add_to_list(owing, describe_peer(pending.contributors[i], *pending.numbering));
  }
  text += "for data from " + owing;
  // Who owes data may wait for another one itself: this is for whom all of them wait.
  std::string late_ones;
  for (const PeerId peer : pending.contributors) {
    if (!late(op.key(), peer)) continue;
    add_to_list(late_ones, describe_peer(peer, *pending.numbering));
  }
  if (!late_ones.empty()) text += "; who has not called it yet: " + late_ones;
  return text;
}

std::vector<OpInFlight> Group::in_flight() const {
  std::vector<OpInFlight> list;
  for (const auto& [key, pending] : ops_) {
    const Operation& op = *pending.op;
    list.push_back(
        {key, op.request().descriptor, op.bytes_sent(), op.bytes_received(), op.complete()});
  }
  return list;
}

std::string Group::describe(const OpDescriptor& d) {
  std::string text(kind_name(d.kind));
  std::string details;
  const auto add_detail = [&](const std::string& more) { add_to_list(details, more); };
  if (d.reduce != ReduceOp::none) add_detail(std::string(reduce_name(d.reduce)));
  if (d.kind != OpKind::barrier) add_detail(std::string(dtype_name(d.dtype)));
  if (d.count > 0) add_detail(std::to_string(d.count) + " elements");
  if (d.root >= 0) add_detail("root " + std::to_string(d.root));
  return details.empty() ? text : text + "(" + details + ")";
}

std::string Group::describe(const Pending& pending) const {
  const Operation& op = *pending.op;
  const OpRequest& request = op.request();
  std::string text = describe(request.descriptor) + " " + numbered(op.key());
  if (request.descriptor.count == 0 && request.descriptor.kind != OpKind::barrier) {
    text += " (" + std::to_string(total_bytes(request.inputs)) + " bytes in, " +
            std::to_string(op.output_bytes()) + " bytes out)";  // here: sizes may differ by rank
  }
  return text;
}

/// Fixed groups have no steps: torch counts their operations through.
std::string Group::numbered(OpKey key) const {
  return "#" + (elastic_ ? to_string(key) : std::to_string(key.index));
}

std::string Group::describe_wait(const Pending& pending) const {
  return describe(pending) + ", after " + seconds(pending.op->waited_total_ms);
}

std::string Group::describe_peer(PeerId peer, const std::vector<PeerId>& numbering) const {
  const auto at = std::find(numbering.begin(), numbering.end(), peer);
  std::string text = at == numbering.end() ? "peer " + to_string(peer)
                                           : "rank " + std::to_string(at - numbering.begin());
  const auto address = addresses_.find(peer);
  if (address != addresses_.end() && !address->second.empty()) text += " (" + address->second + ")";
  return text;
}

}  // namespace pccl
