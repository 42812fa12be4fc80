// The module pccl_backend._C; its types are in pccl_backend/_C.pyi, function by function.
// Translates between Python values and the engine's, releases the GIL around every call that can
// wait, and calls Python on threads of its own for events of the engine's thread, which never takes
// the GIL.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <atomic>
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
#include "torch/bind_state.h"
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
using std::chrono::milliseconds;

constexpr std::uint64_t kSliceMs = 100;   // between two looks at the signals
constexpr std::uint64_t kDrainMs = 5000;  // for functions of users, at the end

milliseconds to_milliseconds(double seconds) {
  TORCH_CHECK_VALUE(seconds >= 0, "pccl: a time must not be negative, got ", seconds, " s");
  constexpr double kMax = 1e12;  // about 30 years: "for ever", without an overflow anywhere
  return milliseconds(static_cast<std::int64_t>(std::min(seconds * 1000 + 0.5, kMax)));
}

std::uint64_t to_ms(double seconds) {
  return static_cast<std::uint64_t>(to_milliseconds(seconds).count());
}

// ------------------------------------------------------------------------------- threads of Python

/// The queue for work that needs the GIL, filled by the engine's thread. Never destroyed, like the
/// owner. Made on a thread of the program, whose signal mask its threads have.
struct PythonThreads {
  std::shared_ptr<Completions> events = std::make_shared<Completions>("pccl-events", true);
  std::shared_ptr<Completions> logs = std::make_shared<Completions>("pccl-log", true);
  std::shared_ptr<Completions> releases = std::make_shared<Completions>("pccl-release", true);
  std::atomic<bool> over{false};  // the interpreter is about to end: nothing calls it any more

  static PythonThreads& instance() {
    static auto* threads = new PythonThreads;
    return *threads;
  }
};

/// For tasks of PythonThreads: may they use Python? Such a thread keeps its Python state for good:
/// a child that is forked while a state is made or deleted may hang (python/cpython#112275).
bool enter_python() {
  if (PythonThreads::instance().over.load() || Py_IsInitialized() == 0) return false;
  static thread_local bool kept = false;
  if (!std::exchange(kept, true)) {
    static_cast<void>(PyGILState_Ensure());  // never released
    PyEval_SaveThread();
  }
  return true;
}

/// A Python object that any thread may hold and release.
std::shared_ptr<void> held(py::object object) {
  PyObject* pointer = object.release().ptr();
  return {pointer, [](void* raw) {
            PythonThreads::instance().releases->run([raw] {
              if (!enter_python()) return;
              const GilAcquire gil;
              call_or_stay([raw] { Py_DECREF(static_cast<PyObject*>(raw)); });
            });
          }};
}

/// Calls `held_function` with the result of `arguments`, under the GIL; logs an exception.
template <typename Arguments>
void call_python(const std::shared_ptr<void>& held_function, const char* what,
                 Arguments arguments) {
  if (!enter_python()) return;
  const GilAcquire gil;
  try {
    const py::tuple given = arguments();
    PyObject* result = call_or_stay([&] {
      return PyObject_CallObject(static_cast<PyObject*>(held_function.get()), given.ptr());
    });
    if (result == nullptr) throw py::error_already_set();
    Py_DECREF(result);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(what);
  }
}

// ------------------------------------------------------------------------------- values

py::list to_hex(const std::vector<PeerId>& peers) {
  py::list list;
  for (const PeerId peer : peers) list.append(to_string(peer));
  return list;
}

StateRoot to_root(bool present, std::uint64_t revision, const py::bytes& digest) {
  return {present, revision, present ? to_digest(digest) : Digest{}};
}

Snapshot to_snapshot(const StateRoot& root, const Items& items, py::object keep) {
  Snapshot snapshot{root.digest, {}, held(std::move(keep))};
  for (const auto& [address, bytes] : items) snapshot.items.push_back({to_pointer(address), bytes});
  return snapshot;
}

py::dict to_dict(const StateRoot& root) {
  py::dict dict;
  dict["present"] = root.present;
  dict["revision"] = root.revision;
  dict["digest"] = to_bytes(root.digest);
  return dict;
}

py::dict to_dict(const BoundaryEvent& event) {
  using What = BoundaryEvent::What;
  py::dict dict;
  dict["what"] = event.what == What::hash    ? "hash"
                 : event.what == What::fetch ? "fetch"
                                             : "finished";
  dict["step"] = event.step;
  dict["voted"] = event.voted;
  dict["admitted"] = event.admitted;
  dict["left"] = event.left;
  dict["ended"] = event.ended;
  dict["contributors"] = event.contributors;
  dict["root"] = to_dict(event.what == What::fetch ? event.plan.root : event.root);
  if (event.what == What::fetch) {
    dict["epoch"] = event.epoch.value;
    dict["sources"] = to_hex(event.plan.sources);
    dict["why"] = event.plan.why;
  }
  return dict;
}

