#include "engine/group.h"

#include <algorithm>
#include <new>

#include "base/log.h"
#include "collectives/schedule.h"
#include "engine/numbering.h"
#include "engine/state_exchange.h"
#include "membership/trips.h"
#include "wire/codec.h"

namespace pccl {
Group::Group(EngineContext& context, GroupId id, std::string name, GroupKind kind)
    : context_(context),
      id_(id),
      name_(std::move(name)),
      kind_(kind),
      numbering_(std::make_shared<const std::vector<PeerId>>()),
      run_(make_run(EpochId{})),
      ops_(kind, context.options.preimage_bytes_max) {
  run_->stopped = true;
}

Group::~Group() {
  if (!stopped_) fail_pending({ErrorCode::closed, "the group has been closed"});
}

// ------------------------------------------------------------------------------------------ epochs

std::unique_ptr<EpochRun> Group::make_run(EpochId epoch) {
  return std::make_unique<EpochRun>(context_, *this, *this, id_, epoch, /*confirmed=*/is_elastic());
}

EpochRun* Group::run_of(PeerId from, EpochId epoch) {
  if (epoch < run_->id) return nullptr;  // late, of an epoch that has ended
  if (epoch == run_->id) return run_->stopped || !member(from) ? nullptr : run_.get();
  const EpochId accepted = accepted_epoch();
  if (epoch != accepted || !accepted_member(from)) {
    // An epoch starts when all of its members have accepted it, this one too.
    if (epoch > accepted) context_.breaks_rules(from, "it sends in an epoch that has not started");
    return nullptr;
  }
  if (!ahead_ || ahead_->id != epoch) ahead_ = make_run(epoch);
  return ahead_.get();
}

void Group::set_epoch(EpochId epoch, std::vector<PeerId> members, const std::vector<Relay>& relays,
                      const std::vector<PeerId>& ring, const Lines& lines) {
  std::unique_ptr<EpochRun> before = std::move(run_);
  run_ = ahead_ && ahead_->id == epoch ? std::move(ahead_) : make_run(epoch);
  ahead_.reset();
  const auto place = [&](PeerId peer) {
    return static_cast<std::uint32_t>(std::find(members.begin(), members.end(), peer) -
                                      members.begin());
  };
  RankPairs apart;
  for (const Relay& relay : relays) apart.insert(std::minmax(place(relay.a), place(relay.b)));
  std::vector<std::uint32_t> order;
  for (const PeerId peer : ring.empty() ? members : ring) order.push_back(place(peer));
  for (const std::uint32_t m : ring_order(std::move(order), apart)) {
    run_->ring.push_back(members[m]);
  }
  run_->members = std::move(members);
  run_->lines = lines;
  for (auto& [key, pending] : ops_) {
    pending.early_bytes.clear();
    run_->early.issued(key);
  }
  run_->flow.issued(next_key());
}

void Group::stop_epoch(const Error& error) {
  for (auto& [key, pending] : ops_) {
    stop(pending);
    if (!run_->stopped) pending.sends_before.clear();  // they end with their epoch
  }
  run_->stopped = true;
  run_->early.drop_all();
  run_->point_to_point.fail_all(error);
}

bool Group::member(PeerId peer) const {
  return std::find(run_->members.begin(), run_->members.end(), peer) != run_->members.end();
}

Trips Group::trips_along(const std::vector<PeerId>& ring) const {
  return own_trips(context_.links.self(), ring, [this](PeerId peer) {
    const std::optional<LinkView> link = context_.links.view(peer);
    return link ? Trip{link->round_trip_us, link->local} : Trip{};
  });
}

void Group::link_gone(PeerId peer) {
  for (EpochRun* run : {run_.get(), ahead_.get()}) {
    if (run == nullptr) continue;
    run->early.link_gone(peer);
    run->point_to_point.link_gone(peer);
  }
}

// ---------------------------------------------------------------------------------------- requests

void Group::post(OpRequest request, std::shared_ptr<Ticket> ticket) {
  if (stays_out(request, ticket)) return;
  if (!request.numbering) request.numbering = numbering_;
  if (auto error = misfit(request, context_.links.self()))
    return ticket->complete(std::move(*error));
  request.order = ++calls_;
  const OpKind kind = request.descriptor.kind;
  if (kind == OpKind::send || kind == OpKind::recv) {
    return issue_message(std::move(request), std::move(ticket));
  }
  const bool changed = request.numbering != numbering_ && *request.numbering != *numbering_;
  if (changed && !renumber(request, numbering_)) {
    return ticket->complete(
        {ErrorCode::invalid, std::string(kind_name(kind)) +
                                 ": rank and size of the group changed while it was called, and it "
                                 "does not fit the new ones; call it again"});
  }
  issue(std::move(request), std::move(ticket));
}

// ------------------------------------------------------------------------------ life of operations

Pending& Group::add(OpKey key, OpRequest request, std::shared_ptr<Ticket> ticket,
                    Numbering numbering) {
  if (request.timeout_ms == 0) request.timeout_ms = timeout_ms_;
  ticket->result<CollectiveResult>().op = key;
  context_.note(kind_name(request.descriptor.kind), {}, id_, key.index);
  Pending& pending = ops_.add(
      std::make_unique<Operation>(context_.pool, key, std::move(request), std::move(ticket)),
      std::move(numbering));
  note_traffic(pending);
  if (pending.is_barrier()) pending.sends_before = sends_so_far();
  run_->early.issued(key);
  answer_flushes();  // other ranks may wait at this barrier
  return pending;
}

void Group::run(OpKey key) {
  Pending& pending = ops_.at(key);
  if (pending.is_barrier()) ask_for_messages(pending);
  if (must_wait(pending)) {
    ops_.defer(pending);
  } else {
    start_now(pending);
  }
}

void Group::start_now(Pending& pending) {
  Operation& op = *pending.op;
  pending.contributors.clear();
  std::vector<std::uint32_t> ranks;
  std::uint32_t me = 0;
  for (const std::size_t rank : ranks_along(run_->ring, *pending.numbering)) {
    const PeerId peer = (*pending.numbering)[rank];
    if (peer == context_.links.self()) me = static_cast<std::uint32_t>(ranks.size());
    ranks.push_back(static_cast<std::uint32_t>(rank));
    pending.contributors.push_back(peer);
  }
  const OpKey key = op.key();
  if (run_->starved.contains(key)) return starve(key);
  pending.gave_up = pending.asked_back = false;
  const MemoryToken token = context_.token(*this);
  run_->running[token] = key;
  ops_.started(pending);
  const bool runs = with_memory(key, [&] {
    const Lines lines = lines_among(pending.contributors);
    if (auto* const result = op.ticket()->find<CollectiveResult>()) result->sites = lines.sites;
    op.start(*this, std::move(ranks), me, token, /*keep_preimage=*/is_elastic(), lines);
  });
  if (!runs) return;
  for (EarlySegment& segment : run_->early.take(key)) {
    Pending* still = ops_.find(key);
    if (still == nullptr || !still->op->running()) return;  // a mismatch has ended it
    if (!deliver(*still, std::move(segment))) return;
  }
  progress(key);
}

/// The lines of the epoch, with the sites of these of its members, who are in the order of the
/// ring.
Lines Group::lines_among(const std::vector<PeerId>& contributors) const {
  Lines lines = run_->lines;
  std::vector<std::uint32_t> sites;
  auto contributor = contributors.begin();
  for (std::size_t i = 0; i < std::min(run_->ring.size(), lines.sites.size()); ++i) {
    if (contributor == contributors.end()) break;
    if (run_->ring[i] != *contributor) continue;
    sites.push_back(lines.sites[i]);
    ++contributor;
  }
  const bool all = sites.size() == contributors.size();
  lines.sites = all ? numbered_sites(sites) : Sites{};
  return lines;
}

/// Runs a part of the operation. False: there was no memory for it, and it is given up here.
template <typename Body>
bool Group::with_memory(OpKey op, Body&& body) {
  try {
    body();
    return true;
  } catch (const std::bad_alloc&) {
    starve(op);
    return false;
  }
}

void Group::starve(OpKey key) {
  Pending& pending = ops_.at(key);
  const std::string text = describe_peer(context_.links.self(), *pending.numbering) +
                           " has no memory for " + describe_op(pending);
  log_warning(name_ + ": " + text);
  stop(pending);
  pending.op->restore();
  pending.gave_up = true;
  op_starved(pending, {ErrorCode::no_memory, text});
}

void Group::stop(Pending& pending) {
  Operation& op = *pending.op;
  ops_.stopped(pending);
  if (!op.running()) return;
  run_->flow.cancel(op.token());
  run_->running.erase(op.token());
  context_.retire(op.token());
  op.stop();
}

void Group::finish(OpKey key, Error error) {
  Pending* pending = ops_.find(key);
  if (pending == nullptr) return;
  stop(*pending);
  const bool failed = error.failed();
  if (!failed) completed_.add(key, pending->op->request().descriptor);
  context_.note(failed ? "failed" : "completed", {}, id_, key.index);
  ++(failed ? context_.counters.ops_failed : context_.counters.ops_committed);
  if (!failed) ++context_.counters.ops_by[static_cast<std::size_t>(pending->op->algorithm())];
  {
    Pending ended = ops_.take(key);
    const auto ticket = ended.op->ticket();
    if (auto* const result = ticket->find<CollectiveResult>()) {
      result->contributors = std::move(ended.contributors);
    }
    ticket->complete(std::move(error));
  }
  answer_flushes();
  start_deferred();
}

/// An operation that begins may end at once and so let others begin: the loop below starts these,
/// never a call from inside the loop.
void Group::start_deferred() {
  more_may_start_ = true;
  if (starting_deferred_ || stopped_ || run_->stopped) return;
  starting_deferred_ = true;
  while (std::exchange(more_may_start_, false)) {
    std::optional<OpKey> asked;
    while (Pending* const pending = ops_.next_to_ask(asked)) {
      asked = pending->key();
      if (!must_wait(*pending)) {
        start_now(*pending);
      } else if (is_elastic()) {
        break;  // all later ones wait for it
      } else {
        ops_.defer(*pending);  // behind another operation now
      }
    }
  }
  starting_deferred_ = false;
}

Tickets Group::users_of(const std::vector<Buffer>& memory) const {
  Tickets tickets;
  for (const auto& [key, pending] : ops_) {
    if (pending.op->uses(memory)) tickets.push_back(pending.op->ticket());
  }
  return tickets;
}

void Group::fail_pending(const Error& error) {
  for (auto& [key, pending] : ops_) stop(pending);  // so that none begins when one has ended
  for (const OpKey key : ops_.keys()) {
    Pending* pending = ops_.find(key);
    if (pending == nullptr) continue;
    Error own = error;
    own.text = describe_wait(*pending) + ": " + own.text;
    pending->op->restore();
    finish(key, std::move(own));
  }
  run_->point_to_point.fail_all(error);
  for (auto& [request, ticket] : std::exchange(between_epochs_, {})) ticket->complete(error);
}

void Group::stop_for_good(const Error& error) {
  std::vector<std::shared_ptr<Ticket>> tickets;
  try {
    tickets = run_->point_to_point.tickets();
    for (const auto& [key, pending] : ops_) tickets.push_back(pending.op->ticket());
    for (const auto& [request, ticket] : between_epochs_) tickets.push_back(ticket);
    end_waits(error);
  } catch (const std::exception& e) {  // what broke the engine may do so again
    log_error(e.what());
  }
  stopped_ = true;
  for (const auto& ticket : tickets) ticket->complete(error);
}

void Group::progress(OpKey key) {
  Pending* pending = ops_.find(key);
  if (pending == nullptr || !pending->op->complete()) return;
  const bool frees_areas = pending->op->through_areas();
  op_complete(*pending);
  // They wait for its end here, not at all ranks.
  if (ops_.barrier_deferred() || frees_areas) start_deferred();
}

// ---------------------------------------------------------------------------------------- segments

void Group::send_segment(Operation& op, std::uint32_t contributor, std::uint32_t channel,
                         std::uint64_t offset, const std::byte* data, std::uint32_t bytes,
                         std::uint32_t index) {
  SegmentHeader header;
  header.kind = SegmentKind::collective;
  header.group = id_;
  header.epoch = run_->id;
  header.op = op.key();
  header.channel = channel;
  header.offset = offset;
  header.bytes = bytes;
  header.descriptor = op.request().descriptor;
  run_->flow.send(ops_.at(op.key()).contributors[contributor], header, data, op.token(), index);
}

/// Does the sender mean the same operation as we do? If not, it ends for all.
bool Group::fits(Pending& pending, PeerId from, const OpDescriptor& theirs) {
  const OpDescriptor& mine = pending.op->request().descriptor;
  if (alike(mine, theirs)) return true;
  op_mismatch(pending.op->key(), from,
              describe_peer(from, *pending.numbering) + " calls " + describe(theirs) + ", " +
                  describe_peer(context_.links.self(), *pending.numbering) + " calls " +
                  describe(mine));
  return false;
}

/// Another rank sends data for an operation that has ended here, or waits in that operation. An
/// operation that has succeeded had all its data: a rank that sends more means another operation,
/// of which no other rank may ever hear.
void Group::ended_already(OpKey op, PeerId from, const OpDescriptor& theirs, bool sends) {
  const OpDescriptor* found = completed_.find(op);
  if (found == nullptr || !member(from) || (!sends && alike(*found, theirs))) return;
  const OpDescriptor mine = *found;
  completed_.forget(op);  // the sender's other segments show the same mismatch
  op_mismatch(op, from,
              difference_text(describe_peer(from, *numbering_), theirs,
                              describe_peer(context_.links.self(), *numbering_), mine) +
                  (alike(mine, theirs) ? " without data that came for it" : ""));
}

/// The operation does not take a segment that has come for it: the ranks differ about the
/// operation, or the sender breaks the rules.
void Group::refused(OpKey op, PeerId from, const Error& error) {
  if (error.code == ErrorCode::malformed) return context_.breaks_rules(from, error.text);
  op_mismatch(op, from, describe_peer(from, *ops_.at(op).numbering) + ": " + error.text);
}

Placement Group::segment_header(PeerId from, const SegmentHeader& header) {
  if (header.kind == SegmentKind::state) return pull_header(from, header);
  if (header.kind == SegmentKind::measure) return {};
  EpochRun* run = run_of(from, header.epoch);
  if (run == nullptr) return {};
  if (header.kind != SegmentKind::collective) {
    return run->point_to_point.segment_header(from, header);
  }
  Pending* pending = run == run_.get() ? ops_.find(header.op) : nullptr;
  if (pending != nullptr) {
    run->flow.received(from, header.bytes, next_key());
  } else if (has_ended(*run, header.op)) {
    ended_already(header.op, from, header.descriptor, /*sends=*/true);
    return {};
  }
  if (pending == nullptr || !pending->op->running()) return keep_early(*run, from, header);
  const auto& contributors = pending->contributors;
  const auto at = std::find(contributors.begin(), contributors.end(), from);
  if (at == contributors.end() || !fits(*pending, from, header.descriptor)) return {};
  Result<Placement> placed{Placement{}};
  const auto contributor = static_cast<std::uint32_t>(at - contributors.begin());
  with_memory(header.op, [&] { placed = pending->op->place(contributor, header); });
  if (placed) return placed.value();
  refused(header.op, from, placed.error());
  return {};
}

/// A segment that cannot be used yet. What is expected, because its operation is issued here and
/// deferred, is bounded by the operation; the rest by the link.
Placement Group::keep_early(EpochRun& run, PeerId from, const SegmentHeader& header) {
  Pending* pending = ops_.find(header.op);
  if (run.starved.contains(header.op) || (pending != nullptr && pending->gave_up)) return {};
  const bool expected_here = pending != nullptr && &run == run_.get();
  std::optional<Kept> kept = Kept{};
  if (expected_here) {
    const OpRequest& request = pending->op->request();
    std::uint64_t& bytes = pending->early_bytes[from];
    bytes += kept_cost(header.bytes);
    const std::uint64_t expected = total_bytes(request.inputs) + total_bytes(request.outputs);
    if (bytes > 2 * expected + kUngrantedBytesMax) {
      const std::string what = describe_op(*pending);
      if (fits(*pending, from, header.descriptor)) {  // else it means another operation
        context_.breaks_rules(from, "it sends more of " + what + " than there is");
      }
      return {};
    }
  } else {
    kept = context_.keep(from, kept_cost(header.bytes));
    if (!kept) return {};
  }
  try {
    return run.early.place(from, header, std::move(*kept));
  } catch (const std::bad_alloc&) {
    run.starved.insert(header.op);
    if (expected_here) starve(header.op);
    return {};
  }
}

/// Is this operation, which is not in flight, over in the epoch of `run`?
bool Group::has_ended(const EpochRun& run, OpKey op) const {
  return &run == run_.get() && op < next_key();
}

void Group::adopt(EarlySegment segment) {
  EpochRun* run = run_of(segment.from, segment.header.epoch);
  if (run == nullptr) return;
  if (segment.header.kind == SegmentKind::collective) {
    use_early(*run, std::move(segment));
  } else {
    run->point_to_point.adopt(segment.from, segment.header, std::move(segment.payload));
  }
}

void Group::use_early(EpochRun& run, EarlySegment segment) {
  const OpKey key = segment.header.op;
  Pending* pending = &run == run_.get() ? ops_.find(key) : nullptr;
  if (pending == nullptr && has_ended(run, key)) {
    return ended_already(key, segment.from, segment.header.descriptor, /*sends=*/true);
  }
  if (pending == nullptr || !pending->op->running()) return run.early.keep(std::move(segment));
  if (deliver(*pending, std::move(segment))) progress(key);
}

/// False: that has ended the operation.
bool Group::deliver(Pending& pending, EarlySegment segment) {
  const auto& contributors = pending.contributors;
  const auto from = std::find(contributors.begin(), contributors.end(), segment.from);
  if (from == contributors.end()) return true;
  if (!fits(pending, segment.from, segment.header.descriptor)) return false;
  Error error;
  const OpKey key = pending.op->key();
  const auto contributor = static_cast<std::uint32_t>(from - contributors.begin());
  const bool runs = with_memory(key, [&] {
    error = pending.op->deliver(contributor, segment.header, std::move(segment.payload));
  });
  if (error.failed()) refused(key, segment.from, error);
  return runs && !error.failed();
}

void Group::segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) {
  for (EpochRun* run : {run_.get(), ahead_.get()}) {
    if (run != nullptr && run->early.owns(peer, at)) {
      return use_early(*run, run->early.take(at));
    }
  }
  const auto run = run_->running.find(at.token);
  if (run == run_->running.end()) return;
  const OpKey key = run->second;
  Pending& pending = ops_.at(key);
  const std::uint32_t from = contributor(pending, peer);
  if (with_memory(key, [&] { pending.op->arrived(from, header, at); })) progress(key);
}

