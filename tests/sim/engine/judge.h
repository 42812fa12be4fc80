// What every walk is held to, in a run and without one: it ends, and what breaks a rule is told.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "member.h"
#include "walk.h"

namespace pccl::sim {

/// Runs the story; a Violation ends it.
[[nodiscard]] Walked judged(Time& time, const Book& book, const std::function<void()>& story);

/// Lets time go on until `at_least` members have begun and all are over, but the liar. Throws a
/// Violation if that takes too long, or too many events.
void until_over(Time& time, const std::vector<std::unique_ptr<Member>>& members,
                std::size_t at_least, const PeerId* liar = nullptr);

}  // namespace pccl::sim
