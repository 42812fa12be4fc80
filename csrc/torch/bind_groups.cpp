// The part of the module that speaks of groups: making them, their types, and how a call is
// quantised.
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/gil.h"
#include "torch/bind.h"
#include "torch/process_group.h"
#include "torch/quantise.h"
#include "torch/store.h"

namespace pccl {
namespace {

namespace py = pybind11;

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

void bind_makers(py::module_& m) {
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
}

void bind_types(py::module_& m) {
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
}

void bind_quantisation(py::module_& m) {
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
}

}  // namespace

void bind_groups(py::module_& m) {
  bind_types(m);
  bind_makers(m);
  bind_quantisation(m);
}

}  // namespace pccl
