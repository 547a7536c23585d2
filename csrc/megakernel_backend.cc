#include "megakernel_backend.h"

#if POINTCODE_CUDA
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "mk_buffers.h"

extern "C" int pointcode_mk_step(const void* params, int n_sms, void* stream);

namespace pointcode {
namespace {

constexpr uint32_t kTagLimit = 1u << 24;
constexpr int kSpinsPerClock = 4096;

int count_sms() {
  int device = 0, n = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device), "counting SMs");
  return n;
}

const char* role_name(uint32_t warp) {
  static constexpr const char* kNames[] = {"controller", "producer", "storer", "combiner"};
  return warp < 4 ? kNames[warp] : "consumer";
}

const char* wait_name(uint32_t kind) {
  static constexpr const char* kNames[] = {"nothing",
                                           "a descriptor",
                                           "a full ring stage",
                                           "an empty ring stage",
                                           "a full partial tile",
                                           "an empty partial tile",
                                           "the other consumer warps",
                                           "the route",
                                           "tagged data",
                                           "a counter",
                                           "an item",
                                           "the rows' experts",
                                           "the step's positions and pages"};
  return kind < 13 ? kNames[kind] : "?";
}

const char* opcode_text(int32_t opcode) {
  static constexpr const char* kNames[kNumOpcodes] = {
      "ADD_RMSNORM",          "QKV_PROJ",       "ATTN_DECODE",    "ATTN_DRAIN",
      "ATTN_COMBINE",         "O_PROJ",         "FFN_UPGATE_ACT", "FFN_DOWN",
      "ROUTER_GEMM",          "ROUTER_TOPK",    "ROUTE_FINALIZE", "MOE_GATHER",
      "MOE_UPGATE_ACT_DRAIN", "MOE_DOWN_DRAIN", "MOE_COMBINE",    "LM_HEAD"};
  return opcode >= 0 && opcode < kNumOpcodes ? kNames[opcode] : "?";
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

MegakernelBackend::MegakernelBackend(const ModelShape& model, MegakernelConfig config)
    : config_(std::move(config)),
      n_sms_(count_sms()),
      vocab_(model.vocab),
      host_pages_(static_cast<size_t>(2) * kMaxRows * std::max(config_.max_pages, 1)),
      host_tokens_(2 * kMaxRows),
      mailbox_(1) {
  CHECK_THAT(model.n_layers == static_cast<int32_t>(config_.layers.size()), "weights of ",
             config_.layers.size(), " layers came for ", model.n_layers);
  CHECK_THAT(model.n_experts % 4 == 0 && model.n_experts <= mk::kMaxExperts, model.n_experts,
             " experts; the kernel takes multiples of 4 up to ", mk::kMaxExperts);
  for (const LayerShape& layer : model.layers) group_used_[layer.sliding] = true;
  fill_model(model);
  upload_schedules();
  upload_layers();
  allocate_activations();
}

// Work on the stream reads buffers that are about to go.
MegakernelBackend::~MegakernelBackend() { cudaStreamSynchronize(stream_.get()); }

void MegakernelBackend::fill_model(const ModelShape& m) {
  mk::Params& p = params_;
  p.hidden = m.hidden, p.n_heads = m.n_heads, p.n_kv_heads = m.n_kv_heads, p.head_dim = m.head_dim;
  p.vocab = m.vocab, p.n_experts = m.n_experts, p.top_k = m.top_k, p.n_layers = m.n_layers;
  p.window = m.window, p.norm_topk = m.norm_topk, p.max_pages = config_.max_pages;
  p.n_owners = std::min(n_sms_, m.hidden / kTileRows);
  p.eps = m.eps, p.logit_scale = m.logit_scale, p.rope_theta = m.rope_theta;
  p.q_scale = static_cast<float>(m.attn_scale * std::numbers::log2e);
  p.final_norm = config_.final_norm, p.lm_head = config_.lm_head, p.embed = config_.embed;
  p.spin_limit = config_.spin_limit, p.in_flight_bytes = config_.in_flight_bytes;
}

void MegakernelBackend::upload_layers() {
  layers_ = DeviceBuffer<mk::Layer>(config_.layers.size());
  check_cuda(
      cudaMemcpy(layers_.data(), config_.layers.data(), layers_.bytes(), cudaMemcpyHostToDevice),
      "uploading layers");
  params_.layers = layers_.data();
}

void MegakernelBackend::upload_schedules() {
  params_.n_queues = 1;
  CHECK_THAT(config_.schedules.size() <= kMaxRows, "schedules for ", config_.schedules.size(),
             " rows");
  for (const MegakernelSchedule& schedule : config_.schedules) {
    CHECK_THAT(schedule.offsets.size() == static_cast<size_t>(n_sms_) + 1, "a schedule for ",
               schedule.offsets.size() - 1, " processors came for ", n_sms_, " SMs");
    CHECK_THAT(schedule.n_splits >= 1 && schedule.n_splits <= mk::kMaxSplits, schedule.n_splits,
               " attention splits");
    Lists lists{DeviceBuffer<TaskDescriptor>(schedule.tasks.size()),
                DeviceBuffer<int32_t>(schedule.offsets.size())};
    check_cuda(cudaMemcpy(lists.tasks.data(), schedule.tasks.data(), lists.tasks.bytes(),
                          cudaMemcpyHostToDevice),
               "uploading tasks");
    check_cuda(cudaMemcpy(lists.offsets.data(), schedule.offsets.data(), lists.offsets.bytes(),
                          cudaMemcpyHostToDevice),
               "uploading tasks");
    lists_.push_back(std::move(lists));
    max_splits_ = std::max(max_splits_, schedule.n_splits);
    params_.n_queues = std::max(params_.n_queues, schedule.n_queues);
    params_.n_counters = std::max(params_.n_counters, schedule.n_counters);
  }
}

void MegakernelBackend::allocate_activations() {
  mk::Params& p = params_;
  p.counted = p.n_counters > 0;
  const size_t widest = mk::widest_ffn(p, config_.layers.data());
  activations_ = DeviceBuffer<uint8_t>(mk::place_activations(p, widest, max_splits_, nullptr));
  mk::place_activations(p, widest, max_splits_, activations_.data());

  const auto rows = static_cast<size_t>(kMaxRows);
  logits_ = DeviceBuffer<float>(rows * vocab_);
  leaders_ = DeviceBuffer<Leader>(rows * static_cast<size_t>(n_sms_));
  pages_ = DeviceBuffer<int32_t>(host_pages_.size());
  tokens_ = DeviceBuffer<int32_t>(2 * rows);
  abort_ = DeviceBuffer<uint32_t>(1);
  queues_ = DeviceBuffer<uint32_t>(static_cast<size_t>(2) * p.n_queues);
  counters_ = DeviceBuffer<uint32_t>(static_cast<size_t>(2) * std::max(p.n_counters, 1) *
                                     mk::kCounterWords);
  p.queues = queues_.data(), p.counters = counters_.data();
  p.logits = logits_.data(), p.leaders = leaders_.data(), p.page_table = pages_.data();
  p.abort_flag = abort_.data(), p.mailbox = mailbox_.data();
  sampler_ = std::make_unique<GpuSampler>(vocab_, logits_.data(), tokens_.data(),
                                          tokens_.data() + kMaxRows, abort_.data(), stream_.get(),
                                          leaders_.data(), n_sms_);
  check_cuda(cudaDeviceSynchronize(), "setting up the megakernel");
}

// ------------------------------------------------------------------------------------------------
// step
void MegakernelBackend::step(const std::vector<BatchRow>& rows, std::vector<RowResult>& results) {
  launch(rows);
  collect(results);
}

void MegakernelBackend::launch(const std::vector<BatchRow>& rows) {
  if (!failure_.empty()) fail(failure_);
  CHECK_THAT(n_under_way_ < kMaxUnderWay, n_under_way_, " steps are under way");
  const int n = static_cast<int>(rows.size());
  if (n > 0) {
    check_rows(rows);
    if (n_under_way_ > 0)
      expect_next(rows);
    else
      feed(rows);
    sampler_->prepare(rows);
    require(launch_kernel(n, tokens_.data()));
    require(sampler_->launch());
    masked_ = std::any_of(rows.begin(), rows.end(),
                          [](const BatchRow& row) { return row.token_mask != nullptr; });
  }
  for (int r = 0; r < n; ++r) device_token_[r] = kTokenOfLastStep, device_position_[r] += 1;
  under_way_[static_cast<size_t>(n_under_way_++)] = {sampler_->stamp(), n};
}

void MegakernelBackend::collect(std::vector<RowResult>& results) {
  if (!failure_.empty()) fail(failure_);
  CHECK_THAT(n_under_way_ > 0, "no step is under way");
  const Launched oldest = under_way_[0];
  if (results.size() < static_cast<size_t>(oldest.n_rows)) results.resize(oldest.n_rows);
  for (int r = 0; r < oldest.n_rows; ++r) {
    const GpuSampler::Answer answer = wait_for(oldest.stamp, r);
    if (answer.status == gpu::SampleStatus::kAborted) report_abort(oldest.n_rows);
    RowResult& result = results[static_cast<size_t>(r)];
    result.status = answer.status == gpu::SampleStatus::kNan ? RowStatus::kNan : RowStatus::kOk;
    result.token = answer.token;
    if (n_under_way_ == 1) device_token_[r] = answer.token;
    sampler_->read_logprobs(oldest.stamp, r, result);
  }
  under_way_[0] = under_way_[1];
  --n_under_way_;
}

float MegakernelBackend::time_kernels(std::vector<BatchRow> rows, std::span<const int32_t> tokens,
                                      std::span<const int32_t> positions) {
  CHECK_THAT(!rows.empty() && !tokens.empty() && tokens.size() % rows.size() == 0 &&
                 tokens.size() == positions.size(),
             tokens.size(), " tokens and ", positions.size(), " positions came for steps of ",
             rows.size(), " rows");
  set_batch(rows);
  const std::vector<int32_t> staged = stage_steps(rows, tokens, positions);
  const DeviceBuffer<int32_t> steps(staged.size());
  check_cuda(cudaMemcpyAsync(steps.data(), staged.data(), steps.bytes(), cudaMemcpyHostToDevice,
                             stream_.get()),
             "uploading steps");
  const Event begin, end;
  const int n_rows = static_cast<int>(rows.size());
  require(launch_kernel(n_rows, steps.data()));  // so that the others find the stream busy
  check_cuda(cudaEventRecord(begin.get(), stream_.get()), "timing the kernel");
  for (size_t at = 0; at < staged.size(); at += 2 * kMaxRows)
    require(launch_kernel(n_rows, steps.data() + at));
  check_cuda(cudaEventRecord(end.get(), stream_.get()), "timing the kernel");
  check_cuda(cudaEventSynchronize(end.get()), "timing the kernel");
  uint32_t aborted = 0;
  check_cuda(cudaMemcpy(&aborted, abort_.data(), sizeof aborted, cudaMemcpyDeviceToHost),
             "reading the abort flag");
  if (aborted != 0) report_abort(n_rows);
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, begin.get(), end.get()), "timing the kernel");
  return ms * static_cast<float>(n_rows) / static_cast<float>(tokens.size());
}

