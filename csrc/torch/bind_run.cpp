// The part of the module that speaks of the process's run: joining it, its group, its boundaries,
// its end.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/engine_owner.h"
#include "python/fields.h"
#include "python/gil.h"
#include "python/python_threads.h"
#include "torch/bind.h"
#include "torch/errors.h"
#include "torch/process_group.h"

namespace pccl {
namespace {

namespace py = pybind11;

constexpr std::uint64_t kSliceMs = 100;  // between two looks at the signals

std::uint64_t to_ms(double seconds) {
  return static_cast<std::uint64_t>(to_milliseconds(seconds).count());
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
  dict["without_master"] = view.without_master;
  dict["told"] = view.told;
  dict["contributors"] = *view.contributors;
  return dict;
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
    dict["algorithm"] = std::string(algorithm_name(operation.algorithm));
    list.append(dict);
  }
  return list;
}

void set_event_sink(const std::optional<py::function>& function) {
  std::function<void(const GroupEvent&)> sink;
  if (function) {
    sink = [target = held(*function)](const GroupEvent& event) {
      call_event_function(target, [event] { return py::make_tuple(to_dict(event)); });
    };
  }
  const GilRelease release;
  EngineOwner::instance().set_event_sink(std::move(sink));
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

/// The program has ended, and a part of it goes on with the fixed groups.
void leave_run(const std::string& failure) {
  const GilRelease release;
  if (EngineOwner::instance().forked()) return;
  const auto engine = EngineOwner::instance().existing();
  if (engine) engine->close(kElasticGroup, failure);
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
  return ticket->seen<AdoptionResult>().adopted;
}

void boundary_fetched(bool present, std::uint64_t revision, const py::bytes& digest,
                      const Items& items, py::object keep) {
  const StateRoot root = to_root(present, revision, digest);
  Snapshot snapshot = to_snapshot(root, items, std::move(keep));
  const auto engine = joined_engine();
  const GilRelease release;
  engine->run().boundary_fetched(root, std::move(snapshot));
}

}  // namespace

void bind_run(py::module_& m) {
  m.def("join", &join, py::arg("masters"), py::arg("run"), py::arg("place"), py::arg("raises"),
        py::arg("timeout_s"));
  m.def("group_view", &group_view);
  m.def("set_event_sink", &set_event_sink, py::arg("function"));
  m.def("leave", &leave, py::arg("at_once"));
  m.def("abort_run", &abort_run, py::arg("why"));
  m.def("boundary_begin", &boundary_begin, py::arg("kind"), py::arg("verify"), py::arg("timeout_s"),
        py::arg("talk"), py::arg("finish") = py::none());
  m.def("boundary_next", &boundary_next, py::arg("timeout_s"), py::arg("talk"));
  m.def("boundary_root", &boundary_root, py::arg("present"), py::arg("revision"), py::arg("digest"),
        py::arg("items"), py::arg("keep"));
  m.def("boundary_adopt", &boundary_adopt, py::arg("revision"), py::arg("digest"));
  m.def("boundary_fetched", &boundary_fetched, py::arg("present"), py::arg("revision"),
        py::arg("digest"), py::arg("items"), py::arg("keep"));
  m.def("in_flight", &in_flight);
  m.def("leave_run", &leave_run, py::arg("failure"));
}

}  // namespace pccl
