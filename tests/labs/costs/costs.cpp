// What collectives take on a network that is computed (network.h):
//   pccl_costs model RANKS...   all_reduce by the algorithm that is chosen: predicted by the
//                               formulas of docs/architecture/costs.md, and simulated
//   pccl_costs choice RANKS...  the algorithm that is chosen over long lines next to the best one
// Prints tables. The exit status is 1 if a prediction, or the choice, is too far off.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/cost.h"
#include "network.h"

namespace pccl::costs {
namespace {

constexpr double kOff = 0.15;  // a prediction may be

CollectiveArgs args_of(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes,
                       const Lines& lines) {
  CollectiveArgs args;
  args.kind = OpKind::all_reduce;
  args.reduce = ReduceOp::sum;
  args.rank = rank;
  args.size = size;
  args.element_bytes = 4;
  args.lines = lines;
  args.input_bytes = args.output_bytes = {bytes};
  return args;
}

using Algorithm = std::function<Schedule(const CollectiveArgs&)>;

/// Seconds of an all_reduce; in place, as DDP calls it.
Seconds simulate(const Algorithm& algorithm, const Network& network, std::uint32_t size,
                 std::uint64_t bytes, const Lines& lines = {}) {
  Simulation simulation(network, size);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    simulation.add(algorithm(args_of(rank, size, bytes, lines)));
  }
  const Seconds took = simulation.run();
  if (took >= 0) return took;
  std::printf("%u ranks, %llu bytes: a step never had its turn\n", size,
              static_cast<unsigned long long>(bytes));
  std::exit(1);
}

/// The formulas of costs.md: all ranks equally far from each other, each with a line of its own.
class Model {
 public:
  Model(const Network& network, std::uint32_t size, std::uint64_t bytes)
      : net_(network), n_(size), bytes_(static_cast<double>(bytes)) {}

  [[nodiscard]] Seconds exchange() const { return net_.far_s + all_to_all(bytes_); }
  [[nodiscard]] Seconds doubling() const {
    const double rounds = std::floor(std::log2(n_)) + (std::has_single_bit(n_) ? 0 : 2);
    return rounds * (net_.far_s + bytes_ / net_.own_rate + 2 * work(bytes_));
  }
  [[nodiscard]] Seconds direct() const { return 2 * (net_.far_s + all_to_all(bytes_ / n_)); }
  [[nodiscard]] Seconds ring() const {
    const double part = bytes_ / n_;
    const double segment = std::min<double>(part, kSegmentBytesMax);
    const Seconds one = std::max(segment / net_.own_rate, 2 * work(segment));
    const Seconds all = one * part / segment;
    const Seconds passes = net_.far_s + segment / net_.own_rate + 2 * work(segment);
    return 2 * (n_ - 1) * std::max(passes, all) + std::min(passes, all - one);
  }

 private:
  /// Of a core, to send or to receive one segment.
  [[nodiscard]] Seconds work(double bytes) const { return net_.message_s + bytes * net_.byte_s; }
  /// Each rank sends `bytes` to each other one, and receives as much.
  [[nodiscard]] Seconds all_to_all(double bytes) const {
    return (n_ - 1) * std::max(bytes / net_.own_rate, 2 * work(bytes));
  }

  Network net_;
  std::uint32_t n_;
  double bytes_;
};

std::string bytes_text(std::uint64_t bytes) {
  const std::array<const char*, 4> units = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit < 3; bytes /= 1024) ++unit;
  return std::to_string(bytes) + " " + units[unit];
}

struct Kind {
  const char* name;
  Algorithm algorithm;
  Seconds (Model::*predict)() const;
};
const std::array<Kind, 4> kKinds = {{{"exchange", exchange_all_reduce, &Model::exchange},
                                     {"doubling", recursive_doubling_all_reduce, &Model::doubling},
                                     {"direct", direct_all_reduce, &Model::direct},
                                     {"ring", ring_all_reduce, &Model::ring}}};