py::dict to_dict(const GroupEvent& event) {
  using What = GroupEvent::What;
  static const std::map<What, const char*> kNames{{What::epoch, "epoch"},
                                                  {What::master_lost, "master_lost"},
                                                  {What::master_back, "master_back"},
                                                  {What::evicted, "evicted"},
                                                  {What::left, "left"}};
  py::dict dict;
  dict["what"] = kNames.at(event.what);
  dict["epoch"] = to_string(event.epoch);
  dict["lost"] = to_hex(event.lost);
  dict["joined"] = to_hex(event.joined);
  dict["lost_names"] = event.lost_names;
  dict["joined_names"] = event.joined_names;
  dict["members"] = event.members;
  dict["text"] = event.text;
  return dict;
}

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

Place to_place(const std::optional<py::dict>& dict) {
  Place place;
  if (!dict) return place;
  Fields fields(*dict);
  fields.take("replica", place.replica);
  fields.take("attempt", place.attempt);
  fields.take("rank", place.rank);
  fields.take("size", place.size);
  fields.refuse_others();
  return place;
}

// ------------------------------------------------------------------------------- functions

std::pair<int, int> join(std::vector<std::string> masters, std::string run,
                         const std::optional<py::dict>& place, bool raises, double timeout_s) {
  const JoinOptions options{std::move(masters), std::move(run), to_place(place), raises,
                            to_ms(timeout_s)};
  const GilRelease release;
  const GroupView view = join_run(options);
  return {view.rank, view.size};
}

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

py::dict group_view() {
  const auto engine = joined_engine();
  const GroupView view = engine->view(kElasticGroup);
  py::dict dict;
  dict["rank"] = view.rank;
  dict["size"] = view.size;
  dict["epoch"] = to_string(view.epoch);
  dict["epoch_number"] = view.epoch.value;
  dict["step"] = view.step;
  dict["numbering"] = to_hex(*view.numbering);
  dict["ring"] = to_hex(*view.ring);
  dict["lines"] = py::make_tuple(view.lines.farthest_us, view.lines.neighbour_us,
                                 view.lines.mbit_per_s, view.lines.near_us, view.lines.local);
  dict["sites"] = view.lines.sites;
  dict["self"] = to_string(engine->handle("").peer);
  dict["admitted"] = view.admitted;
  dict["evicted"] = view.evicted;
  dict["left"] = view.left;
  dict["contributors"] = *view.contributors;
  return dict;
}

void set_event_sink(const std::optional<py::function>& function) {
  std::function<void(const GroupEvent&)> sink;
  if (function) {
    PythonThreads& threads = PythonThreads::instance();
    sink = [&threads, target = held(*function)](const GroupEvent& event) {
      threads.events->run([target, event] {
        call_python(target, "the function of pccl's group events",
                    [&] { return py::make_tuple(to_dict(event)); });
      });
    };
  }
  const GilRelease release;
  EngineOwner::instance().set_event_sink(std::move(sink));
}

void set_log_sink_to(const std::optional<py::function>& function) {
  LogSink sink;
  if (function) {
    PythonThreads& threads = PythonThreads::instance();
    sink = [&threads, target = held(*function)](LogLevel level, std::string_view text) {
      threads.logs->run([target, level, line = std::string(text)] {
        call_python(target, "the function of pccl's log",
                    [&] { return py::make_tuple(static_cast<int>(level), line); });
      });
    };
  }
  const GilRelease release;  // the present sink may be in use
  set_log_sink(std::move(sink));
}

void leave(bool at_once) {
  const auto engine = joined_engine();
  const GilRelease release;
  engine->run().leave(at_once);
}

void abort_run(const std::string& why) {
  const auto engine = joined_engine();
  const GilRelease release;
  engine->abort(kElasticGroup, why);
}

// `talk` (_session.Talk) records the state of the conversation before Python can raise an exception
// of a signal's handler: an interrupted call is continued by the next one.

void boundary_begin(const std::string& kind, bool verify, std::optional<double> timeout_s,
                    const py::object& talk, std::optional<std::uint64_t> finish) {
  TORCH_CHECK_VALUE(kind == "refresh" || kind == "resume",
                    "pccl: kind is 'refresh' or 'resume', got '", kind, "'");
  const BoundaryRequest request{kind == "refresh" ? VoteKind::refresh : VoteKind::resume, verify,
                                timeout_s ? std::max<std::uint64_t>(to_ms(*timeout_s), 1) : 0,
                                finish};
  const auto engine = joined_engine();
  Error error;
  {
    const GilRelease release;
    error = engine->run().boundary_begin(request);
  }
  check(error);
  talk.attr("is_open") = true;
}

