// What threads gain (docs/architecture/links.md, "Threads"), in one process that has both ends of a
// link and nothing else to do:
//   pccl_threads [THREADS...] [WORD]   rates of a link over loopback, and of sums; default: 1, 2,
//                                      half of the cores. WORD: rows whose name has it
// Prints a table. Both ends share the threads, so each byte is written, read, and encrypted and
// decrypted by them.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "transport/helpers.h"
#include "transport/loop.h"
#include "transport/transport.h"
#include "trust/secrets.h"

namespace pccl::costs {
namespace {

constexpr std::size_t kTensorBytes = 256U << 20;
constexpr std::size_t kSegmentBytes = 1U << 20;
constexpr std::size_t kUnderWay = 8;  // segments that are handed to the link and not sent, each way
constexpr int kCalls = 7;

double seconds_of(const std::function<void()>& call) {
  const auto began = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct End : LinkEvents {
  void link_up(PeerId) override { up = true; }
  void link_down(PeerId, const std::string& reason, Down) override {
    std::fprintf(stderr, "the link is lost: %s\n", reason.c_str());
    std::exit(1);
  }
  void control_arrived(PeerId, std::span<const std::byte>) override {}
  Placement segment_header(PeerId, const SegmentHeader& header) override {
    return {memory.data() + header.offset, 1, header.offset};
  }
  void segment_arrived(PeerId, const SegmentHeader& header, const Placement&) override {
    arrived += header.bytes;
  }
  void segment_sent(PeerId, std::uint64_t) override {
    ++sent;
    send_next();
  }
  void send_next() {
    if (next == kTensorBytes) return;
    SegmentHeader header;
    header.offset = next;
    header.bytes = kSegmentBytes;
    links->send_segment(peer, header, tensor.data() + next, 1, next);
    next += kSegmentBytes;
  }

  std::unique_ptr<Links> links;
  std::vector<std::byte> memory = std::vector<std::byte>(kTensorBytes);
  std::vector<std::byte> tensor = std::vector<std::byte>(kTensorBytes, std::byte{7});
  PeerId peer;
  bool up = false;
  std::size_t next = kTensorBytes;  // the byte that is sent next
  std::uint64_t arrived = 0;
  std::uint64_t sent = 0;
};

/// A tensor each way at once; seconds.
double exchange(Loop& loop, std::array<End, 2>& ends) {
  for (End& end : ends) end.arrived = end.sent = end.next = 0;
  return seconds_of([&] {
    for (std::size_t i = 0; i < kUnderWay; ++i) {
      for (End& end : ends) end.send_next();
    }
    const auto done = [&](const End& end) {
      return end.arrived == kTensorBytes && end.sent == kTensorBytes / kSegmentBytes;
    };
    while (!done(ends[0]) || !done(ends[1])) loop.run_once(true);
  });
}

double gigabytes_a_second(std::size_t threads, bool encrypted, bool checksums) {
  Loop loop(threads);
  std::array<End, 2> ends;
  LinkOptions options;
  options.listen_hosts = {"127.0.0.1"};
  options.payload_crc = checksums;
  if (encrypted) options.plaintext = Plaintext::none;
  for (End& end : ends) {
    end.links = std::move(make_tcp_links(loop, end, KeyPair::make(), options)).value();
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const Links& there = *ends[1 - i].links;
    const Handle handle{there.self(), {"127.0.0.1:" + std::to_string(there.port())}, there.key()};
    ends[i].peer = there.self();
    ends[i].links->open(handle, 30000, false);
  }
  while (!ends[0].up || !ends[1].up) loop.run_once(true);
  for (int i = 0; i < 3; ++i) exchange(loop, ends);  // the lanes join
  std::vector<double> took;
  while (took.size() < kCalls) took.push_back(exchange(loop, ends));
  return 2 * static_cast<double>(kTensorBytes) / median(took) / 1e9;
}

double sums_a_second(std::size_t threads, bool quantised) {
  Helpers helpers(threads);
  std::vector<float> to(kTensorBytes / sizeof(float), 1);
  std::vector<float> from(to.size(), 2);
  constexpr std::size_t kPart = 64 * kQuantisedBlock;
  std::vector<std::byte> codes(quantised_bytes(to.size(), Quantisation::int8_minmax));
  const auto call = [&] {
    helpers.each(to.size() / kPart, [&](std::size_t part) {
      float* values = to.data() + part * kPart;
      if (quantised) {
        quantise(codes.data() + quantised_bytes(part * kPart, Quantisation::int8_minmax), values,
                 kPart, Quantisation::int8_minmax);
      } else {
        reduce_into(values, values, from.data() + part * kPart, kPart, DType::f32, ReduceOp::sum);
      }
    });
  };
  call();
  std::vector<double> took;
  while (took.size() < kCalls) took.push_back(seconds_of(call));
  return static_cast<double>(kTensorBytes) / median(took) / 1e9;
}

void row(const char* what, const std::string& word, const std::vector<std::size_t>& threads,
         const std::function<double(std::size_t)>& rate) {
  if (std::string(what).find(word) == std::string::npos) return;
  std::printf("| %s |", what);
  double first = 0;
  for (const std::size_t count : threads) {
    const double now = rate(count);
    if (first == 0) first = now;
    std::printf(" %.2f (%.2f) |", now, now / first);
    std::fflush(stdout);
  }
  std::printf("\n");
}

}  // namespace

int run(const std::vector<std::size_t>& threads, const std::string& word) {
  std::printf("| GB a second (by that of the first column) |");
  for (const std::size_t count : threads) std::printf(" %zu threads |", count);
  std::printf("\n| --- |");
  for (std::size_t i = 0; i < threads.size(); ++i) std::printf(" --- |");
  std::printf("\n");
  row("a link over TCP", word, threads,
      [](std::size_t n) { return gigabytes_a_second(n, false, false); });
  row("with checksums", word, threads,
      [](std::size_t n) { return gigabytes_a_second(n, false, true); });
  row("encrypted", word, threads, [](std::size_t n) { return gigabytes_a_second(n, true, false); });
  row("a sum of float32", word, threads, [](std::size_t n) { return sums_a_second(n, false); });
  row("float32 to int8", word, threads, [](std::size_t n) { return sums_a_second(n, true); });
  return 0;
}

}  // namespace pccl::costs

int main(int argc, char** argv) {
  std::vector<std::size_t> threads;
  std::string word;
  for (int i = 1; i < argc; ++i) {
    const std::size_t count = std::strtoul(argv[i], nullptr, 10);
    if (count > 0) {
      threads.push_back(count);
    } else {
      word = argv[i];
    }
  }
  if (threads.empty()) {
    threads = {1, 2};
    const std::size_t half = std::thread::hardware_concurrency() / 2;
    if (half > 2) threads.push_back(half);
  }
  return pccl::costs::run(threads, word);
}
