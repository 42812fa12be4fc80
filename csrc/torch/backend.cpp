// See backend.h. The rules that each override keeps: every check before the first post; sums of
// lengths and roots in the numbering that the caller sees; titles as the profiler's users look for
// them.
#include "torch/backend.h"

#include <ATen/Functions.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <string>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "python/engine_owner.h"
#include "python/gil.h"
#include "torch/device_thread.h"
#include "torch/errors.h"
#include "torch/process_group.h"
#include "torch/quantise.h"

namespace pccl {
namespace {

using c10d::OpType;
using Millis = PcclBackend::Millis;
using WorkPtr = PcclBackend::WorkPtr;

constexpr int kAnyRank = -1;
std::atomic<std::uint64_t> instances{0};     // of Backends in this process
constexpr std::size_t kCoalescedMin = 1024;  // of one thread, before completed ones are dropped
constexpr std::uint64_t kDrainMs = 5000;     // for callbacks of users, at the end of the process

/// Titles of the profiler's events, in gloo's words, as torch's own tests expect them.
const char* title_of(OpKind kind) {
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

const at::Tensor& single(OpKind kind, const Tensors& tensors) {
  const char* words = "requires a single tensor";
  if (kind == OpKind::send || kind == OpKind::recv) words = "takes a single tensor";
  if (kind == OpKind::gather || kind == OpKind::all_gather) {
    words = "requires a single-element input tensor list";
  }
  if (kind == OpKind::scatter || kind == OpKind::reduce_scatter) {
    words = "requires a single-element output tensor list";
  }
  TORCH_CHECK(tensors.size() == 1, "pccl ", kind_name(kind), ": ", words, ", got ", tensors.size());
  return tensors.front();
}

const Tensors& single(OpKind kind, const std::vector<Tensors>& lists, std::int32_t size) {
  TORCH_CHECK(kind != OpKind::all_gather || lists.size() == 1,
              "pccl all_gather: requires input/output tensor lists to have the same length (1, ",
              "got ", lists.size(), ")");
  TORCH_CHECK(lists.size() == 1, "pccl ", kind_name(kind), ": requires a single-element ",
              kind == OpKind::gather ? "output" : "input", " list containing a list with ", size,
              " tensors. Got ", lists.size(), " lists");
  return lists.front();
}

/// The places of the tensors of each type, types in the order of their first tensor.
std::vector<std::vector<std::size_t>> places_by_type(const Tensors& tensors) {
  std::vector<std::vector<std::size_t>> places;
  for (const std::size_t i : c10::irange(tensors.size())) {
    const auto same = std::find_if(places.begin(), places.end(), [&](const auto& group) {
      return tensors[group.front()].scalar_type() == tensors[i].scalar_type();
    });
    if (same == places.end()) {
      places.push_back({i});
    } else {
      same->push_back(i);
    }
  }
  return places;
}

Tensors pick(const Tensors& tensors, const std::vector<std::size_t>& places) {
  Tensors picked;
  for (const std::size_t i : places) picked.push_back(tensors[i]);
  return picked;
}

void same_lengths(OpKind kind, const Tensors& outputs, const Tensors& inputs) {
  TORCH_CHECK(!inputs.empty(), "pccl ", kind_name(kind), ": requires a non-empty tensor list");
  TORCH_CHECK(inputs.size() == outputs.size(), "pccl ", kind_name(kind),
              ": invalid output size: (expected length ", inputs.size(), ", got ", outputs.size(),
              ")");
}

/// Elements for each rank, by the lengths along dimension 0 (none: equal parts).
std::vector<std::int64_t> numels_by_rank(const at::Tensor& tensor,
                                         const std::vector<std::int64_t>& lengths,
                                         std::int32_t size) {
  c10d::checkSplitSizes(lengths, tensor, size);
  if (lengths.empty()) return equal_parts(tensor.numel(), size);
  const std::int64_t row = tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0);
  std::vector<std::int64_t> numels;
  for (const std::int64_t length : lengths) {
    TORCH_CHECK(length >= 0, "Split sizes must not be negative, got ", length);
    numels.push_back(length * row);
  }
  return numels;
}

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

std::shared_ptr<GroupContext> PcclBackend::ready() {
  if (EngineOwner::instance().forked()) raise(forked_error());
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
  if (!parts.collective || !call.device().is_cpu()) return;
  if (call.touches_itself()) call.separate();
  const std::vector<Buffer> apart = call.apart();
  if (apart.empty() && parts.context->uncopied->empty()) return;
  wait_for_memory(*parts.context, apart, Extents(call.all_memory()));
}

void PcclBackend::issue(Parts& parts, Call& call, Millis timeout) {
  const auto& context = parts.context;
  OpRequest request = call.take(completions_);
  const std::int64_t limit_ms =
      timeout == c10d::kUnsetTimeout ? timeout_ms_.load() : timeout.count();
  request.timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(limit_ms, 0));
  if (!call.device().is_cpu()) {
    if (!parts.device) {
      if (parts.collective) wait_for_room(call.device(), call.staged());
      parts.device =
          std::make_shared<DeviceRun>(context, call.device(), request.timeout_ms, parts.collective);
    }
    request.gate = parts.device->add(std::move(call.staged()), call.copies());
  }
  auto ticket = context->engine->post(context->group, std::move(request));
  watch(ticket);
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
  if (call.device().is_cpu()) call.fill();
  issue(parts, call, timeout);
}

void PcclBackend::add(Parts& parts, std::list<Call>& calls, Millis timeout) {
  for (Call& call : calls) begin(parts, call);
  for (Call& call : calls) {
    if (call.device().is_cpu()) call.fill();
  }
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
  const std::lock_guard lock(coalescing_mutex_);
  const auto coalescing = coalescing_.find(std::this_thread::get_id());
  if (coalescing == coalescing_.end()) return work;
  Coalescing& issued = coalescing->second;
  // An exception may have skipped endCoalescing, and then the list has no end.
  if (issued.works.size() >= issued.sweep_at) {
    std::erase_if(issued.works,
                  [](const WorkPtr& one) { return one->isCompleted() && one->isSuccess(); });
    issued.sweep_at = std::max(kCoalescedMin, 2 * issued.works.size());
  }
  issued.works.push_back(work);
  return work;
}

void PcclBackend::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_[std::this_thread::get_id()] = {};  // an exception may have left some behind
}

