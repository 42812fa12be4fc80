#include "torch/coalescing.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "torch/work.h"

namespace pccl {
namespace {

// Of one thread, before completed Works are dropped.
constexpr std::size_t kCoalescedMin = 1024;
constexpr std::uint64_t kCoalescedBytesMin = 64U << 20;

std::uint64_t bytes_of(const c10d::Work& work) {
  std::uint64_t bytes = 0;
  const auto* own = dynamic_cast<const PcclWork*>(&work);
  if (own == nullptr) return bytes;
  for (const at::Tensor& output : own->outputs()) bytes += output.nbytes();
  return bytes;
}

}  // namespace

void Coalescing::start() {
  const std::lock_guard lock(mutex_);
  issued_[std::this_thread::get_id()] = {};
}

void Coalescing::add(const WorkPtr& work) {
  const std::lock_guard lock(mutex_);
  const auto of_thread = issued_.find(std::this_thread::get_id());
  if (of_thread == issued_.end()) return;
  Issued& issued = of_thread->second;
  // An exception may have skipped endCoalescing, and then the list has no end.
  if (issued.works.size() >= issued.sweep_at || issued.bytes >= issued.sweep_at_bytes) {
    issued.sweep();
  }
  issued.works.push_back(work);
  issued.bytes += bytes_of(*work);
}

void Coalescing::Issued::sweep() {
  std::erase_if(works, [](const WorkPtr& one) { return one->isCompleted() && one->isSuccess(); });
  sweep_at = std::max(kCoalescedMin, 2 * works.size());
  bytes = 0;
  for (const WorkPtr& one : works) bytes += bytes_of(*one);
  sweep_at_bytes = std::max(kCoalescedBytesMin, 2 * bytes);
}

std::vector<Coalescing::WorkPtr> Coalescing::end() {
  const std::lock_guard lock(mutex_);
  auto of_thread = issued_.extract(std::this_thread::get_id());
  TORCH_CHECK(!of_thread.empty(), "pccl: endCoalescing without startCoalescing");
  return std::move(of_thread.mapped().works);
}

}  // namespace pccl
