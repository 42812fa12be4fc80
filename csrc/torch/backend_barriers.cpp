// See backend.h. The barrier, and the monitored one, which names the ranks that do not come.
#include <c10/util/irange.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.h"
#include "torch/backend.h"
#include "torch/errors.h"

namespace pccl {
namespace {

constexpr std::uint64_t kMonitorTag = 1ULL << 40;  // above all tags of users, which are an int

}  // namespace

PcclBackend::WorkPtr PcclBackend::barrier(const c10d::BarrierOptions& opts) {
  Call call(OpKind::barrier);
  Parts parts;
  // Calls before the barrier end before it in the engine; here their copies back end too.
  auto before = std::make_shared<std::vector<WorkPtr>>();
  {
    const std::lock_guard lock(coalescing_mutex_);
    for (const auto& weak : copying_) {
      if (auto work = weak.lock()) before->push_back(std::move(work));
    }
  }
  if (!before->empty()) {
    parts.after = [before] {
      for (const WorkPtr& work : std::exchange(*before, {})) static_cast<void>(work->isCompleted());
    };
  }
  add(parts, call, opts.timeout);
  return finish(std::move(parts), c10d::OpType::BARRIER, "pccl:barrier", {}, {});
}

// Rank 0 hears from all ranks, then answers all, so that it can name the ranks that did not come.
void PcclBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const Millis timeout =
      opts.timeout == c10d::kUnsetTimeout ? Millis(timeout_ms_.load()) : opts.timeout;
  const std::uint64_t tag = kMonitorTag + 2 * monitored_barriers_++;
  if (numbers().rank == 0) {
    collect_at_root(tag, timeout, wait_all_ranks);
  } else {
    report_to_root(tag, timeout);
  }
}

PcclBackend::WorkPtr PcclBackend::message(OpKind kind, at::Tensor& token, int peer,
                                          std::uint64_t tag, Millis timeout) {
  Call call(kind, token);
  if (kind == OpKind::send) {
    call.input(token);
  } else {
    call.output(token);
  }
  call.message(peer, tag);
  Parts parts;
  parts.collective = false;
  add(parts, call, timeout);
  return finish(std::move(parts), kind == OpKind::send ? c10d::OpType::SEND : c10d::OpType::RECV,
                nullptr, {}, {});
}

void PcclBackend::report_to_root(std::uint64_t tag, Millis timeout) {
  at::Tensor token = at::zeros({1}, at::kByte);
  try {
    message(OpKind::send, token, 0, tag, timeout)->wait(timeout);
    message(OpKind::recv, token, 0, tag + 1, timeout)->wait(timeout);
  } catch (const PcclError& error) {
    raise({error.code(), "Rank " + std::to_string(numbers().rank) +
                             " successfully reached monitoredBarrier, but received errors while "
                             "waiting for send/recv from rank 0. Please check rank 0 logs for "
                             "faulty rank. (" +
                             error.what() + ")"});
  }
}

void PcclBackend::collect_at_root(std::uint64_t tag, Millis timeout, bool wait_all_ranks) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const std::int32_t size = numbers().size;
  std::vector<at::Tensor> tokens(static_cast<std::size_t>(size));
  std::vector<WorkPtr> works(static_cast<std::size_t>(size));
  for (const auto rank : c10::irange(1, size)) {
    const auto place = static_cast<std::size_t>(rank);
    tokens[place] = at::zeros({1}, at::kByte);
    works[place] = message(OpKind::recv, tokens[place], rank, tag, timeout);
  }
  std::string missing;
  ErrorCode code = ErrorCode::timed_out;
  for (const auto rank : c10::irange(1, size)) {
    const auto left =
        std::chrono::duration_cast<Millis>(deadline - std::chrono::steady_clock::now());
    WorkPtr& work = works[static_cast<std::size_t>(rank)];
    const bool late = left <= Millis::zero() && !work->isCompleted();
    if (late && missing.empty() && !wait_all_ranks) {
      raise({ErrorCode::timed_out, "[Rank 0]: Rank 0 timed out in monitoredBarrier after " +
                                       std::to_string(timeout.count()) + " ms, before rank " +
                                       std::to_string(rank) + " came"});
    }
    try {
      work->wait(std::max(left, Millis(1)));
    } catch (const PcclError& error) {
      code = error.code();
      add_to_list(missing, std::to_string(rank));
      if (!wait_all_ranks) break;
    }
  }
  if (!missing.empty()) {
    raise({code, std::string("[Rank 0]: ") + (wait_all_ranks ? "Ranks " : "Rank ") + missing +
                     " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) +
                     " ms"});
  }
  for (const auto rank : c10::irange(1, size)) {
    const auto place = static_cast<std::size_t>(rank);
    works[place] = message(OpKind::send, tokens[place], rank, tag + 1, timeout);
  }
  for (const auto rank : c10::irange(1, size)) works[static_cast<std::size_t>(rank)]->wait(timeout);
}

}  // namespace pccl
