// What the benchmarks of scattered copies share: checked calls, units at random places of two pools,
// and a team of threads that submits parts of them in turn, timed.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#define CHECK(call)                                                       \
  do {                                                                    \
    cudaError_t error = (call);                                           \
    if (error != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

struct Unit {
  char* to;
  char* from;
};

// Times of a way to submit: microseconds per unit, and the share of the time that submission takes.
struct Timed {
  std::vector<double> us, share;
};

class Pools {
 public:
  static constexpr size_t kUnits = 36 * 384;
  static constexpr int kStreams = 4, kRepeats = 30, kGroup = 6;

  explicit Pools(size_t bytes) : bytes_(bytes) {
    CHECK(cudaMalloc(&gpu_, bytes));
    CHECK(cudaHostAlloc(&host_, bytes, cudaHostAllocDefault));
    for (size_t i = 0; i < bytes / 8; ++i)
      reinterpret_cast<size_t*>(host_)[i] = i * 0x9e3779b97f4a7c15;
    for (auto& stream : streams_) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }

  // Return units of `size` bytes at random places, no target twice.
  std::vector<Unit> units(size_t size) {
    std::vector<size_t> slots(bytes_ / size);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random_);
    std::vector<Unit> found;
    for (size_t i = 0; i < kUnits; ++i)
      found.push_back({gpu_ + slots[i] * size, host_ + random_() % (bytes_ / size) * size});
    return found;
  }

  void clear() { CHECK(cudaMemset(gpu_, 0, bytes_)); }

  // Let `threads` threads submit parts of the units in turn, each to a stream of its own.
  template <class Submit>
  Timed time(std::vector<Unit>& units, size_t part, int threads, Submit submit) {
    Timed timed;
    double submitted;
    once(units, part, threads, submit, &submitted);
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      double taken = once(units, part, threads, submit, &submitted);
      timed.us.push_back(taken * 1e6 / kUnits);
      timed.share.push_back(submitted / taken);
    }
    return timed;
  }

 private:
  static double seconds() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }

  template <class Submit>
  double once(std::vector<Unit>& units, size_t part, int threads, Submit submit, double* submitted) {
    std::atomic<size_t> next{0};
    auto work = [&](int lane) {
      for (size_t at; (at = next.fetch_add(part)) < kUnits;)
        submit(&units[at], std::min(part, kUnits - at), streams_[lane]);
    };
    CHECK(cudaDeviceSynchronize());
    double start = seconds();
    std::vector<std::thread> team;
    for (int lane = 0; lane < threads; ++lane) team.emplace_back(work, lane);
    for (auto& thread : team) thread.join();
    *submitted = seconds() - start;
    CHECK(cudaDeviceSynchronize());
    return seconds() - start;
  }

  char *gpu_, *host_;
  size_t bytes_;
  cudaStream_t streams_[kStreams];
  std::mt19937_64 random_{1};
};

// Submit units as one batch of plain copies.
inline void submit_batch(const Unit* units, size_t count, size_t size, cudaMemcpySrcAccessOrder order,
                         unsigned flags, cudaStream_t stream) {
  std::vector<void*> to(count);
  std::vector<const void*> from(count);
  std::vector<size_t> sizes(count, size);
  size_t index = 0;
  for (size_t i = 0; i < count; ++i) to[i] = units[i].to, from[i] = units[i].from;
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = order;
  attributes.flags = flags;
  CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), count, &attributes, &index, 1,
                             stream));
}

// Print a line: microseconds per unit (least, median, most), GB/s of the median, the share of the
// time after which the host has submitted everything, how far groups of repeats in a row differ.
inline void print_line(const char* name, size_t size, size_t part, int threads, Timed timed,
                       const char* more = "") {
  std::vector<double> groups;
  for (size_t first = 0; first < timed.us.size(); first += Pools::kGroup)
    groups.push_back(std::accumulate(&timed.us[first], &timed.us[first] + Pools::kGroup, 0.0));
  auto [low, high] = std::minmax_element(groups.begin(), groups.end());
  double drift = 100 * (*high - *low) / *low;
  std::sort(timed.us.begin(), timed.us.end());
  std::sort(timed.share.begin(), timed.share.end());
  double middle = timed.us[timed.us.size() / 2];
  std::printf("unit %6zu %-20s threads %d part %3zu: %.3f %.3f %.3f us, %4.1f GB/s, submitted %3.0f %%, "
              "groups of %d within %4.1f %%%s\n",
              size, name, threads, part, timed.us.front(), middle, timed.us.back(),
              size / middle * 1e-3, 100 * timed.share[timed.share.size() / 2], Pools::kGroup, drift,
              more);
  std::fflush(stdout);
}

// Count the copied units that differ from their source, of every 97th, and tell if there are any.
inline void tell_wrong(const std::vector<Unit>& units, size_t size) {
  std::vector<char> back(size);
  size_t bad = 0;
  for (size_t i = 0; i < units.size(); i += 97) {
    CHECK(cudaMemcpy(back.data(), units[i].to, size, cudaMemcpyDeviceToHost));
    bad += std::memcmp(back.data(), units[i].from, size) != 0;
  }
  if (bad) std::printf("%zu units are wrong\n", bad);
}