// (steps, 2, 8) tokens and positions, as a kernel is fed. Leaves the last step's in `rows`.
std::vector<int32_t> MegakernelBackend::stage_steps(std::vector<BatchRow>& rows,
                                                    std::span<const int32_t> tokens,
                                                    std::span<const int32_t> positions) const {
  const size_t n_rows = rows.size(), n_steps = tokens.size() / n_rows;
  std::vector<int32_t> staged(n_steps * 2 * kMaxRows);
  for (size_t s = 0; s < n_steps; ++s) {
    for (size_t r = 0; r < n_rows; ++r) {
      rows[r].token = staged[s * 2 * kMaxRows + r] = tokens[s * n_rows + r];
      rows[r].position = staged[(s * 2 + 1) * kMaxRows + r] = positions[s * n_rows + r];
      CHECK_THAT(rows[r].token >= 0 && rows[r].position >= 0, "step ", s, " has token ",
                 rows[r].token, " at position ", rows[r].position);
    }
    check_rows(rows);
    for (size_t r = 1; r < n_rows; ++r) {
      CHECK_THAT(follows(rows[r], rows[r - 1]) == (params_.first_row[r] != static_cast<int32_t>(r)),
                 "row ", r, " of step ", s, " is in another chain than in the first step");
    }
  }
  return staged;
}