/// That of which the schedule is.
const Kind& kind_of(const Schedule& schedule, const CollectiveArgs& args) {
  const auto same = [](const Step& a, const Step& b) {
    return a.kind == b.kind && a.peer == b.peer && a.channel == b.channel && a.from == b.from &&
           a.to == b.to;
  };
  for (const Kind& kind : kKinds) {
    const std::vector<Step> steps = kind.algorithm(args).steps;
    if (std::equal(steps.begin(), steps.end(), schedule.steps.begin(), schedule.steps.end(), same))
      return kind;
  }
  std::printf("a schedule of no known kind\n");
  std::exit(1);
}

bool compare_model(const std::vector<std::uint32_t>& sizes) {
  struct Line {
    const char* text;
    Seconds one_way_s;
    double rate;
  };
  const std::array<Line, 3> all = {{{"100 Gbit/s, 0.05 ms", 25e-6, 12.5e9},
                                    {"10 Gbit/s, 1 ms", 500e-6, 1.25e9},
                                    {"1 Gbit/s, 80 ms", 40e-3, 0.125e9}}};
  std::printf(
      "| ranks | each with a line of | bytes | by | predicted, ms | simulated, ms | predicted / "
      "simulated |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  bool good = true;
  for (const std::uint32_t size : sizes) {
    for (const Line& line : all) {
      Network network;
      network.near_s = network.far_s = line.one_way_s;
      network.own_rate = line.rate;
      const auto trip_us = static_cast<std::uint32_t>(2e6 * line.one_way_s);
      const Lines lines{trip_us, trip_us};
      for (const std::uint64_t bytes : {std::uint64_t{4}, std::uint64_t{1} << 20,
                                        std::uint64_t{1} << 26, std::uint64_t{1} << 30}) {
        const CollectiveArgs args = args_of(0, size, bytes, lines);
        const Kind& kind = kind_of(build_schedule(args), args);
        const Seconds predicted = (Model(network, size, bytes).*kind.predict)();
        const Seconds simulated = simulate(build_schedule, network, size, bytes, lines);
        const double ratio = predicted / simulated;
        std::printf("| %u | %s | %s | %s | %.4g | %.4g | %.2f |\n", size, line.text,
                    bytes_text(bytes).c_str(), kind.name, 1e3 * predicted, 1e3 * simulated, ratio);
        std::fflush(stdout);
        good = good && std::abs(ratio - 1) <= kOff;
      }
    }
  }
  return good;
}

/// The network of all cases of one row.
struct Setting {
  bool common;  // one line between two sites, else one for each rank
  double mbit;
  // The choice may take so many times as long as the best one, and where rates are measured.
  double worst, worst_measured;

  [[nodiscard]] Network network(std::uint32_t trip_ms) const {
    Network made;
    made.far_s = trip_ms * 0.5e-3;
    made.near_s = common ? 0.1e-3 : made.far_s;
    made.own_rate = mbit / 8e-6 * (common ? 10 : 1);
    made.common_rate = common ? mbit / 8e-6 : 0;
    return made;
  }
  /// As the ranks know them: at best.
  [[nodiscard]] Lines lines(std::uint32_t trip_ms, std::uint32_t size, bool measured) const {
    const std::uint32_t far_us = 1000 * trip_ms;
    return {far_us, common ? (2 * far_us + (size - 2) * 200) / size : far_us,
            measured ? static_cast<std::uint32_t>(std::min(mbit, most_measured(trip_ms))) : 0,
            sites(size), common ? 200U : 0U};
  }
  /// The ranks of each half are near each other, and say so.
  [[nodiscard]] Sites sites(std::uint32_t size) const {
    std::vector<std::uint32_t> made(common ? size : 0);
    for (std::uint32_t rank = 0; rank < made.size(); ++rank) made[rank] = rank < size / 2 ? 0 : 1;
    return numbered_sites(made);
  }
  /// engine/link_meter.cpp: 64 MiB in two round trips or 100 ms.
  static double most_measured(std::uint32_t trip_ms) {
    return 64 * 1.048576 * 8 / (1e-3 * std::max(100U, 2 * trip_ms));
  }
};

struct Tally {
  int cases = 0, right = 0;
  double worst = 1;
  std::string where;

  void add(const Setting& setting, std::uint32_t size, std::uint32_t trip_ms, std::uint64_t bytes,
           bool measured) {
    const Network network = setting.network(trip_ms);
    const Lines lines = setting.lines(trip_ms, size, measured);
    const Seconds chosen = simulate(build_schedule, network, size, bytes, lines);
    Seconds best = chosen;
    const char* name = "";
    const auto compare = [&](const char* with, const Algorithm& algorithm) {
      const Seconds other = simulate(algorithm, network, size, bytes, lines);
      if (other < best) best = other, name = with;
    };
    for (const Kind& kind : kKinds) compare(kind.name, kind.algorithm);
    if (!lines.sites.empty()) compare("two levels", two_level_all_reduce);
    ++cases;
    right += chosen <= 1.1 * best ? 1 : 0;
    if (chosen / best <= worst) return;
    worst = chosen / best;
    where = std::to_string(size) + " ranks, " + std::to_string(trip_ms) + " ms, " +
            bytes_text(bytes) + ": " + name;
  }
};

bool compare_choice(const std::vector<std::uint32_t>& sizes) {
  // Not measured, the model takes 100 Mbit/s; and over long and fast lines less is measured than
  // they carry.
  const std::array<Setting, 8> all = {{{false, 10, 4.5, 1.1},
                                       {false, 100, 1.1, 1.1},
                                       {false, 1000, 1.8, 1.13},
                                       {false, 10000, 6, 2.4},
                                       {true, 10, 3.9, 1.1},
                                       {true, 100, 1.05, 1.05},
                                       {true, 1000, 1.2, 1.05},
                                       {true, 10000, 1.9, 1.25}}};
  bool good = true;
  std::printf(
      "| lines | rate, Mbit/s | it is known | cases | within 10 %% | chosen / best at worst "
      "| there |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Setting& setting : all) {
    for (const bool measured : {false, true}) {
      Tally tally;
      for (const std::uint32_t size : sizes) {
        if (measured && size < 4) continue;  // membership/topology.h: it never is
        for (const std::uint32_t trip_ms : {5U, 20U, 80U, 200U}) {
          for (std::uint64_t bytes = 4; bytes <= 64U << 20; bytes *= 8) {
            tally.add(setting, size, trip_ms, bytes, measured);
          }
        }
      }
      std::printf("| %s | %g | %s | %d | %d | %.2f | %s |\n",
                  setting.common ? "one between two sites" : "one for each rank", setting.mbit,
                  measured ? "yes" : "no", tally.cases, tally.right, tally.worst,
                  tally.where.c_str());
      std::fflush(stdout);
      good = good && tally.worst <= (measured ? setting.worst_measured : setting.worst);
    }
  }
  return good;
}

int run(const std::vector<std::string>& words) {
  std::vector<std::uint32_t> sizes;
  for (std::size_t i = 1; i < words.size(); ++i) {
    sizes.push_back(static_cast<std::uint32_t>(std::stoul(words[i])));
  }
  if (!sizes.empty() && words[0] == "model") return compare_model(sizes) ? 0 : 1;
  if (!sizes.empty() && words[0] == "choice") return compare_choice(sizes) ? 0 : 1;
  std::fprintf(stderr, "usage: pccl_costs model|choice RANKS...\n");
  return 2;
}

}  // namespace
}  // namespace pccl::costs

int main(int count, char** words) {
  return pccl::costs::run(std::vector<std::string>(words + 1, words + count));
}