WorkPtr PcclBackend::endCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  auto issued = coalescing_.extract(std::this_thread::get_id());
  TORCH_CHECK(!issued.empty(), "pccl: endCoalescing without startCoalescing");
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(issued.mapped().works));
}

WorkPtr PcclBackend::post(Call& call, OpType type, Millis timeout, const Tensors& profiled,
                          Tensors outputs) {
  Parts parts;
  add(parts, call, timeout);
  return finish(std::move(parts), type, title_of(call.kind()), profiled, std::move(outputs));
}

// ------------------------------------------------------------------------------- collectives

WorkPtr PcclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = single(OpKind::broadcast, tensors);
  Call call(OpKind::broadcast, tensor);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  if (opts.rootTensor != 0) call.fail("invalid root tensor: " + std::to_string(opts.rootTensor));
  if (opts.rootRank == group.rank) {
    call.in_out(tensor);
  } else {
    call.output(tensor);
  }
  call.count(tensor.numel());
  return post(call, OpType::BROADCAST, opts.timeout, tensors, tensors);
}

WorkPtr PcclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = single(OpKind::all_reduce, tensors);
  const QuantisedCall asked = take_quantised_call();
  const bool exact = asked.how.value_or(Quantisation::none) == Quantisation::none;
  if (tensor.layout() == at::kSparse && exact) return allreduce_sparse(tensors, opts);
  Call call(OpKind::all_reduce, tensor);
  call.reduce(opts.reduceOp);
  call.quantise(quantisation_, asked.how);
  call.in_out(tensor);
  call.count(tensor.numel());
  if (asked.sum_error.defined()) call.keep_sum_error(asked.sum_error);
  return post(call, OpType::ALLREDUCE, opts.timeout, tensors, tensors);
}

