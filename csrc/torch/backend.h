// c10d's Backend over a group of the engine: one override for each call of torch.distributed, each
// of which checks its arguments, fills an OpRequest and posts it. Algorithms, membership and
// time-outs are the engine's; nothing here waits, but for monitoredBarrier, which c10d wants to
// block.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "engine/engine.h"
#include "torch/convert.h"
#include "torch/work.h"

namespace pccl {

inline constexpr const char* kBackendName = "pccl";

/// Thread-safe, as far as the order of collectives is the same at all ranks. Closes its group when
/// it is destroyed.
class PcclBackend final : public c10d::Backend {
 public:
  using Millis = std::chrono::milliseconds;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  PcclBackend(std::shared_ptr<Engine> engine, GroupId group, int rank, int size, Millis timeout,
              bool elastic);
  ~PcclBackend() override;

  /// Rank and size as the caller sees them now; `getRank` and `getSize` are constants up to
  /// torch 2.13.
  struct Numbers {
    std::int32_t rank = 0;
    std::int32_t size = 1;
  };
  [[nodiscard]] Numbers numbers() const;
  [[nodiscard]] const GroupContext& context() const { return *context_; }
  [[nodiscard]] bool elastic() const { return elastic_; }

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  /// Sum of sparse COO tensors, in place; the result is coalesced. Exchanges the numbers of
  /// elements before it returns, indices and values behind the Work. An elastic group does not
  /// replay it.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  /// What is issued between the two, on this thread, is one Work. (`supportsCoalescing` stays
  /// false: with it `batch_isend_irecv` returns one Work for all, which gloo's users do not
  /// expect.)
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  bool supportsSplitting() const override { return !elastic_; }
  /// Collective over this group; `ranks` are of it. Null at ranks that are not among them.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;

  void setSequenceNumberForGroup() override {}  // counted from 0 at every rank
  uint64_t getSequenceNumberForGroup() override { return sequence_number_; }
  void setTimeout(Millis timeout) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

 private:
  using Parts = PcclWork::Parts;

  /// Posts `call` as one part of an operation; throws what the engine refuses at once.
  void add(Parts& parts, Call& call, Millis timeout);
  WorkPtr finish(Parts parts, c10d::OpType type, const char* title, const Tensors& profiled,
                 Tensors outputs);
  /// The two for an operation of one part.
  WorkPtr post(Call& call, c10d::OpType type, Millis timeout, const Tensors& profiled,
               Tensors outputs);
  WorkPtr point_to_point(OpKind kind, c10d::OpType type, Tensors& tensors, int peer, int tag);
  /// One byte of the monitored barrier.
  WorkPtr message(OpKind kind, at::Tensor& token, int peer, std::uint64_t tag, Millis timeout);
  void report_to_root(std::uint64_t tag, Millis timeout);
  void collect_at_root(std::uint64_t tag, Millis timeout, bool wait_all_ranks);

  const std::shared_ptr<GroupContext> context_;
  const bool elastic_;
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<std::uint64_t> sequence_number_{0};
  std::atomic<std::uint64_t> monitored_barriers_{0};
  std::atomic<bool> closed_{false};
  std::mutex coalescing_mutex_;
  std::map<std::thread::id, std::vector<WorkPtr>> coalescing_;  // by the thread that issues
};

}  // namespace pccl
