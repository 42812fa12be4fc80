// The targets without libFuzzer, so with any compiler: fuzz_corpus FOLDER [SEED] [COUNT] runs each
// over all files of FOLDER/NAME, and over COUNT mutations of them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../fuzz.h"
#include "base/log.h"
#include "targets.h"

namespace pccl::fuzz {
namespace {

std::vector<std::vector<std::byte>> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::vector<std::byte>> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto bytes = std::as_bytes(std::span(text));
    corpus.emplace_back(bytes.begin(), bytes.end());
  }
  return corpus;
}

int replay(const std::filesystem::path& folder, std::uint64_t first, std::uint64_t count) {
  for (const Target& target : kTargets) {
    const auto corpus = read_corpus(folder / target.name);
    if (corpus.empty()) {
      std::fprintf(stderr, "%s has no corpus\n", target.name.data());
      return 1;
    }
    for (const auto& input : corpus) target.run(input);
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
      Random random(seed);
      std::vector<std::byte> input = corpus[random.below(corpus.size())];
      mutate(input, random);
      std::fprintf(stderr, "%s, seed %llu\r", target.name.data(),
                   static_cast<unsigned long long>(seed));
      target.run(input);
    }
    std::printf("%s: %zu inputs, %llu mutated\n", target.name.data(), corpus.size(),
                static_cast<unsigned long long>(count));
  }
  return 0;
}

}  // namespace
}  // namespace pccl::fuzz

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fuzz_corpus FOLDER [SEED] [COUNT]\n");
    return 2;
  }
  pccl::set_log_level(pccl::LogLevel::off);
  return pccl::fuzz::replay(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1,
                            argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 2000);
}
