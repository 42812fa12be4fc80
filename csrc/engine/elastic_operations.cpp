// What becomes of the operations of the elastic group once they are issued: the core hears what
// happened to them here, and says which run, are restored, committed or fail. See elastic_group.h.
#include <utility>

#include "base/log.h"
#include "engine/elastic_group.h"

namespace pccl {

// ------------------------------------------------------------------------------- told to the core

void ElasticGroup::op_complete(Pending& pending) { feed(peer::Completed{pending.op->key()}); }

/// What is done here may be committed already, and cannot fail then. Whoever is not done with it
/// hears of the difference from us, and it fails; else the next operation does, as `fail_late`
/// says.
void ElasticGroup::op_mismatch(OpKey op, PeerId, const std::string& text) {
  const auto known = core_.ops.find(op);
  if (known != core_.ops.end() && known->second.phase == peer::Phase::issued) {
    return feed(peer::FoundMismatch{op, text});
  }
  if (!late_) late_ = Late{op, "operation " + numbered(op) + ", which was done before: " + text};
  Pending* pending = ops_.find(op);
  if (pending == nullptr) return fail_late();
  if (std::exchange(pending->asked_back, true)) return;
  for (const PeerId peer : pending->contributors) {
    if (peer != context_.links.self()) ask_issued(*pending, peer);
  }
}

/// The ranks differ about an operation that was committed: the oldest one that is not done fails.
void ElasticGroup::fail_late() {
  if (!late_ || ops_.find(late_->op) != nullptr) return;
  for (const auto& [key, op] : core_.ops) {
    if (op.phase == peer::Phase::issued) return feed(peer::FoundMismatch{key, late_->text});
  }
}

void ElasticGroup::op_starved(Pending& pending, const Error& error) {
  feed(peer::FoundMismatch{pending.op->key(), error.text, error.code});
}

void ElasticGroup::op_timed_out(Pending& pending) {
  log_warning(waiting_text(pending) + "; its time-out of " +
              std::to_string(pending.op->request().timeout_ms) +
              " ms is over: who has not called it is evicted");
  pending.op->expired = false;
  pending.op->waited_ms = 0;
  feed(peer::TimedOut{pending.op->key()});
}

// ----------------------------------------------------------------------------- said by the core

void ElasticGroup::on(const peer::RunOp& a) {
  Pending& pending = ops_.at(a.op);
  if (!pending.contributors.empty()) {
    ++context_.counters.ops_replayed;
    log_info(describe(pending) + " is replayed among " + std::to_string(members().size()) +
             " members");
  }
  if (late_ && late_->op == a.op) late_.reset();  // it is found again
  run(a.op);
  fail_late();
}

void ElasticGroup::on(const peer::RestoreOp& a) {
  Pending* pending = ops_.find(a.op);
  if (pending == nullptr) return;
  stop(*pending);
  pending->op->restore();
}

void ElasticGroup::on(const peer::CommitOp& a) {
  stall_.forget();
  if (const Pending* pending = ops_.find(a.op)) note_contributors(*pending);
  finish(a.op, {});
  update_renumber();
  fail_late();
}

void ElasticGroup::on(const peer::FailOp& a) {
  late_.reset();
  Pending* pending = ops_.find(a.op);
  if (pending == nullptr) return;
  stop(*pending);
  pending->op->restore();
  Error error = a.error;
  error.text = describe_wait(*pending) + ": " + error.text;
  run_->early.drop(a.op);
  finish(a.op, std::move(error));
}

void ElasticGroup::returned(OpKey op) {
  feed(peer::Returned{op});
  update_renumber();
}

/// May the next return of a committed operation change rank and size?
void ElasticGroup::update_renumber() {
  bool differs = members().size() != numbering_->size();
  for (std::size_t i = 0; !differs && i < members().size(); ++i)
    differs = members()[i] != (*numbering_)[i];
  renumber_pending->store(differs && !core_.has_boundaries);
}

}  // namespace pccl
