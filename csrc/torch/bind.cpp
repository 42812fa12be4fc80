// The module pccl_backend._C; its types are in pccl_backend/_C.pyi, function by function.
// Translates between Python values and the engine's, releases the GIL around every call that can
// wait, and calls Python on threads of its own for events of the engine's thread, which never takes
// the GIL.
#include "torch/bind.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/libraries.h"
#include "python/engine_owner.h"
#include "python/fields.h"
#include "python/gil.h"
#include "python/python_threads.h"
#include "torch/errors.h"
#include "torch/group_context.h"
#include "torch/process_group.h"
#include "torch/quantise.h"
#include "torch/staging.h"
#include "torch/store.h"
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

bool is_elastic(const py::object& group) {
  if (py::isinstance<c10d::ProcessGroup>(group)) {
    const auto pg = group.cast<c10::intrusive_ptr<c10d::ProcessGroup>>();
    return dynamic_cast<ElasticProcessGroup*>(pg.get()) != nullptr;
  }
  if (py::isinstance<c10d::Backend>(group)) {
    const auto base = group.cast<c10::intrusive_ptr<c10d::Backend>>();
    const auto* backend = dynamic_cast<PcclBackend*>(base.get());
    return backend != nullptr && backend->elastic();
  }
  return false;
}

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
    list.append(dict);
  }
  return list;
}

std::string library_with(const std::string& symbol) {
  const auto library = library_of(symbol);
  TORCH_CHECK_VALUE(library.has_value(), "pccl: not a symbol that is looked after: '", symbol, "'");
  return *library;
}

void shut_down(const std::string& failure) {
  const GilRelease release;
  EngineOwner::instance().shutdown(failure);
  if (EngineOwner::instance().forked()) return;
  drain_python_threads();
}

/// Before the interpreter ends: the engine ends in good order, and no thread of ours is in Python
/// any more.
void end(const std::string& failure) {
  interpreter_ends();
  shut_down(failure);
  const GilRelease release;
  end_python_threads();
  if (!EngineOwner::instance().forked()) drain_python_threads();
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
  m.def(
      "create_fixed",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, double timeout_s,
         const std::string& name) {
        const GilRelease release;
        return create_fixed(store, rank, size, to_milliseconds(timeout_s), name);
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout_s"), py::arg("name"));
  m.def(
      "create_of_run",
      [](const std::vector<std::string>& peers, int rank, double timeout_s, const std::string& name,
         const std::string& number) {
        std::vector<PeerId> members;
        for (const std::string& peer : peers) members.push_back(to_peer(peer));
        const GilRelease release;
        return create_of_run(members, rank, to_milliseconds(timeout_s), name, number);
      },
      py::arg("peers"), py::arg("rank"), py::arg("timeout_s"), py::arg("name"), py::arg("number"));
  m.def(
      "create_unconfigured",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, double timeout_s) {
        const GilRelease release;
        return create_unconfigured(store, rank, size, to_milliseconds(timeout_s));
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout_s"));
  py::class_<GroupOptions, c10::intrusive_ptr<GroupOptions>, c10d::Backend::Options>(m,
                                                                                     "GroupOptions")
      .def_property_readonly("quantise",
                             [](const GroupOptions& self) {
                               return std::string(quantisation_name(self.quantisation));
                             })
      .def("__copy__",
           [](const GroupOptions& self) { return c10::make_intrusive<GroupOptions>(self); })
      .def(
          "__deepcopy__",
          [](const GroupOptions& self, const py::dict&) {
            return c10::make_intrusive<GroupOptions>(self);
          },
          py::arg("memo"));
  // torch.distributed.split_group asks a Backend for `options`, which up to 2.13 not all have.
  py::class_<PcclBackend, c10::intrusive_ptr<PcclBackend>, c10d::Backend>(m, "Backend")
      .def_property_readonly("options", &PcclBackend::getBackendOptions)
      .def_property(
          "quantise",
          [](const PcclBackend& self) {
            return std::string(quantisation_name(self.quantisation()));
          },
          [](PcclBackend& self, const std::string& name) {
            self.set_quantisation(quantisation_of(name));
          })
      // c10d calls it at the ranks of a group with `device_id` that are not in a new one.
      .def("perform_nocolor_split", [](PcclBackend&, const py::object&) {}, py::arg("device"));
  m.def(
      "quantise_next_call",
      [](const std::optional<std::string>& name, const std::optional<at::Tensor>& sum_error) {
        quantise_next_call({name ? std::make_optional(quantisation_of(*name)) : std::nullopt,
                            sum_error.value_or(at::Tensor())});
      },
      py::arg("quantise"), py::arg("sum_error"));
  m.def(
      "as_sent",
      [](const at::Tensor& tensor, const std::string& quantise) {
        const Quantisation how = quantisation_of(quantise);
        const GilRelease release;
        return as_sent(tensor, how);
      },
      py::arg("tensor"), py::arg("quantise"));
  m.def(
      "create_elastic",
      [](double timeout_s, const std::string& name, const std::vector<std::string>& devices,
         const std::string& quantise) {
        const Quantisation how = quantisation_of(quantise);
        const GilRelease release;
        return create_elastic(to_milliseconds(timeout_s), name, devices, how);
      },
      py::arg("timeout_s"), py::arg("name"), py::arg("device_types"), py::arg("quantise"));
  m.def(
      "elastic_store",
      [](double timeout_s) {
        return c10::intrusive_ptr<c10d::Store>(
            c10::make_intrusive<EngineStore>(joined_engine(), to_milliseconds(timeout_s)));
      },
      py::arg("timeout_s"));
  m.def("is_elastic", &is_elastic, py::arg("group"));
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
