// The part of the module that fetches a shared state. A fetch runs on the caller's thread, without
// the GIL: that thread asks the engine for one item after the other, hashes it on all cores, and
// may be interrupted.
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>

#include "python/gil.h"
#include "python/hash_items.h"
#include "state/fetch.h"
#include "torch/bind.h"
#include "torch/errors.h"
#include "torch/process_group.h"
#include "torch/work.h"

namespace pccl {
namespace {

namespace py = pybind11;

using Wanted = std::tuple<std::uint32_t, py::bytes, std::optional<std::uint64_t>>;
using Target = std::tuple<py::bytes, std::uintptr_t, std::uint64_t>;

std::vector<py::bytes> sha256_of(const Items& items) {
  std::vector<std::span<const std::byte>> spans;
  for (const auto& [address, bytes] : items) spans.emplace_back(to_pointer(address), bytes);
  std::vector<Digest> digests;
  {
    const GilRelease release;
    digests = hash_items(spans);
  }
  std::vector<py::bytes> result;
  for (const Digest& digest : digests) result.push_back(to_bytes(digest));
  return result;
}

/// Interrupted, it returns when the engine writes to the memory no more.
Error pull(Engine& engine, const Digest& root, const TransferPlan::Pull& next,
           StateFetch::Memory& to) {
  const Buffer buffer{to.span().data(), to.span().size()};
  const auto ticket = engine.run().pull(next.source, root, next.item.index, buffer);
  try {
    wait_interruptibly(engine, *ticket, std::nullopt);
  } catch (...) {
    engine.run().cancel_pull(ticket);
    static_cast<void>(engine.wait(*ticket, std::nullopt));
    throw;
  }
  if (!ticket->error().failed() && !next.item.bytes) {
    to = StateFetch::Memory(std::span<const std::byte>(ticket->seen<PullResult>().bytes));
  }
  return ticket->error();
}

bool run(StateFetch& fetch, const py::bytes& root, const std::vector<std::string>& sources,
         const std::vector<Wanted>& items) {
  const Digest of = to_digest(root);
  std::vector<WantedItem> wanted;
  for (const auto& [index, digest, bytes] : items) {
    wanted.push_back({index, to_digest(digest), bytes});
  }
  std::vector<PeerId> peers;
  for (const std::string& source : sources) peers.push_back(to_peer(source));
  const auto engine = joined_engine();
  const auto result = [&] {
    const GilRelease release;
    return fetch.run(
        std::move(wanted), std::move(peers),
        [&](const TransferPlan::Pull& next, StateFetch::Memory& to) {
          return pull(*engine, of, next, to);
        },
        [](std::span<const std::byte> bytes) { return hash_items({{bytes}}).front(); });
  }();
  check(result.error());
  return result.value();
}

void replace(StateFetch& fetch, const std::vector<Target>& targets) {
  std::vector<StateFetch::Target> to;
  for (const auto& [digest, address, bytes] : targets) {
    to.push_back({to_digest(digest), {to_pointer(address), bytes}});
  }
  const Error error = [&] {
    const GilRelease release;
    return fetch.replace(to);
  }();
  check(error);
}

/// All steps; a step that a signal interrupts begins anew, a step that fails is left, and the first
/// error raised at the end.
void to_the_end(const std::vector<py::function>& steps, int interrupts_max) {
  int interrupts = 0;
  std::optional<py::error_already_set> failure;
  for (std::size_t done = 0; done < steps.size();) {
    try {
      steps[done]();
      ++done;
    } catch (py::error_already_set& error) {
      if (error.matches(PyExc_KeyboardInterrupt) || error.matches(PyExc_SystemExit)) {
        if (++interrupts == interrupts_max) throw;
      } else {
        if (!failure) failure = error;
        ++done;
      }
    }
  }
  if (failure) throw *failure;
}

/// Returns the result of `call`; if it raises, the way back runs to its end. An exception of a
/// signal's handler comes between two instructions of Python, and there are none here.
py::object or_back(const py::function& call, const std::vector<py::function>& way_back,
                   int interrupts_max) {
  try {
    return call();
  } catch (py::error_already_set&) {
    to_the_end(way_back, interrupts_max);
    throw;
  }
}

/// Calls of Python functions, one at a time: a handler of a signal, or another thread, may call
/// while one is under way. The GIL guards it.
class Turn {
 public:
  py::object take(const py::function& call) {
    if (taken_) {
      throw std::runtime_error(
          "pccl: another call of refresh or resume has not returned; this one is of another thread "
          "or of a signal handler: expected one call at a time in this process");
    }
    taken_ = true;
    const GiveBack give_back{taken_};
    return call();
  }

 private:
  struct GiveBack {
    bool& taken;
    ~GiveBack() { taken = false; }
  };
  bool taken_ = false;
};

}  // namespace

void bind_state(py::module_& m) {
  m.def("sha256", &sha256_of, py::arg("items"));
  m.def("or_back", &or_back, py::arg("call"), py::arg("way_back"), py::arg("interrupts_max"));
  py::class_<Turn>(m, "Turn").def("take", &Turn::take, py::arg("call"));
  m.attr("turn") = Turn();  // here, once, and not by the first call: two threads may make it
  py::class_<StateFetch>(m, "StateFetch")
      .def(py::init<>())
      .def("run", &run, py::arg("root"), py::arg("sources"), py::arg("items"))
      .def(
          "at",
          [](const StateFetch& fetch, const py::bytes& digest) {
            const auto bytes = fetch.at(to_digest(digest));
            return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          py::arg("digest"))
      .def("replace", &replace, py::arg("targets"))
      .def("take_back",
           [](StateFetch& fetch) {
             const GilRelease release;
             fetch.take_back();
           })
      .def("clear", &StateFetch::clear)
      .def_property_readonly("bytes_received", &StateFetch::bytes_received);
}

}  // namespace pccl
