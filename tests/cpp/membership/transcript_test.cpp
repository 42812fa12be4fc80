// Runs the stories of tests/sim/transcripts against both cores and compares what happens with what
// is written there. `test_membership --rewrite` writes them anew, to be read in review.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "story.h"

namespace {

bool rewrite = false;

std::filesystem::path folder() {
  return std::filesystem::path(__FILE__).parent_path() / ".." / ".." / "sim" / "transcripts";
}

/// Runs the commands of a transcript; returns it as it should be.
std::string replay(const std::string& written) {
  pccl::story::Story story;
  std::istringstream in(written);
  std::string out;
  std::string line;
  bool command = true;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') {
      command = true;
      out += line + "\n";
      continue;
    }
    if (line == "----") {
      command = false;
      continue;
    }
    if (!command) continue;
    out += line + "\n----\n";
    const auto happened = story.run(line);
    if (happened.empty()) out += "(nothing)\n";
    for (const std::string& one : happened) out += one + "\n";
  }
  return out;
}

TEST(Transcripts, every_story_goes_as_it_is_written) {
  std::size_t stories = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().extension() != ".txt") continue;
    ++stories;
    std::ifstream file(entry.path());
    const std::string written((std::istreambuf_iterator<char>(file)), {});
    const std::string happened = replay(written);
    if (rewrite) {
      std::ofstream(entry.path()) << happened;
    } else {
      EXPECT_EQ(written, happened) << entry.path() << ": read the difference, then --rewrite";
    }
  }
  EXPECT_GE(stories, 6U);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  rewrite = std::any_of(argv + 1, argv + argc,
                        [](const char* arg) { return std::string(arg) == "--rewrite"; });
  return RUN_ALL_TESTS();
}
