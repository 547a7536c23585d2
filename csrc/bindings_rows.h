// A row of a step as Python hands it to a backend, with everything that BatchRow points to.
#pragma once

#include <pybind11/numpy.h>

#include <optional>
#include <vector>

#include "step_backend.h"

namespace pointcode {

using MaskArray =
    pybind11::array_t<uint32_t, pybind11::array::c_style | pybind11::array::forcecast>;
using PageArray = pybind11::array_t<int32_t, pybind11::array::c_style | pybind11::array::forcecast>;

struct StepRow {
  int32_t token = 0, position = 0;
  PageArray pages[2];
  SamplingConfig sampling;
  std::optional<MaskArray> token_mask;
  std::vector<int32_t> history;

  BatchRow view() {
    BatchRow row;
    row.token = token;
    row.position = position;
    for (int group = 0; group < 2; ++group) {
      row.n_pages[group] = static_cast<int32_t>(pages[group].size());
      row.pages[group] = row.n_pages[group] > 0 ? pages[group].data() : nullptr;
    }
    row.sampling = &sampling;
    row.token_mask = token_mask ? token_mask->data() : nullptr;
    row.history = &history;
    return row;
  }
};

inline std::vector<BatchRow> views_of(const std::vector<StepRow*>& rows) {
  std::vector<BatchRow> views;
  for (StepRow* row : rows) views.push_back(row->view());
  return views;
}

// One step of a backend alone, without the decode service.
inline std::vector<RowResult> py_step(StepBackend& backend, const std::vector<StepRow*>& rows) {
  const std::vector<BatchRow> views = views_of(rows);
  std::vector<RowResult> results;
  const pybind11::gil_scoped_release unlocked;
  backend.set_batch(views);
  backend.step(views, results);
  return results;
}

}  // namespace pointcode
