// Makes groups: a fixed group, whose members meet in a c10d store, and the elastic group, which a
// master has formed. Exchanges handles and waits, with deadlines; all else about membership is the
// engine's.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/engine.h"
#include "torch/backend.h"

namespace pccl {

/// The elastic group as torch sees it: up to torch 2.13 a Backend's rank and size are constants,
/// but a ProcessGroup is asked for them. Thread-safe.
class ElasticProcessGroup final : public c10d::ProcessGroup {
 public:
  ElasticProcessGroup(c10::intrusive_ptr<c10d::Store> store,
                      c10::intrusive_ptr<PcclBackend> backend, const std::string& name,
                      const std::vector<c10::DeviceType>& devices);

  int getRank() const override { return backend_->numbers().rank; }
  int getSize() const override { return backend_->numbers().size; }
  const std::string getBackendName() const override { return kBackendName; }
#ifndef C10D_BACKEND_HAS_RECONFIGURE  // from torch 2.14 on this is no call of ProcessGroup
  void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }
#endif
  uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }

 private:
  const c10::intrusive_ptr<PcclBackend> backend_;
};

/// A fixed group of `size` ranks. Collective: every rank calls it with the same store. Throws,
/// naming the ranks that did not come, after `timeout`.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> create_fixed(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout, const std::string& name);

/// A fixed group of members of the elastic one, `peers` by rank. Collective: every member calls it
/// with the same `number` text, which names no other group of the run. Needs the links of the
/// members only: no store, no master. Throws PeerLostError at once if one of them was lost or is
/// lost meanwhile, and after `timeout` an error that names the ranks that did not come.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> create_of_run(const std::vector<PeerId>& peers,
                                                              int rank,
                                                              std::chrono::milliseconds timeout,
                                                              const std::string& name,
                                                              const std::string& number);

/// The Backend of a fixed group that gets its members from `Backend::reconfigure`: it looks for no
/// other rank, and every operation raises until then.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> create_unconfigured(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout);

/// Makes a fixed group, and waits until all members have their links for it. Throws an error that
/// names the missing members.
void open_group(const std::shared_ptr<Engine>& engine, GroupId group, const std::string& name,
                const std::vector<Handle>& members, int rank, std::chrono::milliseconds timeout);

/// A number for a group, derived from a text that all its members know.
[[nodiscard]] GroupId number_of(const std::string& text);

/// Joins the run of a master; returns when the run is founded, or, in a founded run, when the
/// master has answered.
GroupView join_run(const JoinOptions& options);

/// The elastic group of the joined run.
[[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> create_elastic(
    std::chrono::milliseconds timeout, const std::string& name,
    const std::vector<std::string>& device_types, Quantisation quantisation);

/// The engine of a process that has joined a run; throws if the process has not.
[[nodiscard]] std::shared_ptr<Engine> joined_engine();

}  // namespace pccl