/// An operation that runs has its own place for the segment, and ends without it.
void Group::segment_lost(PeerId peer, const Placement& at) {
  for (EpochRun* run : {run_.get(), ahead_.get()}) {
    if (run != nullptr && run->early.owns(peer, at)) return run->early.forget(at);
  }
}

void Group::segment_part(PeerId peer, const SegmentHeader& header, const Placement& at,
                         std::uint32_t offset, std::span<const std::byte> bytes) {
  const auto run = run_->running.find(at.token);
  if (run == run_->running.end()) return;
  const OpKey key = run->second;
  Pending& pending = ops_.at(key);
  const std::uint32_t from = contributor(pending, peer);
  with_memory(key, [&] { pending.op->use_part(from, header, offset, bytes); });
}

std::uint32_t Group::contributor(const Pending& pending, PeerId peer) {
  const auto from = std::find(pending.contributors.begin(), pending.contributors.end(), peer);
  return static_cast<std::uint32_t>(from - pending.contributors.begin());
}

void Group::segment_sent(MemoryToken token, PeerId, std::uint32_t index) {
  const auto run = run_->running.find(token);
  if (run == run_->running.end()) return;
  const OpKey key = run->second;
  if (with_memory(key, [&] { ops_.at(key).op->sent(index); })) progress(key);
}