WorkPtr PcclBackend::allreduce_coalesced(Tensors& tensors,
                                         const c10d::AllreduceCoalescedOptions& opts) {
  constexpr OpKind kKind = OpKind::all_reduce;
  same_lengths(kKind, tensors, tensors);
  for (const at::Tensor& tensor : tensors) {
    Call check(kKind, tensor);
    check.reduce(opts.reduceOp);
    check.writes(tensor);
  }
  std::list<Call> calls;
  for (const auto& places : places_by_type(tensors)) {
    const Tensors group = pick(tensors, places);
    Call& call = calls.emplace_back(kKind, group.front());
    call.reduce(opts.reduceOp);
    call.quantise(quantisation_);
    const at::Tensor flat = call.joined(group);
    call.in_out(flat);
    call.count(flat.numel());
    std::int64_t offset = 0;
    for (const at::Tensor& tensor : group) {
      call.copies_back(tensor, flat.narrow(0, offset, tensor.numel()));
      offset += tensor.numel();
    }
  }
  Parts parts;
  add(parts, calls, opts.timeout);
  return finish(std::move(parts), OpType::ALLREDUCE_COALESCED, title_of(kKind), tensors, tensors);
}

WorkPtr PcclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = single(OpKind::reduce, tensors);
  Call call(OpKind::reduce, tensor);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  if (opts.rootTensor != 0) call.fail("invalid root tensor: " + std::to_string(opts.rootTensor));
  call.reduce(opts.reduceOp);
  if (opts.rootRank == group.rank) {
    call.in_out(tensor);
  } else {
    call.input(tensor);
  }
  call.count(tensor.numel());
  return post(call, OpType::REDUCE, opts.timeout, tensors, tensors);
}

WorkPtr PcclBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                               const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = single(OpKind::all_gather, inputs);
  Call call(OpKind::all_gather, input);
  const Numbers group = numbers();
  const Tensors& list = single(OpKind::all_gather, outputs, group.size);
  call.numbered(group.numbering, group.rank);
  call.one_per_rank(list, group.size, group.rank, input.numel());
  call.input(input);
  call.outputs(list);
  call.count_if_equal(list);
  return post(call, OpType::ALLGATHER, opts.timeout, inputs, list);
}

WorkPtr PcclBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::AllgatherOptions& opts) {
  Call call(OpKind::all_gather, input);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.same_type(output);
  call.same_numel(output, input.numel() * group.size);
  call.input(input);
  call.output_parts(output, equal_parts(output.numel(), group.size));
  call.count(input.numel());
  return post(call, OpType::_ALLGATHER_BASE, opts.timeout, {input}, {output});
}

WorkPtr PcclBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) {
  constexpr OpKind kKind = OpKind::all_gather;
  same_lengths(kKind, outputs, inputs);
  const Numbers group = numbers();
  for (const std::size_t i : c10::irange(inputs.size())) {
    const Call check(kKind, inputs[i]);
    check.same_type(outputs[i]);
    check.same_numel(outputs[i], inputs[i].numel() * group.size);
    if (!outputs[i].is_contiguous()) check.fail("outputs have to be contiguous");
    check.writes(outputs[i]);
  }
  std::list<Call> calls;
  for (const auto& places : places_by_type(inputs)) {
    Call& call = calls.emplace_back(kKind, inputs[places.front()]);
    call.numbered(group.numbering, group.rank);
    const at::Tensor from = call.joined(pick(inputs, places));
    const at::Tensor to = at::empty({group.size, from.numel()}, from.options());
    call.input(from);
    call.output_parts(to, equal_parts(to.numel(), group.size));
    call.count(from.numel());
    std::int64_t offset = 0;
    for (const std::size_t i : places) {
      const std::int64_t numel = inputs[i].numel();
      call.rows_copied_back(outputs[i], to.narrow(1, offset, numel));
      offset += numel;
    }
  }
  Parts parts;
  add(parts, calls, opts.timeout);
  return finish(std::move(parts), OpType::ALLGATHER_COALESCED, title_of(kKind), inputs, outputs);
}

