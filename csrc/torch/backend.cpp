// See backend.h: the life of a group's Backend, and how its calls are posted. Titles are as the
// profiler's users look for them.
#include "torch/backend.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <utility>

#include "base/log.h"
#include "python/engine_owner.h"
#include "python/gil.h"
#include "torch/device_thread.h"
#include "torch/errors.h"
#include "torch/process_group.h"

namespace pccl {
namespace {

using c10d::OpType;
using Millis = PcclBackend::Millis;
using WorkPtr = PcclBackend::WorkPtr;

std::atomic<std::uint64_t> instances{0};  // of Backends in this process

}  // namespace

// ------------------------------------------------------------------------------- life

PcclBackend::PcclBackend(std::shared_ptr<Engine> engine, GroupId group, std::vector<Handle> members,
                         int rank, int size, Millis timeout)
    : c10d::Backend(rank, size),
      completions_(std::make_shared<Completions>("pccl-complete")),
      elastic_(members.empty()),
      own_(elastic_              ? Handle{}
           : members.size() == 1 ? members.front()
                                 : members.at(static_cast<std::size_t>(rank))),
      instance_(++instances),
      context_(
          std::make_shared<GroupContext>(GroupContext{std::move(engine), group, completions_})),
      members_(std::move(members)),
      timeout_ms_(timeout.count()) {
  context_->engine->set_timeout(group, static_cast<std::uint64_t>(timeout.count()));
  // Callbacks that are due run before the interpreter ends; hanging ones get 5 s.
  Completions* completions = completions_.get();  // there whenever it is called
  EngineOwner::instance().at_shutdown(completions_, [completions] {
    if (!DeviceThread::instance().drain(kDrainMs)) {
      log_warning("a device has not ended its copies after 5 s; not waited for");
    }
    if (!completions->drain(kDrainMs)) {
      log_warning("a callback of an operation is still running after 5 s; not waited for");
    }
  });
}

PcclBackend::~PcclBackend() { shutdown(); }

std::shared_ptr<GroupContext> PcclBackend::context() const {
  const std::lock_guard lock(members_mutex_);
  return context_;
}

PcclBackend::Numbers PcclBackend::numbers() const {
  if (!elastic_) return {rank_, size_, nullptr};
  const auto context = this->context();
  const GroupView view = context->engine->view(context->group);
  return {view.rank, view.size, view.admitted ? view.numbering : nullptr};
}

c10::intrusive_ptr<c10d::Backend::Options> PcclBackend::getBackendOptions() {
  auto options = c10::make_intrusive<GroupOptions>(kBackendName, Millis(timeout_ms_.load()));
  options->group_name = getGroupUid();
  options->group_desc = getGroupDesc();
  options->quantisation = quantisation_;
  return options;
}

void PcclBackend::setTimeout(Millis timeout) {
  TORCH_CHECK(timeout.count() >= 0, "pccl: the time-out must not be negative");
  timeout_ms_ = timeout.count();
  const auto context = this->context();
  context->engine->set_timeout(context->group, static_cast<std::uint64_t>(timeout.count()));
}

c10d::ErrorType PcclBackend::getError() {
  const auto context = this->context();
  const Error failure = context->engine->view(context->group).failure;
  // The engine hears of an abort after the program.
  if (!failure.failed() && aborted_) return c10d::ErrorType::COMM_ERROR;
  if (!failure.failed()) return c10d::ErrorType::SUCCESS;
  if (failure.code == ErrorCode::timed_out) return c10d::ErrorType::TIMEOUT;
  return failure.code == ErrorCode::peer_lost ? c10d::ErrorType::REMOTE_ERROR
                                              : c10d::ErrorType::COMM_ERROR;
}

// ------------------------------------------------------------------------------- posting

/// A collective begins after earlier ones of its group whose memory it shares. The engine sees to
/// it where it uses that memory itself. Where a temporary stands between, the call waits.
void PcclBackend::wait_for_memory(const GroupContext& context, const std::vector<Buffer>& apart,
                                  const Extents& memory) {
  for (const auto& work : context.uncopied->touching(memory)) work->settle();
  if (apart.empty()) return;
  const auto free = context.engine->memory_free(context.group, apart);
  static_cast<void>(wait_interruptibly(*context.engine, *free, std::nullopt));
}

/// The same on a device: the temporaries are filled on the caller's stream, once what earlier
/// collectives write there is on its way.
void PcclBackend::wait_for_writes(const Parts& parts, const Call& call) {
  const Extents sources(call.sources());
  if (sources.empty()) return;
  for (const auto& run : DeviceThread::instance().runs()) {
    if (!run->writes_into(parts.context->group, sources)) continue;
    wait_until(*run, &DeviceRun::wait_settled);
    run->let_stream_follow();
  }
}

std::shared_ptr<GroupContext> PcclBackend::ready() {
  refuse_fork();
  stay_if_ends_elsewhere(Completions::inside());
  if (closed_) raise({ErrorCode::closed, "the group has been destroyed"});
  const auto context = this->context();
  if (context->group == kNotConfigured) {
    raise({ErrorCode::closed, "the group has no members yet: call reconfigure, and wait for it"});
  }
  context->late_failure->raise_once();
  return context;
}

void PcclBackend::begin(Parts& parts, Call& call) {
  if (!parts.context) parts.context = ready();
  if (!parts.collective) return;
  if (!call.device().is_cpu()) return wait_for_writes(parts, call);
  if (call.touches_itself()) call.separate();
  const std::vector<Buffer> apart = call.apart();
  if (apart.empty() && parts.context->uncopied->empty()) return;
  wait_for_memory(*parts.context, apart, Extents(call.all_memory()));
}

void PcclBackend::issue(Parts& parts, Call& call, Millis timeout) {
  const auto& context = parts.context;
  OpRequest request = call.take(completions_);
  // Of no call's own, that of the group; the engine takes 0 for none at all.
  const std::int64_t limit_ms = timeout > Millis::zero() ? timeout.count() : timeout_ms_.load();
  request.timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(limit_ms, 1));
  if (!call.device().is_cpu()) {
    if (!parts.device) {
      if (parts.collective) wait_for_room(call.device(), call.staged());
      parts.device =
          std::make_shared<DeviceRun>(context, call.device(), request.timeout_ms, parts.collective);
    }
    request.gate = parts.device->add(std::move(call.staged()), call.copies(), call.filled_from());
  }
  auto ticket = context->engine->post(context->group, std::move(request));
  abort_hooks_->watch(ticket, completions_);
  if (ticket->done()) {
    // An error of the engine before anything is sent is raised at the call, other errors by wait().
    const Error error = ticket->error();
    if (error.code == ErrorCode::invalid || error.code == ErrorCode::closed ||
        error.code == ErrorCode::not_admitted) {
      raise(error);
    }
  }
  parts.tickets.push_back(std::move(ticket));
  std::move(call.copies().begin(), call.copies().end(), std::back_inserter(parts.copies));
  if (call.device().is_cpu()) {  // the run on a device keeps its own
    std::move(call.temporaries().begin(), call.temporaries().end(),
              std::back_inserter(parts.temporaries));
  }
}