void Group::inputs_came(const InputGate& gate) {
  const auto it = std::find_if(ops_.begin(), ops_.end(), [&](const auto& entry) {
    return entry.second.op->request().gate.get() == &gate;
  });
  if (it == ops_.end()) return run_->point_to_point.inputs_came(gate);
  const OpKey key = it->first;
  if (with_memory(key, [&] { it->second.op->inputs_came(); })) progress(key);
}

// ---------------------------------------------------------------------------------------- messages

void Group::control(PeerId peer, const PeerToPeer& message) {
  std::visit([&](const auto& m) { on(peer, m); }, message);
}

void Group::on(PeerId from, const Grant& m) {
  if (EpochRun* run = run_of(from, m.epoch)) run->flow.granted(from, m.issued);
}

void Group::on(PeerId from, const Want& m) {
  EpochRun* run = run_of(from, m.epoch);
  if (run != nullptr) run->flow.wanted(from, m.op, run == run_.get() ? next_key() : OpKey{});
}

void Group::on(PeerId from, const Announce& m) {
  if (EpochRun* run = run_of(from, m.epoch)) run->point_to_point.announced(from, m);
}

void Group::on(PeerId from, const Accept& m) {
  if (EpochRun* run = run_of(from, m.epoch)) run->point_to_point.accepted(from, m);
}