WorkPtr PcclBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& opts) {
  constexpr OpKind kKind = OpKind::all_gather;
  const Numbers group = numbers();
  TORCH_CHECK(outputs.size() == static_cast<std::size_t>(group.size),
              "pccl all_gather: output lists should be equal to world size");
  for (const Tensors& list : outputs) {
    same_lengths(kKind, list, inputs);
    for (const std::size_t i : c10::irange(inputs.size())) {
      const Call check(kKind, inputs[i]);
      check.same_type(list[i]);
      check.same_numel(list[i], inputs[i].numel());
      check.writes(list[i]);
    }
  }
  std::list<Call> calls;
  Tensors flat_outputs;
  for (const std::size_t i : c10::irange(inputs.size())) {
    Call& call = calls.emplace_back(kKind, inputs[i]);
    call.numbered(group.numbering, group.rank);
    call.input(inputs[i]);
    for (const Tensors& list : outputs) call.output(list[i]);
    call.count(inputs[i].numel());
  }
  for (const Tensors& list : outputs) {
    flat_outputs.insert(flat_outputs.end(), list.begin(), list.end());
  }
  Parts parts;
  add(parts, calls, opts.timeout);
  return finish(std::move(parts), OpType::ALLGATHER_COALESCED, title_of(kKind), inputs,
                std::move(flat_outputs));
}

WorkPtr PcclBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::GatherOptions& opts) {
  const at::Tensor& input = single(OpKind::gather, inputs);
  Call call(OpKind::gather, input);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  Tensors list;
  if (opts.rootRank == group.rank) {
    list = single(OpKind::gather, outputs, group.size);
    call.one_per_rank(list, group.size, group.rank, input.numel());
    call.outputs(list);
  } else if (!outputs.empty()) {
    call.fail("requires empty output on non-root");
  }
  call.input(input);
  return post(call, OpType::GATHER, opts.timeout, inputs, std::move(list));
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
WorkPtr PcclBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                   const c10d::GatherOptions& opts) {
  Call call(OpKind::gather, input);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  Tensors outputs;
  if (opts.rootRank == group.rank) {
    call.same_type(output);
    call.same_numel(output, input.numel() * group.size);
    call.output_parts(output, equal_parts(output.numel(), group.size));
    outputs.push_back(output);
  }
  call.input(input);
  call.count(input.numel());
  return post(call, OpType::GATHER, opts.timeout, {input}, std::move(outputs));
}
#endif

WorkPtr PcclBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ScatterOptions& opts) {
  const at::Tensor& output = single(OpKind::scatter, outputs);
  Call call(OpKind::scatter, output);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  Tensors list;
  if (opts.rootRank == group.rank) {
    list = single(OpKind::scatter, inputs, group.size);
    call.one_per_rank(list, group.size, group.rank, output.numel());
    call.inputs(list);
  } else if (!inputs.empty()) {
    call.fail("requires empty input on non-root");
  }
  call.output(output);
  return post(call, OpType::SCATTER, opts.timeout, list, outputs);
}

WorkPtr PcclBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = single(OpKind::reduce_scatter, outputs);
  Call call(OpKind::reduce_scatter, output);
  const Numbers group = numbers();
  const Tensors& list = single(OpKind::reduce_scatter, inputs, group.size);
  call.numbered(group.numbering, group.rank);
  call.reduce(opts.reduceOp);
  call.one_per_rank(list, group.size, group.rank, output.numel());
  call.inputs(list);
  call.output(output);
  call.count_if_equal(list);
  return post(call, OpType::REDUCE_SCATTER, opts.timeout, list, outputs);
}

WorkPtr PcclBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& opts) {
  Call call(OpKind::reduce_scatter, output);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.reduce(opts.reduceOp);
  call.same_type(input);
  call.same_numel(input, output.numel() * group.size);
  call.input_parts(input, equal_parts(input.numel(), group.size));
  call.output(output);
  call.count(output.numel());
  return post(call, OpType::_REDUCE_SCATTER_BASE, opts.timeout, {input}, {output});
}

