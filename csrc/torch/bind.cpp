// The module pccl_backend._C; its types are in pccl_backend/_C.pyi, function by function.
// Translates between Python values and the engine's, releases the GIL around every call that can
// wait, and calls Python on threads of its own for events of the engine's thread, which never takes
// the GIL.
#include "torch/bind.h"

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "engine/libraries.h"
#include "python/engine_owner.h"
#include "python/fields.h"
#include "python/gil.h"
#include "python/python_threads.h"
#include "torch/errors.h"
#include "torch/group_context.h"
#include "torch/staging.h"
#include "torch/work.h"
#include "trust/token_file.h"

namespace pccl {
namespace {

namespace py = pybind11;

// ------------------------------------------------------------------------------- values

/// `name` is empty: nobody has chosen.
Plaintext to_plaintext(const std::string& name, bool has_tokens) {
  static const std::map<std::string, Plaintext> kNames{
      {"none", Plaintext::none}, {"loopback", Plaintext::loopback}, {"all", Plaintext::all}};
  if (name.empty()) return has_tokens ? Plaintext::none : Plaintext::all;
  const auto found = kNames.find(name);
  if (found == kNames.end()) throw py::value_error("plaintext is " + name);
  return found->second;
}

EngineOptions to_options(const py::dict& dict) {
  EngineOptions options;
  Fields fields(dict);
  fields.take("package", options.package);
  fields.take("name", options.name);
  fields.take("host", options.host);
  fields.take("advertise", options.advertise);
  fields.take("threads", options.threads);
  fields.take("connect_timeout_ms", options.connect_timeout_ms);
  fields.take("master_timeout_ms", options.master_timeout_ms);
  fields.take("preimage_bytes_max", options.preimage_bytes_max);
  fields.take("hold_timeout_ms", options.hold_timeout_ms);
  fields.take("silence_timeout_ms", options.silence_timeout_ms);
  fields.take("stall_timeout_ms", options.stall_timeout_ms);
  fields.take("goodbye_timeout_ms", options.goodbye_timeout_ms);
  LinkOptions& links = options.links;
  fields.take("listen_hosts", links.listen_hosts);
  fields.take("port_first", links.port_first);
  fields.take("port_last", links.port_last);
  fields.take("tcp_user_timeout_ms", links.tcp_user_timeout_ms);
  fields.take("shared_memory", links.shared_memory);
  fields.take("bbr", links.bbr);
  fields.take("max_rate", links.max_rate);
  std::string plaintext;
  std::string token_file;
  std::string token;
  fields.take("plaintext", plaintext);
  fields.take("token_file", token_file);
  fields.take("token", token);
  fields.refuse_others();
  auto tokens = held_tokens(token_file, token);
  check(tokens.error());
  options.tokens = std::move(tokens).value();
  links.plaintext = to_plaintext(plaintext, options.tokens != nullptr);
  return options;
}

// ------------------------------------------------------------------------------- functions

void set_log_sink_to(const std::optional<py::function>& function) {
  LogSink sink;
  if (function) {
    sink = [target = held(*function)](LogLevel level, std::string_view text) {
      call_log_function(target, [level, line = std::string(text)] {
        return py::make_tuple(static_cast<int>(level), line);
      });
    };
  }
  const GilRelease release;  // the present sink may be in use
  set_log_sink(std::move(sink));
}

void copy_results() {
  const GilRelease release;
  Uncopied::copy_all_that_is_done();
}

std::map<std::string, std::uint64_t> counters() {
  EngineCounters counters;
  if (const auto engine = EngineOwner::instance().existing()) {
    counters = answer_of([&] { return engine->counters(); });
  }
  std::map<std::string, std::uint64_t> named;
  EngineCounters::fields(counters,
                         [&](const char* name, std::uint64_t value) { named[name] = value; });
  return named;
}

py::list links() {
  py::list list;
  const auto engine = EngineOwner::instance().existing();
  if (!engine) return list;
  const auto views = answer_of([&] { return engine->links(); });
  for (const LinkView& view : views) {
    py::dict dict;
    dict["peer"] = view.name;
    dict["carrier"] = view.carrier;
    dict["bytes_sent"] = view.bytes_sent;
    dict["bytes_received"] = view.bytes_received;
    dict["bytes_resent"] = view.bytes_resent;
    dict["lanes"] = 1 + view.bulk_lanes;
    dict["lanes_lost"] = view.lanes_lost;
    dict["round_trip_s"] = static_cast<double>(view.round_trip_us) / 1e6;
    dict["bbr"] = view.bbr;
    dict["limit"] = view.pace;
    py::list lanes;
    for (const LaneView& lane : view.lanes) {
      py::dict one;
      one["bytes_sent"] = lane.bytes_sent;
      one["bytes_resent"] = lane.bytes_resent;
      one["rate"] = lane.rate;
      one["round_trip_s"] = static_cast<double>(lane.round_trip_us) / 1e6;
      lanes.append(one);
    }
    dict["by_lane"] = lanes;
    list.append(dict);
  }
  return list;
}

std::string library_with(const std::string& symbol) {
  const auto library = library_of(symbol);
  TORCH_CHECK_VALUE(library.has_value(), "pccl: not a symbol that is looked after: '", symbol, "'");
  return *library;
}

/// What others still need may take long: Ctrl-C ends the wait.
void shut_down(const std::string& failure) {
  std::exception_ptr signal;
  {
    const GilRelease release;
    EngineOwner::instance().shutdown(failure, [&signal] {
      try {
        check_signals();
      } catch (const py::error_already_set&) {
        signal = std::current_exception();
      }
      return signal != nullptr;
    });
    if (!EngineOwner::instance().forked()) drain_python_threads();
  }
  if (signal) std::rethrow_exception(signal);
}

/// Before the interpreter ends: the engine ends in good order, and no thread of ours is in Python
/// any more.
void end(const std::string& failure) {
  interpreter_ends();
  std::exception_ptr signal;
  try {
    shut_down(failure);
  } catch (const py::error_already_set&) {
    signal = std::current_exception();
  }
  {
    const GilRelease release;
    end_python_threads();
    if (!EngineOwner::instance().forked()) drain_python_threads();
  }
  if (signal) std::rethrow_exception(signal);
}

}  // namespace
}  // namespace pccl

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace pccl;
  py::module_::import("torch.distributed");  // registers the types that are returned
  register_translator();
  m.doc() = "The torch side of pccl's engine; see _C.pyi.";
  m.attr("TORCH_VERSION") = PCCL_TORCH_VERSION;

  m.def(
      "configure_engine",
      [](const py::dict& options) {
        check(EngineOwner::instance().configure(to_options(options)));
      },
      py::arg("options"));
  m.def("raise_late_failure", [] {
    const auto engine = EngineOwner::instance().existing();
    if (engine) LateFailure::of(kElasticGroup)->raise_once();
  });
  m.def("set_stream_wait", &set_stream_wait, py::arg("wait"), py::arg("launches_block"));
  m.def(
      "wait_for_devices",
      [](std::optional<double> timeout_s) {
        return wait_for_devices(timeout_s ? std::make_optional(to_milliseconds(*timeout_s))
                                          : std::nullopt);
      },
      py::arg("timeout_s"));
  bind_groups(m);
  m.def("copy_results", &copy_results);
  bind_run(m);
  bind_state(m);
  m.def("counters", &counters);
  m.def("links", &links);
  m.def(
      "set_log_level",
      [](const std::string& level) { set_log_level(parse_log_level(level, log_level())); },
      py::arg("level"));
  m.def("set_log_sink", &set_log_sink_to, py::arg("function"));
  m.def("library_of", &library_with, py::arg("symbol"));
  m.def(
      "break_invariant",
      [](const std::string& what) {
        const auto engine = EngineOwner::instance().existing();
        const GilRelease release;
        if (engine) engine->break_invariant(what);
      },
      py::arg("what"));
  m.def("shutdown", [] { shut_down(""); });
  m.def("end", &end, py::arg("failure"));
}
