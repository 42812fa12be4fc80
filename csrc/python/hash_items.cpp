// See hash_items.h. The unit of work is a chunk, so that one large tensor keeps all cores busy.
#include "python/hash_items.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace pccl {
namespace {

struct Chunk {
  std::size_t item = 0;
  std::size_t index = 0;
};

constexpr std::size_t kThreadsMax = 64;

}  // namespace

std::vector<Digest> hash_items(std::span<const std::span<const std::byte>> items) {
  std::vector<Chunk> chunks;
  std::vector<std::vector<Digest>> digests(items.size());
  for (std::size_t item = 0; item < items.size(); ++item) {
    digests[item].resize(chunk_count(items[item].size()));
    for (std::size_t i = 0; i < digests[item].size(); ++i) chunks.push_back({item, i});
  }

  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < chunks.size(); i = next++) {
        const Chunk chunk = chunks[i];
        digests[chunk.item][chunk.index] =
            chunk_digests(items[chunk.item], chunk.index, chunk.index + 1).front();
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  const std::size_t cores = std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
  const std::size_t helpers = std::min({cores, chunks.size(), kThreadsMax});
  std::vector<std::jthread> threads;
  threads.reserve(helpers);
  try {
    for (std::size_t i = 1; i < helpers; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The system starts no more threads: those that there are do it.
  }
  work();
  threads.clear();  // joins
  if (failure) std::rethrow_exception(failure);

  std::vector<Digest> result;
  result.reserve(items.size());
  for (const auto& of_item : digests) result.push_back(combine(of_item));
  return result;
}

}  // namespace pccl