void Group::on(PeerId from, const Withdraw& m) {
  if (EpochRun* run = run_of(from, m.epoch)) run->point_to_point.withdrawn(from, m);
}

void Group::on(PeerId from, const Flush& m) {
  if (EpochRun* run = run_of(from, m.epoch)) run->point_to_point.flush_asked(from, m);
}

void Group::on(PeerId from, const Flushed& m) {
  if (EpochRun* run = run_of(from, m.epoch)) flushed(*run, from, m);
}

/// Ranks that call different operations may all wait for a first segment, or be done where others
/// wait: this is how they find out.
void Group::on(PeerId from, const AskIssued& m) {
  Pending* pending = ops_.find(m.op);
  const bool runs = pending != nullptr && pending->op->running();
  context_.links.send_control(from, encode(PeerToPeer{tell_issued(m.op, pending)}));
  if (pending == nullptr) {
    ended_already(m.op, from, descriptor_of(m), /*sends=*/false);
  } else if (runs) {
    static_cast<void>(fits(*pending, from, descriptor_of(m)));
  }
}

/// What this rank has issued, and where it waits in `op`. `pending`: null if `op` is not in flight.
TellIssued Group::tell_issued(OpKey op, const Pending* pending) const {
  TellIssued told;
  told.group = id_;
  told.op = op;
  told.issued = next_key();
  if (pending == nullptr) {
    told.waits_at = op < told.issued ? TellIssued::kNoStep : 0;
  } else if (pending->op->running() && !pending->op->waits_for_inputs()) {
    told.waits_at = pending->op->waits_at();
  } else if (is_elastic()) {
    told.issued = op;  // for its own device, or for memory: as late as one not called yet
  }
  return told;
}

