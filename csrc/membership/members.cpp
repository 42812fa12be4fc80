// See members.h.
#include "membership/members.h"

namespace pccl {

std::uint32_t rank_of(const std::vector<Member>& members, PeerId peer) {
  const auto self = std::find_if(members.begin(), members.end(),
                                 [&](const Member& m) { return m.peer() == peer; });
  if (self == members.end()) return static_cast<std::uint32_t>(members.size());
  return static_cast<std::uint32_t>(std::count_if(
      members.begin(), self, [&](const Member& m) { return m.place.rank == self->place.rank; }));
}

std::string name_of(const std::vector<Member>& members, const Member& member) {
  std::string text = "rank " + std::to_string(rank_of(members, member.peer()));
  if (member.place.size > 1) text += " of peer group " + std::to_string(member.place.rank);
  text += " (" + to_string(member.peer());
  if (member.place.size > 1) text += ", replica " + member.place.replica;
  return text + ")";
}

std::string count_of(std::size_t number, const char* thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

std::string cut_text(std::string text) {
  if (text.size() > kTextBytesMax) text.resize(kTextBytesMax);
  return text;
}

}  // namespace pccl
