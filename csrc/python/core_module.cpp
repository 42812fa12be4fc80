// The extension pccl_backend._core: the master, and the pure cores for the tests, without torch, so
// that `pccl-master` starts where torch is not installed.
//
// Translates between Python values and our structs, and decides nothing. Wrong names and values are
// ValueError, said by name; a broken invariant is RuntimeError.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/types.h"
#include "collectives/schedule.h"
#include "kernels/reduce.h"
#include "master/ask.h"
#include "master/options.h"
#include "master/register_file.h"
#include "master/server.h"
#include "python/fields.h"
#include "python/gil.h"
#include "trust/token_file.h"

namespace py = pybind11;

namespace pccl {
namespace {

// ------------------------------------------------------------------------------------------- names

/// The value of an enum whose name, by `name_of`, is `text`; values are 0 to `last`.
template <typename Enum>
Enum by_name(const std::string& text, Enum last, std::string_view (*name_of)(Enum),
             std::string_view what) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    const auto value = static_cast<Enum>(i);
    if (name_of(value) == text) return value;
  }
  throw py::value_error("no " + std::string(what) + " of this name: \"" + text + "\"");
}

DType dtype_of(const std::string& name) { return by_name(name, kLastDType, dtype_name, "dtype"); }
ReduceOp reduce_of(const std::string& name) {
  return by_name(name, kLastReduceOp, reduce_name, "reduction");
}
OpKind kind_of(const std::string& name) {
  return by_name(name, kLastOpKind, kind_name, "collective");
}

// ------------------------------------------------------------------------------------ dictionaries

/// A register that Python keeps (pccl_backend/_etcd.py): the bytes there, their meaning here.
class PythonRegister final : public master::RegisterStore {
 public:
  PythonRegister(py::object store, std::string run, std::string where)
      : store_(std::move(store)), run_(std::move(run)), where_(std::move(where)) {}
  ~PythonRegister() override {
    const GilAcquire gil;
    store_ = py::object();
  }
  PythonRegister(const PythonRegister&) = delete;
  PythonRegister& operator=(const PythonRegister&) = delete;

  Result<master::Register> read() override {
    held_.reset();
    auto text = call<std::string>("read");
    if (!text) return text.error();
    auto held = master::register_of(text.value(), run_, where_);
    if (held) held_ = held.value();
    return held;
  }
  Result<bool> compare_and_write(const master::Register& from,
                                 const master::Register& to) override {
    if (!held_) {
      if (auto held = read(); !held) return held.error();
    }
    if (!(*held_ == from)) return false;
    held_.reset();
    auto written = call<bool>("write", py_bytes(master::format_register({run_, to})));
    if (written && written.value()) held_ = to;
    return written;
  }
  [[nodiscard]] bool shared() const override { return true; }
  Result<bool> hold() override { return call<bool>("hold"); }
  std::string holder() override {
    auto name = call<std::string>("holder");
    return name ? name.value() : "another master";
  }
  void release() override { (void)call<bool>("release"); }

 private:
  struct py_bytes {
    explicit py_bytes(std::string the_text) : text(std::move(the_text)) {}
    std::string text;
  };
  template <typename T, typename... Args>
  Result<T> call(const char* name, const Args&... args) {
    const GilAcquire gil;
    try {
      return call_or_stay(
          [&] { return store_.attr(name)(py::bytes(args.text)...).template cast<T>(); });
    } catch (py::error_already_set& error) {
      return Error{ErrorCode::unreachable, py::str(error.value()).cast<std::string>()};
    } catch (const py::cast_error& error) {
      return Error{ErrorCode::broken, where_ + ": " + name + ": " + error.what()};
    }
  }

  py::object store_;
  std::string run_;
  std::string where_;
  std::optional<master::Register> held_;  // last read or written; none: not known
};

template <typename Options>
Options options_from(const py::dict& given) {
  Options options;
  Fields fields(given);
  Options::fields(options,
                  [&](const char* name, auto& field, auto&&...) { fields.take(name, field); });
  fields.refuse_others();
  return options;
}

/// OSError says why no master can listen there.
void check_listen_at(const std::string& host, std::uint16_t port) {
  const Error error = check_listen(host, port);
  if (!error.failed()) return;
  PyErr_SetString(PyExc_OSError, printable(error.text).c_str());
  throw py::error_already_set();
}