bool boundary_next(double timeout_s, const py::object& talk) {
  const auto engine = joined_engine();
  std::uint64_t left_ms = to_ms(timeout_s);
  std::optional<Result<BoundaryEvent>> event;
  {
    const GilRelease release;
    for (;;) {
      const std::uint64_t slice = std::min(left_ms, kSliceMs);
      event = engine->run().boundary_next(slice);
      if (event) break;
      check_signals();
      left_ms -= slice;
      if (left_ms == 0) break;
    }
  }
  if (!event) return false;
  if (event->error().failed()) talk.attr("is_open") = false;
  check(event->error());
  talk.attr("unanswered") = to_dict(event->value());
  return true;
}

void copy_results() {
  const GilRelease release;
  Uncopied::copy_all_that_is_done();
}

void boundary_root(bool present, std::uint64_t revision, const py::bytes& digest,
                   const Items& items, py::object keep) {
  const StateRoot root = to_root(present, revision, digest);
  Snapshot snapshot = to_snapshot(root, items, std::move(keep));
  const auto engine = joined_engine();
  const GilRelease release;
  engine->run().boundary_root(root, std::move(snapshot));
}

bool boundary_adopt(std::uint64_t revision, const py::bytes& digest) {
  const StateRoot root = to_root(true, revision, digest);
  const auto engine = joined_engine();
  std::shared_ptr<Ticket> ticket;
  {
    const GilRelease release;
    ticket = engine->run().boundary_adopt(root);
    ticket->wait(std::nullopt);
  }
  check(ticket->error());
  return ticket->amount == 1;
}

void boundary_fetched(bool present, std::uint64_t revision, const py::bytes& digest,
                      const Items& items, py::object keep) {
  const StateRoot root = to_root(present, revision, digest);
  Snapshot snapshot = to_snapshot(root, items, std::move(keep));
  const auto engine = joined_engine();
  const GilRelease release;
  engine->run().boundary_fetched(root, std::move(snapshot));
}

/// What the engine answers to a question. Raises where it does not.
template <typename Question>
auto answer_of(const Question& question) {
  const GilRelease release;
  auto answer = question();
  check(answer.error());
  return std::move(answer).value();
}

py::list in_flight() {
  py::list list;
  const auto engine = EngineOwner::instance().existing();
  if (!engine) return list;
  const auto operations = answer_of([&] { return engine->in_flight(kElasticGroup); });
  for (const OpInFlight& operation : operations) {
    py::dict dict;
    dict["op"] = to_string(operation.op);
    dict["kind"] = std::string(kind_name(operation.descriptor.kind));
    dict["bytes_sent"] = operation.bytes_sent;
    dict["bytes_received"] = operation.bytes_received;
    dict["complete"] = operation.complete;
    list.append(dict);
  }
  return list;
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
  PythonThreads& threads = PythonThreads::instance();
  for (const auto& thread : {threads.events, threads.logs, threads.releases}) {
    thread->drain(kDrainMs);
  }
}

/// The program has ended, and a part of it goes on with the fixed groups.
void leave_run(const std::string& failure) {
  const GilRelease release;
  if (EngineOwner::instance().forked()) return;
  const auto engine = EngineOwner::instance().existing();
  if (engine) engine->close(kElasticGroup, failure);
}

/// Before the interpreter ends: the engine ends in good order, and no thread of ours is in Python
/// any more.
void end(const std::string& failure) {
  interpreter_ends();
  shut_down(failure);
  const GilRelease release;
  PythonThreads& threads = PythonThreads::instance();
  threads.over.store(true);
  if (EngineOwner::instance().forked()) return;
  for (const auto& thread : {threads.events, threads.logs, threads.releases}) {
    thread->drain(kDrainMs);
  }
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
  m.def("join", &join, py::arg("masters"), py::arg("run"), py::arg("place"), py::arg("raises"),
        py::arg("timeout_s"));
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
  m.def("group_view", &group_view);
  m.def("set_event_sink", &set_event_sink, py::arg("function"));
  m.def("leave", &leave, py::arg("at_once"));
  m.def("abort_run", &abort_run, py::arg("why"));
  m.def("boundary_begin", &boundary_begin, py::arg("kind"), py::arg("verify"), py::arg("timeout_s"),
        py::arg("talk"), py::arg("finish") = py::none());
  m.def("boundary_next", &boundary_next, py::arg("timeout_s"), py::arg("talk"));
  m.def("copy_results", &copy_results);
  m.def("boundary_root", &boundary_root, py::arg("present"), py::arg("revision"), py::arg("digest"),
        py::arg("items"), py::arg("keep"));
  m.def("boundary_adopt", &boundary_adopt, py::arg("revision"), py::arg("digest"));
  m.def("boundary_fetched", &boundary_fetched, py::arg("present"), py::arg("revision"),
        py::arg("digest"), py::arg("items"), py::arg("keep"));
  bind_state(m);
  m.def("in_flight", &in_flight);
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
  m.def("leave_run", &leave_run, py::arg("failure"));
  m.def("end", &end, py::arg("failure"));
}
