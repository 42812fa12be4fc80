// c10d's Backend over a group of the engine: one override for each call of torch.distributed, each
// of which checks its arguments, fills an OpRequest and posts it. Algorithms, membership and
// time-outs are the engine's; nothing here waits, but for monitoredBarrier, which c10d wants to
// block.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "base/quantisation.h"
#include "engine/engine.h"
#include "torch/abort_hooks.h"
#include "torch/coalescing.h"
#include "torch/convert.h"
#include "torch/monitored_barrier.h"
#include "torch/work.h"

namespace pccl {

inline constexpr const char* kBackendName = "pccl";

inline constexpr GroupId kNotConfigured{};  // the number of a group that has no members yet

/// The options of a group, for c10d; `split_group` copies them for the new group.
struct GroupOptions final : c10d::Backend::Options {
  using Options::Options;
  Quantisation quantisation = Quantisation::none;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  c10::intrusive_ptr<Options> clone() const override {
    return c10::make_intrusive<GroupOptions>(*this);
  }
#endif
};

/// Thread-safe, if the program sees to it that collectives have the same order at all ranks. The
/// destructor closes the group.
class PcclBackend final : public c10d::Backend {
 public:
  using Millis = std::chrono::milliseconds;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// `members`: of a fixed group its members by rank; of a group that is not configured yet this
  /// process; of an elastic group none.
  PcclBackend(std::shared_ptr<Engine> engine, GroupId group, std::vector<Handle> members, int rank,
              int size, Millis timeout);
  ~PcclBackend() override;

  /// Rank and size as the caller sees them now. (`getRank` and `getSize` are constants up to torch
  /// 2.13.)
  struct Numbers {
    std::int32_t rank = 0;
    std::int32_t size = 1;
    Numbering numbering;  // null in a group whose numbering never changes, and at a newcomer
  };
  [[nodiscard]] Numbers numbers() const;
  /// The context of the present configuration.
  [[nodiscard]] std::shared_ptr<GroupContext> context() const;
  [[nodiscard]] bool elastic() const { return elastic_; }
  /// The quantisation of all-reduces that can be quantised, unless a call says otherwise.
  [[nodiscard]] Quantisation quantisation() const { return quantisation_; }
  void set_quantisation(Quantisation how) { quantisation_ = how; }

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  /// Sum of sparse COO tensors, in place; the result is coalesced. Exchanges the numbers of
  /// elements before the call returns; indices and values are exchanged while the Work is pending.
  /// An elastic group does not replay it.
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
  /// A send, or a receive, with a tag that may be above those of programs.
  WorkPtr message(OpKind kind, at::Tensor& tensor, int peer, std::uint64_t tag, Millis timeout);

  /// The operations that this thread issues between the two calls are one Work.
  /// (`supportsCoalescing` stays false: otherwise `batch_isend_irecv` returns one Work for all its
  /// operations, which programs for gloo do not expect.)
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  bool supportsSplitting() const override { return !elastic_; }
  /// Collective over this group; `ranks` are ranks of this group. Null at a rank that is not in
  /// `ranks`.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;
  bool supportsShrinking() const override { return !elastic_; }
  /// Called by all ranks but the excluded ones, with the same list. Needs neither a store nor an
  /// excluded rank. `flags`: 1 aborts this group first.
  c10::intrusive_ptr<Backend> shrink(const std::vector<std::int64_t>& ranks_to_exclude, int flags,
                                     const c10::intrusive_ptr<Options>& opts) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input,
                        const c10d::GatherOptions& opts) override;
  bool supportsReconfigure() const override { return !elastic_; }
  /// The handle by which other processes reach this group here; the same as long as the group
  /// lives.
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  /// Ends the present configuration (its pending operations fail) and makes another one of
  /// `opts.handles`. The call is refused, and ends nothing, if the uuid was used before, or if the
  /// handles are not pccl's, name a process twice or do not name this process. Complete when all
  /// members have called it; if a member gives up, the call fails at the others at once.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif
#ifdef C10D_BACKEND_HAS_HOOKS
  /// The hooks are called when an operation has failed by a lost rank or a time-out, and before
  /// abort(). supportsAbortHooks(), from torch 2.15 on, stays false: torch's flight recorder would
  /// hook in, and write its trace for seconds, in a thread that aborts a process that ends then.
  void registerAbortHook(std::int64_t hook_id, c10d::AbortHook hook) override;
  void unregisterAbortHook(std::int64_t hook_id) override;
#endif

  void setSequenceNumberForGroup() override {}  // counted from 0 at every rank
  uint64_t getSequenceNumberForGroup() override { return sequence_number_; }
  void setTimeout(Millis timeout) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

 private:
  using Parts = PcclWork::Parts;

  /// `apart`: what the call itself reads or writes; `memory`: that, and what the engine uses.
  static void wait_for_memory(const GroupContext& context, const std::vector<Buffer>& apart,
                              const Extents& memory);
  static void wait_for_writes(const Parts& parts, const Call& call);
  /// The first step for a part of an operation, before any is posted: waits for the memory. A
  /// signal's handler may throw here.
  void begin(Parts& parts, Call& call);
  /// The last step: posts the part; throws if the engine refuses it at once.
  void issue(Parts& parts, Call& call, Millis timeout);
  /// All steps: for a part, for all parts of an operation.
  void add(Parts& parts, Call& call, Millis timeout);
  void add(Parts& parts, std::list<Call>& calls, Millis timeout);
  WorkPtr finish(Parts parts, c10d::OpType type, const char* title, const Tensors& profiled,
                 Tensors outputs);
  /// All steps for an operation of one part.
  WorkPtr post(Call& call, c10d::OpType type, Millis timeout, const Tensors& profiled,
               Tensors outputs);
  /// Titles of the profiler's events, in gloo's words, as torch's own tests expect them.
  [[nodiscard]] static const char* title_of(OpKind kind);
  WorkPtr point_to_point(OpKind kind, c10d::OpType type, Tensors& tensors, int peer, int tag);

  /// `context()`, for a call; throws if the group takes none, or if an earlier operation has
  /// failed.
  [[nodiscard]] std::shared_ptr<GroupContext> ready();
  [[nodiscard]] c10::intrusive_ptr<PcclBackend> self();
  [[nodiscard]] std::vector<Handle> members() const;
  /// The quantisation for a group that is made of this one.
  [[nodiscard]] Quantisation quantisation_in(const c10::intrusive_ptr<Options>& opts) const;
  /// Takes over a new configuration; false if a later one has been asked for meanwhile.
  bool formed(GroupId group, std::vector<Handle> members, int rank);

  const std::shared_ptr<Completions> completions_;
  const std::shared_ptr<AbortHooks> abort_hooks_ = std::make_shared<AbortHooks>();
  const bool elastic_;
  const Handle own_;              // of a fixed group
  const std::uint64_t instance_;  // tells the groups of a process apart in their handles
  mutable std::mutex members_mutex_;
  std::shared_ptr<GroupContext> context_;      // this and the next ones: under members_mutex_
  std::vector<Handle> members_;                // by rank
  std::optional<GroupId> forming_;             // a configuration that is not complete yet
  std::set<std::int64_t> used_uuids_;          // uuids of all configurations so far
  std::map<std::vector<int>, int> shrunk_to_;  // number of shrinks, by the remaining ranks
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<Quantisation> quantisation_{Quantisation::none};
  std::atomic<std::uint64_t> sequence_number_{0};
  MonitoredBarrier monitored_barrier_{*this};
  std::atomic<bool> closed_{false};
  std::atomic<bool> aborted_{false};
  Coalescing coalescing_;
};

}  // namespace pccl