// Payloads of the last 2^24 steps must not be taken for new ones, so the buffers are cleared when
// the tag starts anew.
void MegakernelBackend::advance_tag() {
  if (++params_.step < kTagLimit) return;
  set_step(1);
}

// Each step uses the claim queues and counters of its parity and clears the others for the next; after a jump both start
// at 0.
void MegakernelBackend::set_step(uint32_t step) {
  CHECK_THAT(step > 0 && step < kTagLimit, "step ", step, " is not in (0, 2^24)");
  params_.step = step;
  check_cuda(cudaMemsetAsync(activations_.data(), 0, activations_.bytes(), stream_.get()),
             "clearing activations");
  check_cuda(cudaMemsetAsync(queues_.data(), 0, queues_.bytes(), stream_.get()),
             "clearing the claim queues");
  check_cuda(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream_.get()),
             "clearing the counters");
}

// `fed`: (2, 8) tokens and positions on the device.
cudaError_t MegakernelBackend::launch_kernel(int n_rows, const int32_t* fed) {
  const auto index = static_cast<size_t>(n_rows - 1);
  advance_tag();
  params_.n_rows = n_rows, params_.tokens = fed, params_.positions = fed + kMaxRows;
  params_.n_splits = config_.schedules[index].n_splits;
  params_.tasks = lists_[index].tasks.data(), params_.offsets = lists_[index].offsets.data();
  return static_cast<cudaError_t>(pointcode_mk_step(&params_, n_sms_, stream_.get()));
}

