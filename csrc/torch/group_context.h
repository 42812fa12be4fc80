// State that the Works of a group share: it outlives the Backend.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "python/completions.h"
#include "torch/extent.h"

namespace pccl {

class PcclWork;

/// The failure of an operation whose wait() had returned before: the next call throws it, once.
/// Thread-safe.
class LateFailure {
 public:
  /// The object of a group of this process; the same one as long as it is referenced.
  static std::shared_ptr<LateFailure> of(GroupId group);
  void set(const Error& error);
  void raise_once();
  /// Takes the failure of the first group of the process that has one.
  static void raise_any();

 private:
  std::mutex mutex_;
  Error error_;
};

/// The collectives of a group whose results still have to be copied from temporaries to where the
/// program wants them. Thread-safe.
class Uncopied {
 public:
  /// The object of a group of this process; the same one as long as it is referenced.
  static std::shared_ptr<Uncopied> of(GroupId group);
  /// Copies what has its outcome, in all groups of the process.
  static void copy_all_that_is_done();

  void add(c10::intrusive_ptr<PcclWork> work);
  /// The Work has copied its results, or has failed.
  void remove(const PcclWork* work);
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::vector<c10::intrusive_ptr<PcclWork>> all() const;
  /// Those whose results lie in this memory.
  [[nodiscard]] std::vector<c10::intrusive_ptr<PcclWork>> touching(const Extents& memory) const;

 private:
  mutable std::mutex mutex_;
  std::vector<c10::intrusive_ptr<PcclWork>> works_;  // in the order of their calls
  std::atomic<std::size_t> count_ = 0;
};

struct GroupContext {
  std::shared_ptr<Engine> engine;
  GroupId group;
  std::shared_ptr<Completions> completions;
  std::shared_ptr<LateFailure> late_failure = LateFailure::of(group);
  std::shared_ptr<Uncopied> uncopied = Uncopied::of(group);
};

}  // namespace pccl