void Group::ask_issued(const Pending& pending, PeerId peer) {
  const OpDescriptor& called = pending.op->request().descriptor;
  context_.links.send_control(peer, encode(PeerToPeer{ask_about(id_, pending.key(), called)}));
}

// ----------------------------------------------------------------------------------------- waiting

void Group::tick(std::uint64_t elapsed_ms) {
  const bool held = holding();
  run_->point_to_point.tick(held ? 0 : elapsed_ms);
  for (auto& [key, pending] : ops_) {
    pending.waited_total_ms += elapsed_ms;
    if (!held) pending.waited_ms += elapsed_ms;
  }
  ask_the_others();
  say_what_waits(elapsed_ms);
  if (!held) end_what_is_late();
}

/// Of operations that take a while: have the contributors called the same?
void Group::ask_the_others() {
  for (auto& [key, pending] : ops_) {
    if (pending.asked || pending.waited_total_ms < kAskMs || !pending.op->running()) continue;
    pending.asked = true;
    for (const PeerId peer : pending.contributors) {
      if (peer != context_.links.self()) ask_issued(pending, peer);
    }
  }
}

void Group::say_what_waits(std::uint64_t elapsed_ms) {
  std::string last_unsaid;
  waiting_lines_.begin(elapsed_ms);
  for (auto& [key, pending] : ops_) {
    if (pending.waited_total_ms < pending.say_waiting_ms) continue;
    pending.say_waiting_ms *= 2;
    if (waiting_lines_.admit()) {
      log_info(name_ + ": " + waiting_text(pending));
    } else {
      last_unsaid = describe_op(pending);
    }
    pending.said_ms = pending.waited_total_ms;
    pending.said_bytes = pending.op->moved().done;
    note_traffic(pending);
  }
  waiting_lines_.end(name_ + ": more operations", "the newest", std::move(last_unsaid));
}

void Group::end_what_is_late() {
  std::vector<OpKey> late;
  for (auto& [key, pending] : ops_) {
    const std::uint64_t timeout_ms = pending.op->request().timeout_ms;
    if (pending.expired || timeout_ms == 0 || pending.waited_ms < timeout_ms) continue;
    pending.expired = true;
    late.push_back(key);
  }
  for (const OpKey key : late) {
    if (Pending* pending = ops_.find(key)) op_timed_out(*pending);
  }
}

}  // namespace pccl