void MegakernelBackend::require(cudaError_t launched) {
  if (launched == cudaSuccess) return;
  fail_for_good(join_text("launching a decode step failed: ", cudaGetErrorString(launched)));
}

// The row's answer to a launch. Bounded: a fault or a hang of the GPU ends it with an error.
GpuSampler::Answer MegakernelBackend::wait_for(uint32_t stamp, int row) {
  const auto begin = std::chrono::steady_clock::now();
  for (int spins = 1;; ++spins) {
    const GpuSampler::Answer answer = sampler_->poll(stamp, row);
    if (answer.arrived) return answer;
    pause_briefly();
    if (spins % kSpinsPerClock != 0) continue;
    const cudaError_t state = cudaStreamQuery(stream_.get());
    if (state != cudaSuccess && state != cudaErrorNotReady) {
      fail_for_good(
          join_text("the GPU reports a fault during a decode step: ", cudaGetErrorString(state)));
    }
    if (std::chrono::steady_clock::now() - begin >
        std::chrono::milliseconds(config_.wait_limit_ms)) {
      fail_for_good(join_text("a decode step did not end within ", config_.wait_limit_ms, " ms"));
    }
  }
}

void MegakernelBackend::report_abort(int n_rows) {
  check_cuda(cudaStreamSynchronize(stream_.get()), "ending an aborted step");
  const mk::Mailbox mail = mailbox_[0];
  const MegakernelSchedule& schedule = config_.schedules[static_cast<size_t>(n_rows - 1)];
  const uint32_t sm = mail.who >> 16, warp = mail.who >> 8 & 255, kind = mail.who & 255;
  const TaskDescriptor* task = nullptr;
  if (static_cast<mk::WaitKind>(kind) ==
      mk::WaitKind::kDescriptor) {  // the ordinal counts within the SM's list
    const size_t at = sm < static_cast<uint32_t>(n_sms_) ? schedule.offsets[sm] + mail.ordinal
                                                         : schedule.tasks.size();
    if (at < schedule.tasks.size()) task = &schedule.tasks[at];
  } else {
    const auto found = std::find_if(
        schedule.tasks.begin(), schedule.tasks.end(),
        [&](const TaskDescriptor& t) { return t.ordinal == static_cast<int32_t>(mail.ordinal); });
    if (found != schedule.tasks.end()) task = &*found;
  }
  std::string name = join_text("task ", static_cast<int32_t>(mail.ordinal));
  if (task != nullptr) {
    const auto wave = static_cast<size_t>(task->wave);
    name = join_text("task ", task->ordinal, " (",
                     wave < schedule.wave_names.size() ? schedule.wave_names[wave] : "?", " ",
                     opcode_text(task->opcode), " tiles ", task->tile_begin, "..",
                     task->tile_begin + task->tile_count, ")");
  }
  fail_for_good(join_text("barrier time-out: SM ", sm, ", warp ", warp, " (", role_name(warp),
                          "), ", name, " waits for ", wait_name(kind), ": seen ", mail.seen,
                          ", wanted ", mail.wanted));
}

void MegakernelBackend::fail_for_good(const std::string& message) {
  failure_ = message;
  fail(message);
}

std::vector<float> MegakernelBackend::logits(int row) const {
  std::vector<float> values(static_cast<size_t>(vocab_));
  check_cuda(cudaMemcpy(values.data(), logits_.data() + static_cast<size_t>(row) * values.size(),
                        values.size() * 4, cudaMemcpyDeviceToHost),
             "reading logits");
  return values;
}

std::vector<float> MegakernelBackend::router_logits() const {
  std::vector<float> tagged(static_cast<size_t>(kMaxRows) * params_.n_experts * 2);
  check_cuda(cudaMemcpy(tagged.data(), params_.router, tagged.size() * 4, cudaMemcpyDeviceToHost),
             "reading the router's logits");
  std::vector<float> values(tagged.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) values[i] = tagged[i * 2];
  return values;
}

}  // namespace pointcode
#endif
