// See backend.h. The barrier, and the call of the monitored one (monitored_barrier.h).
#include <algorithm>
#include <utility>

#include "torch/backend.h"
#include "torch/device_thread.h"

namespace pccl {

PcclBackend::WorkPtr PcclBackend::barrier(const c10d::BarrierOptions& opts) {
  Call call(OpKind::barrier);
  Parts parts;
  parts.context = ready();
  // Calls before the barrier end before it in the engine; here their results are written too.
  if (auto before = parts.context->uncopied->all(); !before.empty()) {
    parts.after = [before = std::move(before)] {
      for (const auto& work : before) static_cast<void>(work->isCompleted());
    };
  }
  parts.before = DeviceThread::instance().runs();
  std::erase_if(parts.before,
                [&](const auto& run) { return run->group() != parts.context->group; });
  add(parts, call, opts.timeout);
  return finish(std::move(parts), c10d::OpType::BARRIER, "pccl:barrier", {}, {});
}

void PcclBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  static_cast<void>(ready());  // for a fork, and a group that is closed
  const Millis asked =
      opts.timeout == c10d::kUnsetTimeout ? Millis(timeout_ms_.load()) : opts.timeout;
  monitored_barrier_.pass(std::min(asked, kLongest), wait_all_ranks);
}

PcclBackend::WorkPtr PcclBackend::message(OpKind kind, at::Tensor& tensor, int peer,
                                          std::uint64_t tag, Millis timeout) {
  Call call(kind, tensor);
  if (kind == OpKind::send) {
    call.input(tensor);
  } else {
    call.output(tensor);
  }
  call.message(peer, tag);
  Parts parts;
  parts.collective = false;
  add(parts, call, timeout);
  return finish(std::move(parts), kind == OpKind::send ? c10d::OpType::SEND : c10d::OpType::RECV,
                nullptr, {}, {});
}

}  // namespace pccl
