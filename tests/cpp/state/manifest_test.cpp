#include "state/manifest.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pccl::test {
namespace {

ManifestEntry entry(const std::string& name, std::uint8_t content) {
  ManifestEntry e{name, "torch.float32", {2, 3}, 24, {}};
  e.digest[0] = content;
  return e;
}

Manifest three() { return {entry("b", 1), entry("a", 2), entry("c", 3)}; }

TEST(Manifest, EqualStatesNeedNothing) {
  const auto names = plan(three(), three());
  ASSERT_TRUE(names.ok());
  EXPECT_TRUE(names.value().empty());
  EXPECT_TRUE(plan({}, {}).value().empty());
}

TEST(Manifest, NamesWhatDiffersInOurOrder) {
  Manifest theirs{entry("a", 9), entry("b", 9), entry("c", 3)};
  EXPECT_EQ(plan(three(), theirs).value(), (std::vector<std::string>{"b", "a"}));
}

struct Wrong {
  const char* what;
  void (*change)(Manifest&);
  const char* expected;
};

TEST(Manifest, AStateOfOtherTensorsIsRefusedByName) {
  const Wrong cases[] = {
      {"dtype", [](Manifest& m) { m[1].dtype = "torch.int64"; }, "\"a\": dtype torch.float32 here"},
      {"shape", [](Manifest& m) { m[2].shape = {6}; },
       "\"c\": shape (2, 3) here, (6) at the others"},
      {"bytes", [](Manifest& m) { m[0].bytes = 25; }, "\"b\": bytes 24 here, 25"},
      {"one less", [](Manifest& m) { m.pop_back(); }, "\"c\": it is not there at the others"},
      {"one more", [](Manifest& m) { m.push_back(entry("bb", 1)); },
       "\"bb\": it is not there here"},
      {"another name", [](Manifest& m) { m[1].name = "aa"; },
       "\"a\": it is not there at the others"},
      {"none", [](Manifest& m) { m.clear(); }, "\"a\": it is not there at the others"},
  };
  for (const Wrong& c : cases) {
    Manifest theirs = three();
    c.change(theirs);
    const auto names = plan(three(), theirs);
    EXPECT_EQ(names.error().code, ErrorCode::mismatch) << c.what;
    EXPECT_NE(names.error().text.find(c.expected), std::string::npos) << names.error().text;
  }
}

TEST(Manifest, ANameThatComesTwiceIsRefused) {
  const Manifest twice{entry("a", 1), entry("a", 1)};
  EXPECT_NE(plan(twice, twice).error().text.find("more than once"), std::string::npos);
  EXPECT_EQ(plan({entry("a", 1), entry("b", 1)}, twice).error().code, ErrorCode::mismatch);
  EXPECT_EQ(plan(twice, {entry("a", 1), entry("b", 1)}).error().code, ErrorCode::mismatch);
}

TEST(Manifest, TheRootDoesNotDependOnTheOrder) {
  Manifest other = three();
  std::reverse(other.begin(), other.end());
  EXPECT_EQ(root(three(), {}), root(other, {}));
}

TEST(Manifest, TheRootChangesWithEveryField) {
  std::vector<Digest> roots{root(three(), {}), root({}, {})};
  Digest plain{};
  plain[31] = 1;
  roots.push_back(root(three(), plain));
  void (*const changes[])(Manifest&) = {
      [](Manifest& m) { m[0].name = "bx"; },
      [](Manifest& m) { m[0].dtype += "x"; },
      [](Manifest& m) { m[0].shape = {3, 2}; },
      [](Manifest& m) { m[0].shape = {2, 3, 1}; },
      [](Manifest& m) { m[0].bytes = 23; },
      [](Manifest& m) { m[0].digest[31] = 1; },
      [](Manifest& m) { m.pop_back(); },
      [](Manifest& m) { m.push_back(entry("d", 0)); },
      [](Manifest& m) { m[0].name = "bt", m[0].dtype = "orch.float32"; },
  };
  for (const auto change : changes) {
    Manifest m = three();
    change(m);
    roots.push_back(root(m, {}));
  }
  std::sort(roots.begin(), roots.end());
  EXPECT_EQ(std::adjacent_find(roots.begin(), roots.end()), roots.end());
}

}  // namespace
}  // namespace pccl::test