/// `runs`: of each its options, and its register, which may be None.
int serve(const py::dict& given, const std::vector<std::pair<py::dict, py::object>>& runs) {
  const auto options = options_from<MasterOptions>(given);
  std::vector<ServedRun> served;
  for (const auto& [run_options, held] : runs) {
    ServedRun run{options_from<RunOptions>(run_options)};
    if (!held.is_none()) {
      run.held = std::make_shared<PythonRegister>(held, run.options.run, run.options.state_file);
    }
    served.push_back(std::move(run));
  }
  const GilRelease release;
  return run_master(options, std::move(served));
}

// ------------------------------------------------------------------------------------------ status

template <typename T>
py::object value_of(const T& value);
template <typename T>
py::object value_of(const std::vector<T>& list);

template <typename T>
py::dict dict_of(const T& part) {
  py::dict dict;
  T::fields(part,
            [&](const char* name, const auto& field, auto&&...) { dict[name] = value_of(field); });
  return dict;
}

template <typename T>
py::object value_of(const std::vector<T>& list) {
  py::list out;
  for (const T& part : list) {
    if constexpr (std::is_same_v<T, std::string>) {
      out.append(py::str(printable(part)));
    } else {
      out.append(dict_of(part));
    }
  }
  return out;
}

template <typename T>
py::object value_of(const T& value) {
  if constexpr (std::is_same_v<T, PeerId> || std::is_same_v<T, EpochId>) {
    return py::str(to_string(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    return py::str(printable(value));  // the answer may not be a master's
  } else {
    return py::cast(value);
  }
}

/// The answer of a master; without an answer OSError, which says what was seen.
/// A wrong token is ValueError.
py::dict status_dict(const std::string& address, const std::string& run, double timeout_s,
                     const std::string& token_file, const std::string& token) {
  auto tokens = held_tokens(token_file, token);
  if (!tokens) throw py::value_error(printable(tokens.error().text));
  auto status = [&] {
    const GilRelease release;
    return ask_status(address, run, static_cast<std::uint64_t>(timeout_s * 1000), tokens.value());
  }();
  if (!status) {
    PyErr_SetString(PyExc_OSError, printable(status.error().text).c_str());
    throw py::error_already_set();
  }
  return dict_of(status.value());
}

// ------------------------------------------------------------------------------------------ tokens

void new_token(const std::string& path, const std::string& name,
               const std::vector<std::string>& runs) {
  const Error error = add_token(path, name, runs);
  if (error.failed()) throw py::value_error(printable(error.text));
}

std::string line_of_token(const std::string& path, const std::string& name) {
  auto line = token_line(path, name);
  if (!line) throw py::value_error(printable(line.error().text));
  return std::move(line).value();
}

py::bytes private_content(const std::string& what, const std::string& path) {
  SecretText text;
  const Error error = read_private(what, path, text);
  if (error.failed()) throw py::value_error(printable(error.text));
  return {text.get().data(), text.get().size()};
}

// --------------------------------------------------------------------------------------- schedules

CollectiveArgs collective_args(const py::dict& given) {
  CollectiveArgs args;
  std::string kind = "barrier";
  std::string reduce = "none";
  std::string quantisation = "none";
  Fields fields(given);
  fields.take("kind", kind);
  fields.take("reduce", reduce);
  fields.take("rank", args.rank);
  fields.take("size", args.size);
  fields.take("root", args.root);
  fields.take("element_bytes", args.element_bytes);
  fields.take("input_bytes", args.input_bytes);
  fields.take("output_bytes", args.output_bytes);
  fields.take("quantisation", quantisation);
  fields.take("farthest_us", args.lines.farthest_us);
  fields.take("neighbour_us", args.lines.neighbour_us);
  fields.take("mbit_per_s", args.lines.mbit_per_s);
  fields.take("sites", args.lines.sites);
  fields.take("near_us", args.lines.near_us);
  fields.take("local", args.lines.local);
  fields.refuse_others();
  Sites& sites = args.lines.sites;
  if (!sites.empty() && sites.size() != args.size) throw py::value_error("sites: not one a rank");
  sites = numbered_sites(sites);
  args.kind = kind_of(kind);
  args.reduce = reduce_of(reduce);
  args.quantisation = by_name(quantisation, kQuantisationLast, quantisation_name, "quantisation");
  return args;
}

py::dict range_dict(const Range& range) {
  py::dict d;
  d["space"] = space_name(range.space);
  d["index"] = range.index;
  d["offset"] = range.offset;
  d["bytes"] = range.bytes;
  return d;
}

py::dict schedule_dict(const py::dict& given) {
  const Schedule schedule = build_schedule(collective_args(given));
  py::list steps;
  for (const Step& step : schedule.steps) {
    py::dict d;
    d["kind"] = step_name(step.kind);
    d["peer"] = step.peer;
    d["channel"] = step.channel;
    d["from"] = range_dict(step.from);
    d["to"] = range_dict(step.to);
    d["received_second"] = step.received_second;
    d["finish"] = step.finish;
    d["after"] = step.after;
    d["follows"] = step.follows;
    d["borrowed"] = step.borrowed;
    steps.append(std::move(d));
  }
  py::dict result;
  result["steps"] = std::move(steps);
  result["scratch_bytes"] = schedule.scratch_bytes;
  return result;
}

// ----------------------------------------------------------------------------------------- kernels

/// Contiguous memory of a Python buffer, held while this lives.
class Bytes {
 public:
  Bytes(const py::buffer& from, bool writable) {
    const int flags = PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(from.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  [[nodiscard]] void* data() const { return view_.buf; }
  [[nodiscard]] std::size_t count(DType dtype) const {
    const auto bytes = static_cast<std::size_t>(view_.len);
    if (bytes % dtype_bytes(dtype) != 0) {
      throw py::value_error("a buffer of " + std::to_string(bytes) + " bytes holds no whole " +
                            std::string(dtype_name(dtype)));
    }
    return bytes / dtype_bytes(dtype);
  }

 private:
  Py_buffer view_{};
};

void reduce_buffers(const py::buffer& to, const py::buffer& a, const py::buffer& b,
                    const std::string& dtype_text, const std::string& op_text) {
  const DType dtype = dtype_of(dtype_text);
  const ReduceOp op = reduce_of(op_text);
  if (!reducible(dtype, op)) throw py::value_error(dtype_text + " cannot be reduced by " + op_text);
  const Bytes out(to, true);
  const Bytes x(a, false);
  const Bytes y(b, false);
  const std::size_t count = out.count(dtype);
  if (x.count(dtype) != count || y.count(dtype) != count) {
    throw py::value_error("buffers of different sizes");
  }
  reduce_into(out.data(), x.data(), y.data(), count, dtype, op);
}

void finish_buffer(const py::buffer& data, const std::string& dtype_text,
                   std::uint64_t contributors) {
  const DType dtype = dtype_of(dtype_text);
  if (!reducible(dtype, ReduceOp::avg)) throw py::value_error(dtype_text + " has no average");
  if (contributors == 0) throw py::value_error("contributors: 0, expected at least 1");
  const Bytes values(data, true);
  finish_average(values.data(), values.count(dtype), dtype, contributors);
}

}  // namespace
}  // namespace pccl

PYBIND11_MODULE(_core, m) {
  m.doc() = "Master and pure cores of pccl, without torch.";
  m.def("run_master", &pccl::serve, py::arg("options"), py::arg("runs"));
  m.def("check_listen", &pccl::check_listen_at, py::arg("host"), py::arg("port"));
  m.def("ask_status", &pccl::status_dict, py::arg("address"), py::arg("run"), py::arg("timeout_s"),
        py::arg("token_file"), py::arg("token"));
  m.def("new_token", &pccl::new_token, py::arg("path"), py::arg("name"), py::arg("runs"));
  m.def("token_line", &pccl::line_of_token, py::arg("path"), py::arg("name"));
  m.def("private_content", &pccl::private_content, py::arg("what"), py::arg("path"));
  m.def(
      "wipe_variable", [](const std::string& name) { pccl::wipe_variable(name.c_str()); },
      py::arg("name"));
  m.def("build_schedule", &pccl::schedule_dict, py::arg("args"));
  m.def("reduce_into", &pccl::reduce_buffers, py::arg("to"), py::arg("a"), py::arg("b"),
        py::arg("dtype"), py::arg("op"));
  m.def("finish_average", &pccl::finish_buffer, py::arg("data"), py::arg("dtype"),
        py::arg("contributors"));
  m.def(
      "reducible",
      [](const std::string& dtype, const std::string& op) {
        return pccl::reducible(pccl::dtype_of(dtype), pccl::reduce_of(op));
      },
      py::arg("dtype"), py::arg("op"));
}
