#include "harm.h"

#include <string>

namespace pccl::sim {

Member* any_of(const std::vector<std::unique_ptr<Member>>& members, Random& chance) {
  std::vector<Member*> here;
  for (const auto& member : members) {
    if (!member->over() && member->network().direct() != nullptr) here.push_back(member.get());
  }
  return here.empty() ? nullptr : here[chance.below(here.size())];
}

void harm(Member& one, std::uint64_t what, Cables& cables, Book& book) {
  Process& process = one.process();
  Time& time = cables.time;
  SimLinks& links = *one.network().direct();
  const auto peers = links.peers_up();
  const PeerId other = peers.empty() ? PeerId{} : peers[time.chance.below(peers.size())];
  const std::string there = to_string(other).substr(0, 4);
  book.harmed({one.id(), other});
  switch (what) {
    case 0:
    case 1:
    case 2:
      return one.kill(false);
    case 3:
      return one.kill(true);
    case 4: {
      const std::uint64_t ms = time.hit(70) ? time.between(50, 3000) : time.between(3000, 25000);
      time.say(&process, "stops for " + std::to_string(ms) + " ms");
      process.stop();
      time.after(ms * 1000, nullptr, [&time, &process] {
        time.say(&process, "wakes");
        process.wake();
      });
      return;
    }
    case 5:
      if (other == PeerId{}) return;
      time.say(&process, "loses its link to " + there);
      return links.lose(other);
    case 6:
      if (other == PeerId{}) return;
      time.say(&process, "nothing of it reaches " + there + " any more");
      return links.mute(other);
    case 8: {
      time.say(&process, "is short of memory");
      process.short_of_memory = true;
      time.after(time.between(500, 30000), nullptr,
                 [&process] { process.short_of_memory = false; });
      return;
    }
    case 9:
    case 13:
      if (other == PeerId{} || !time.hit(60)) return;
      time.say(&process, "is cut off from " + there);
      cables.cut(one.id(), other);
      links.lose(other);
      if (time.hit(50)) {
        time.after(1000 * time.between(100, 20000), nullptr, [&cables] { cables.mend_all(); });
      }
      return;
    case 11: {
      const std::uint64_t ms = time.between(1000, 450000);
      time.say(&process, "does nothing for " + std::to_string(ms) + " ms");
      return one.dozes(ms * 1000);
    }
    default:
      return;
  }
}

}  // namespace pccl::sim
