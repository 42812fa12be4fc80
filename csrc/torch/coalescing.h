// The calls that a program makes one Work of: those of a thread between c10d's startCoalescing and
// endCoalescing.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace pccl {

/// Of one group. Thread-safe: each thread has a list of its own.
class Coalescing {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// Begins the list of this thread, anew if an exception has left one behind.
  void start();
  /// The Work of a call; nothing happens on a thread without a list.
  void add(const WorkPtr& work);
  /// Ends the list of this thread; throws if there is none.
  [[nodiscard]] std::vector<WorkPtr> end();

 private:
  struct Issued {
    std::vector<WorkPtr> works;
    std::uint64_t bytes = 0;   // of their outputs
    std::size_t sweep_at = 0;  // when there are so many: drop the completed ones; 0: at once
    std::uint64_t sweep_at_bytes = 0;

    void sweep();
  };
  std::mutex mutex_;
  std::map<std::thread::id, Issued> issued_;  // by the thread that issues
};

}  // namespace pccl
