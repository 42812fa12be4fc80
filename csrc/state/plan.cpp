// See plan.h.
#include "state/plan.h"

#include <algorithm>

namespace pccl {

void TransferPlan::want(std::vector<WantedItem> items, std::vector<PeerId> sources) {
  items_ = std::move(items);
  sources_ = std::move(sources);
  first_ = 0;
  tried_.clear();
  arrived_.clear();
  sort_sources();
}

std::optional<TransferPlan::Pull> TransferPlan::next() const {
  if (complete()) return std::nullopt;
  const auto untried = std::find_if(sources_.begin(), sources_.end(),
                                    [&](PeerId source) { return !tried_.contains(source); });
  if (untried == sources_.end()) return std::nullopt;
  return Pull{items_[first_], *untried};
}

void TransferPlan::skip_arrived() {
  while (first_ < items_.size() && arrived_.contains(items_[first_].digest)) {
    ++first_;
    tried_.clear();
  }
}

void TransferPlan::arrived(const Digest& digest) {
  arrived_.insert(digest);
  skip_arrived();
}

void TransferPlan::failed(PeerId source) {
  tried_.insert(source);
  ++failures_[source];
  sort_sources();
}

void TransferPlan::sort_sources() {
  std::stable_sort(sources_.begin(), sources_.end(),
                   [&](PeerId a, PeerId b) { return failures_[a] < failures_[b]; });
}

}  // namespace pccl