WorkPtr PcclBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  constexpr OpKind kKind = OpKind::reduce_scatter;
  same_lengths(kKind, outputs, inputs);
  const Numbers group = numbers();
  for (const std::size_t i : c10::irange(inputs.size())) {
    Call check(kKind, outputs[i]);
    check.reduce(opts.reduceOp);
    check.same_type(inputs[i]);
    check.same_numel(inputs[i], outputs[i].numel() * group.size);
    check.writes(outputs[i]);
  }
  std::list<Call> calls;
  for (const auto& places : places_by_type(outputs)) {
    Call& call = calls.emplace_back(kKind, outputs[places.front()]);
    call.numbered(group.numbering, group.rank);
    call.reduce(opts.reduceOp);
    const at::Tensor from = call.joined(pick(inputs, places), group.size);
    const at::Tensor to = at::empty({from.size(1)}, from.options());
    call.input_parts(from, equal_parts(from.numel(), group.size));
    call.output(to);
    call.count(to.numel());
    std::int64_t offset = 0;
    for (const std::size_t i : places) {
      const std::int64_t numel = outputs[i].numel();
      call.copies_back(outputs[i], to.narrow(0, offset, numel));
      offset += numel;
    }
  }
  Parts parts;
  add(parts, calls, opts.timeout);
  return finish(std::move(parts), OpType::_REDUCE_SCATTER_BASE, title_of(kKind), inputs, outputs);
}

WorkPtr PcclBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                   std::vector<std::int64_t>& output_splits,
                                   std::vector<std::int64_t>& input_splits,
                                   const c10d::AllToAllOptions& opts) {
  Call call(OpKind::all_to_all, input);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.same_type(output);
  const auto from = numels_by_rank(input, input_splits, group.size);
  const auto to = numels_by_rank(output, output_splits, group.size);
  if (input_splits.empty() && output_splits.empty()) call.same_numel(output, input.numel());
  const auto own = static_cast<std::size_t>(group.rank);
  if (from[own] != to[own]) {
    call.fail("rank " + std::to_string(group.rank) + " sends itself " + std::to_string(from[own]) +
              " elements and wants to receive " + std::to_string(to[own]) +
              ": its own input split and output split have to be equal");
  }
  call.input_parts(input, from);
  call.output_parts(output, to);
  return post(call, OpType::ALLTOALL_BASE, opts.timeout, {input}, {output});
}

WorkPtr PcclBackend::alltoall(Tensors& outputs, Tensors& inputs,
                              const c10d::AllToAllOptions& opts) {
  const Numbers group = numbers();
  TORCH_CHECK(!inputs.empty(), "pccl all_to_all: requires a non-empty tensor list");
  Call call(OpKind::all_to_all, inputs.front());
  call.numbered(group.numbering, group.rank);
  call.length(inputs, group.size, "input");
  call.same_type(inputs);
  call.one_per_rank(outputs, group.size, group.rank,
                    inputs[static_cast<std::size_t>(group.rank)].numel());
  call.inputs(inputs);
  call.outputs(outputs);
  return post(call, OpType::ALLTOALL, opts.timeout, inputs, outputs);
}

// ------------------------------------------------------------------------------- point to point

WorkPtr PcclBackend::send(Tensors& tensors, int destination, int tag) {
  return point_to_point(OpKind::send, OpType::SEND, tensors, destination, tag);
}

WorkPtr PcclBackend::recv(Tensors& tensors, int source, int tag) {
  return point_to_point(OpKind::recv, OpType::RECV, tensors, source, tag);
}

WorkPtr PcclBackend::recvAnysource(Tensors& tensors, int tag) {
  return point_to_point(OpKind::recv, OpType::RECVANYSOURCE, tensors, kAnyRank, tag);
}

WorkPtr PcclBackend::point_to_point(OpKind kind, OpType type, Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = single(kind, tensors);
  Call call(kind, tensor);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  if (tag < 0) call.fail("Tag must be nonnegative, got " + std::to_string(tag));
  if (!tensor.is_contiguous()) call.fail("input tensor has to be contiguous");
  if (type != OpType::RECVANYSOURCE && (peer < 0 || peer >= group.size)) {
    call.fail("invalid rank: " + std::to_string(peer));
  }
  if (peer == group.rank) call.fail("the other rank is this one: " + std::to_string(peer));
  if (kind == OpKind::send) {
    call.input(tensor);
  } else {
    call.output(tensor);
  }
  call.message(peer, static_cast<std::uint64_t>(tag));
  Parts parts;
  parts.collective = false;
  add(parts, call, c10d::kUnsetTimeout);
  const char* title = type == OpType::RECVANYSOURCE ? "pccl:recvAnySource" : title_of(kind);
  return finish(std::move(parts), type, title, tensors, tensors);
}

}  // namespace pccl
