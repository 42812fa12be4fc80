// The open descriptors of one loop, readable at any moment and without a lock: a forked child has
// to close them, or else the peers of a killed trainer see its connections end only when its
// data-loader workers have gone too. The child closes without shutdown: the parent goes on with the
// same sockets.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pccl {

/// add and remove: on the loop's thread. close_in_child: in the child of a fork, on its only
/// thread; it takes no lock, allocates nothing, and may run while the parent's loop stood anywhere.
class FdRegistry {
 public:
  FdRegistry() = default;
  ~FdRegistry();
  FdRegistry(const FdRegistry&) = delete;
  FdRegistry& operator=(const FdRegistry&) = delete;

  void add(int fd);
  void remove(int fd);
  [[nodiscard]] bool contains(int fd) const;
  /// Ends all connections and stops listening, without a word: the other ends see it at once. The
  /// descriptors stay open. On the loop's thread.
  void shut_all();

  /// Closes all of them. From then on everything of this loop is inert: destructors close nothing.
  void close_in_child();
  [[nodiscard]] bool in_child() const { return in_child_.load(std::memory_order_relaxed); }

 private:
  template <typename Take, typename Function>
  void for_each(Take take, Function function);

  static constexpr std::size_t kWords = 64;    // of a page: 4096 descriptors
  static constexpr std::size_t kPages = 1024;  // 4 Mi descriptors
  using Page = std::array<std::atomic<std::uint64_t>, kWords>;
  std::array<std::atomic<Page*>, kPages> pages_{};
  std::atomic<bool> in_child_{false};
};

}  // namespace pccl