void PcclBackend::add(Parts& parts, Call& call, Millis timeout) {
  begin(parts, call);
  call.fill();
  issue(parts, call, timeout);
}

void PcclBackend::add(Parts& parts, std::list<Call>& calls, Millis timeout) {
  for (Call& call : calls) begin(parts, call);
  for (Call& call : calls) call.fill();
  for (Call& call : calls) issue(parts, call, timeout);
}

WorkPtr PcclBackend::finish(Parts parts, OpType type, const char* title, const Tensors& profiled,
                            Tensors outputs) {
  // A barrier has no outputs, so that no barrier holds the one before it.
  const bool written_later = parts.collective && !parts.device && !outputs.empty() &&
                             (!parts.copies.empty() || parts.after);
  parts.outputs = std::move(outputs);
  if (parts.collective) parts.sequence_number = ++sequence_number_;
  const auto context = parts.context;
  auto work = c10::make_intrusive<PcclWork>(rank_, type, title, profiled, std::move(parts));
  if (written_later) context->uncopied->add(work);
  work->follow_up();
  coalescing_.add(work);
  return work;
}

void PcclBackend::startCoalescing() { coalescing_.start(); }

WorkPtr PcclBackend::endCoalescing() {
  return c10::make_intrusive<CoalescedWork>(rank_, coalescing_.end());
}

WorkPtr PcclBackend::post(Call& call, OpType type, Millis timeout, const Tensors& profiled,
                          Tensors outputs) {
  Parts parts;
  add(parts, call, timeout);
  return finish(std::move(parts), type, title_of(call.kind()), profiled, std::move(outputs));
}

const char* PcclBackend::title_of(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce:
      return "pccl:all_reduce";
    case OpKind::reduce:
      return "pccl:reduce";
    case OpKind::broadcast:
      return "pccl:broadcast";
    case OpKind::all_gather:
      return "pccl:all_gather";
    case OpKind::gather:
      return "pccl:gather";
    case OpKind::scatter:
      return "pccl:scatter";
    case OpKind::reduce_scatter:
      return "pccl:reduce_scatter";
    case OpKind::all_to_all:
      return "pccl:all_to_all";
    case OpKind::barrier:
      return "pccl:barrier";
    case OpKind::send:
      return "pccl:send";
    case OpKind::recv:
      return "pccl:recv";
  }
  return "pccl";
}

}  // namespace pccl
