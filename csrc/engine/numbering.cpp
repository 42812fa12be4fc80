#include "engine/numbering.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "engine/operation.h"

namespace pccl {

std::optional<Error> misfit(const OpRequest& request, PeerId self) {
  const OpDescriptor& d = request.descriptor;
  const auto size = static_cast<std::int64_t>(request.numbering->size());
  const std::string head = std::string(kind_name(d.kind)) + ": ";
  if (d.root >= size || request.peer >= size || (d.kind == OpKind::send && request.peer < 0)) {
    const std::int32_t rank = d.root >= 0 ? d.root : request.peer;
    return Error{ErrorCode::invalid, head + "there is no rank " + std::to_string(rank) +
                                         " in a group of " + std::to_string(size)};
  }
  const auto one_per_rank = [&](const std::vector<Buffer>& buffers) {
    return buffers.empty() || static_cast<std::int64_t>(buffers.size()) == size;
  };
  if ((input_per_rank(d.kind) && !one_per_rank(request.inputs)) ||
      (output_per_rank(d.kind) && !one_per_rank(request.outputs))) {
    return Error{ErrorCode::invalid,
                 head + "one tensor for each of the " + std::to_string(size) + " ranks is needed"};
  }
  if (d.kind != OpKind::all_to_all || request.inputs.empty() || request.outputs.empty()) return {};
  const auto own = std::find(request.numbering->begin(), request.numbering->end(), self);
  if (own != request.numbering->end()) {
    const auto place = static_cast<std::size_t>(own - request.numbering->begin());
    const std::uint64_t sent = request.inputs.at(place).bytes;
    const std::uint64_t received = request.outputs.at(place).bytes;
    if (sent != received) {
      return Error{ErrorCode::invalid, head + "this rank sends itself " + std::to_string(sent) +
                                           " bytes and wants to receive " +
                                           std::to_string(received)};
    }
  }
  return {};
}

bool renumber(OpRequest& request, const Numbering& now) {
  const std::vector<PeerId>& before = *request.numbering;
  std::vector<std::size_t> was;  // by present rank
  for (const PeerId peer : *now) {
    const auto at = std::find(before.begin(), before.end(), peer);
    if (at == before.end()) return false;
    was.push_back(static_cast<std::size_t>(at - before.begin()));
  }
  if (request.descriptor.root >= 0) {
    const auto root = static_cast<std::size_t>(request.descriptor.root);
    const auto at = std::find(was.begin(), was.end(), root);
    if (at == was.end()) return false;
    request.descriptor.root = static_cast<std::int32_t>(at - was.begin());
  }
  const auto pick = [&](std::vector<Buffer>& buffers) {
    std::vector<Buffer> picked;
    if (buffers.empty()) return;
    for (const std::size_t rank : was) picked.push_back(buffers[rank]);
    buffers = std::move(picked);
  };
  if (input_per_rank(request.descriptor.kind)) pick(request.inputs);
  if (output_per_rank(request.descriptor.kind)) pick(request.outputs);
  request.numbering = now;
  return true;
}

std::vector<std::size_t> ranks_along(const std::vector<PeerId>& ring,
                                     const std::vector<PeerId>& numbering) {
  std::vector<std::size_t> ranks;
  if (ring == numbering) {
    ranks.resize(ring.size());
    std::iota(ranks.begin(), ranks.end(), std::size_t{0});
    return ranks;
  }
  for (const PeerId peer : ring) {
    const auto at = std::find(numbering.begin(), numbering.end(), peer);
    if (at != numbering.end()) ranks.push_back(static_cast<std::size_t>(at - numbering.begin()));
  }
  return ranks;
}

}  // namespace pccl
