// Batches of scattered copies from pinned memory by the attributes of the batch: when the source may
// be read, and whether the driver is to favour overlap with kernels.
//
//   nvcc -O2 -std=c++17 -arch=sm_90a -o copy_flags benchmarks/gpu/copy_flags.cu && ./copy_flags
//
// 36 layers of 384 units, in parts that a team of threads takes in turn, each thread with a stream of
// its own. A line holds microseconds per unit over 30 repeats (least, median, most), GB/s of the median,
// the share of the time after which the host has submitted everything, and the worst and median
// of five groups of six repeats in a row, as a measure of drift.
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

constexpr size_t kPool = size_t(4) << 30, kUnits = 36 * 384;
constexpr int kStreams = 4, kRepeats = 30, kGroup = 6;

struct Copies {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> size;
};

struct Way {
  const char* name;
  cudaMemcpySrcAccessOrder order;
  unsigned flags;
};

double seconds() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Copy everything once; returns seconds and, in `submitted`, when the last call had returned.
double run(const Way& way, Copies& copies, size_t part, int threads, cudaStream_t* streams,
           double* submitted) {
  std::atomic<size_t> next{0};
  auto work = [&](int lane) {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = way.order;
    attributes.flags = way.flags;
    size_t index = 0;
    for (size_t at; (at = next.fetch_add(part)) < kUnits;)
      CHECK(cudaMemcpyBatchAsync(&copies.to[at], &copies.from[at], &copies.size[at],
                                 std::min(part, kUnits - at), &attributes, &index, 1, streams[lane]));
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

void report(const Way& way, size_t unit, Copies& copies, size_t part, int threads,
            cudaStream_t* streams) {
  std::vector<double> us, share;
  double submitted;
  run(way, copies, part, threads, streams, &submitted);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    double taken = run(way, copies, part, threads, streams, &submitted);
    us.push_back(taken * 1e6 / kUnits);
    share.push_back(submitted / taken);
  }
  std::vector<double> groups;
  for (int first = 0; first < kRepeats; first += kGroup)
    groups.push_back(std::accumulate(&us[first], &us[first] + kGroup, 0.0) / kGroup);
  auto [low, high] = std::minmax_element(groups.begin(), groups.end());
  double drift = 100 * (*high - *low) / *low;
  std::sort(us.begin(), us.end());
  std::sort(share.begin(), share.end());
  double middle = us[kRepeats / 2];
  std::printf("unit %6zu %-24s threads %d part %3zu: %.3f %.3f %.3f us, %4.1f GB/s, submitted %3.0f %%, "
              "groups of %d within %.1f %%\n",
              unit, way.name, threads, part, us[0], middle, us[kRepeats - 1], unit / middle * 1e-3,
              100 * share[kRepeats / 2], kGroup, drift);
  std::fflush(stdout);
}

// Return how many of the copied units differ from their source.
size_t wrong(const Copies& copies, size_t unit) {
  std::vector<char> back(unit);
  size_t bad = 0;
  for (size_t i = 0; i < copies.to.size(); i += 97) {
    CHECK(cudaMemcpy(back.data(), copies.to[i], unit, cudaMemcpyDeviceToHost));
    bad += std::memcmp(back.data(), copies.from[i], unit) != 0;
  }
  return bad;
}

int main() {
  char *gpu, *host;
  CHECK(cudaMalloc(&gpu, kPool));
  CHECK(cudaHostAlloc(&host, kPool, cudaHostAllocDefault));
  for (size_t i = 0; i < kPool / 8; ++i) reinterpret_cast<size_t*>(host)[i] = i * 0x9e3779b97f4a7c15;
  cudaStream_t streams[kStreams];
  for (auto& stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const Way ways[] = {
      {"stream", cudaMemcpySrcAccessOrderStream, 0},
      {"any", cudaMemcpySrcAccessOrderAny, 0},
      {"stream, overlap", cudaMemcpySrcAccessOrderStream, cudaMemcpyFlagPreferOverlapWithCompute},
      {"any, overlap", cudaMemcpySrcAccessOrderAny, cudaMemcpyFlagPreferOverlapWithCompute},
  };
  std::mt19937_64 random(1);
  for (size_t unit : {size_t(8192), size_t(16384), size_t(32768)}) {
    std::vector<size_t> slots(kPool / unit);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random);  // no target twice
    Copies copies;
    for (size_t i = 0; i < kUnits; ++i) {
      copies.to.push_back(gpu + slots[i] * unit);
      copies.from.push_back(host + random() % (kPool / unit) * unit);
      copies.size.push_back(unit);
    }
    for (const Way& way : ways) {
      CHECK(cudaMemset(gpu, 0, kPool));
      for (int threads : {1, 2, 4})
        for (size_t part : {size_t(64), size_t(384)}) report(way, unit, copies, part, threads, streams);
      if (size_t bad = wrong(copies, unit)) std::printf("%zu units are wrong\n", bad);
    }
  }
  return 0;
}
