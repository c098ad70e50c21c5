// Batches of scattered copies from pinned memory with two units in each copy: two units are the two
// rows of one copy whose pitches are the distances of their sources and of their targets.
//
//   nvcc -O2 -std=c++17 -arch=sm_90a -o copy_pairs benchmarks/gpu/copy_pairs.cu && ./copy_pairs
//
// 36 layers of 384 units, in parts that a team of threads takes in turn, each thread with a stream of
// its own. A line holds microseconds per unit over 30 repeats (least, median, most), GB/s of the median,
// the share of the time after which the host has submitted everything, and by how much five groups of
// six repeats in a row differ.
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

constexpr size_t kPool = size_t(2) << 30, kUnits = 36 * 384, kMost = 256;
constexpr int kStreams = 4, kRepeats = 30, kGroup = 6;

struct Unit {
  char* to;
  char* from;
};

enum Way { kPlain, kSingle, kPairs };
const char* const kNames[] = {"1D batch", "3D batch, one unit", "3D batch, two units"};

double seconds() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

cudaMemcpy3DBatchOp operation(const Unit& first, const Unit* second, size_t bytes) {
  cudaMemcpy3DBatchOp op{};
  op.src.type = op.dst.type = cudaMemcpyOperandTypePointer;
  op.src.op.ptr.ptr = first.from;
  op.dst.op.ptr.ptr = first.to;
  op.src.op.ptr.rowLength = second ? second->from - first.from : bytes;
  op.dst.op.ptr.rowLength = second ? second->to - first.to : bytes;
  op.src.op.ptr.layerHeight = op.dst.op.ptr.layerHeight = second ? 2 : 1;
  op.extent = cudaExtent{bytes, size_t(second ? 2 : 1), 1};
  op.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  return op;
}

// Make operations of units in order of their sources: each takes the next one whose target lies
// behind its own as its second row.
size_t pairs(Unit* units, size_t count, size_t bytes, cudaMemcpy3DBatchOp* ops) {
  std::sort(units, units + count, [](const Unit& a, const Unit& b) { return a.from < b.from; });
  bool taken[kMost] = {};
  size_t made = 0;
  for (size_t i = 0; i < count; ++i) {
    if (taken[i]) continue;
    size_t j = i + 1;
    while (j < count && (taken[j] || units[j].to < units[i].to + bytes ||
                         units[j].from < units[i].from + bytes))
      ++j;
    if (j < count) taken[j] = true;
    ops[made++] = operation(units[i], j < count ? &units[j] : nullptr, bytes);
  }
  return made;
}

std::atomic<size_t> descriptors{0};

void submit(Way way, Unit* units, size_t count, size_t bytes, cudaStream_t stream) {
  if (way == kPlain) {
    void* to[kMost];
    const void* from[kMost];
    size_t sizes[kMost], index = 0;
    for (size_t i = 0; i < count; ++i) to[i] = units[i].to, from[i] = units[i].from, sizes[i] = bytes;
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    CHECK(cudaMemcpyBatchAsync(to, from, sizes, count, &attributes, &index, 1, stream));
    descriptors += count;
    return;
  }
  cudaMemcpy3DBatchOp ops[kMost];
  Unit mine[kMost];
  std::copy(units, units + count, mine);
  size_t made = count;
  if (way == kPairs)
    made = pairs(mine, count, bytes, ops);
  else
    for (size_t i = 0; i < count; ++i) ops[i] = operation(mine[i], nullptr, bytes);
  CHECK(cudaMemcpy3DBatchAsync(made, ops, 0, stream));
  descriptors += made;
}

// Copy everything once; returns seconds and, in `submitted`, when the last call had returned.
double run(Way way, std::vector<Unit>& units, size_t bytes, size_t part, int threads,
           cudaStream_t* streams, double* submitted) {
  std::atomic<size_t> next{0};
  auto work = [&](int lane) {
    for (size_t at; (at = next.fetch_add(part)) < kUnits;)
      submit(way, &units[at], std::min(part, kUnits - at), bytes, streams[lane]);
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

void report(Way way, std::vector<Unit>& units, size_t bytes, size_t part, int threads,
            cudaStream_t* streams) {
  std::vector<double> us, share;
  double submitted;
  run(way, units, bytes, part, threads, streams, &submitted);
  descriptors = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    double taken = run(way, units, bytes, part, threads, streams, &submitted);
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
  std::printf("unit %6zu %-20s threads %d part %3zu: %.3f %.3f %.3f us, %4.1f GB/s, submitted %3.0f %%, "
              "groups of %d within %4.1f %%, %.2f units a copy\n",
              bytes, kNames[way], threads, part, us[0], middle, us[kRepeats - 1],
              bytes / middle * 1e-3, 100 * share[kRepeats / 2], kGroup, drift,
              double(kRepeats) * kUnits / descriptors);
  std::fflush(stdout);
}

// Return how many of the copied units differ from their source.
size_t wrong(const std::vector<Unit>& units, size_t bytes) {
  std::vector<char> back(bytes);
  size_t bad = 0;
  for (size_t i = 0; i < units.size(); i += 97) {
    CHECK(cudaMemcpy(back.data(), units[i].to, bytes, cudaMemcpyDeviceToHost));
    bad += std::memcmp(back.data(), units[i].from, bytes) != 0;
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
  std::mt19937_64 random(1);
  for (size_t bytes : {size_t(8192), size_t(16384), size_t(32768)}) {
    std::vector<size_t> slots(kPool / bytes);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random);  // no target twice
    std::vector<Unit> units;
    for (size_t i = 0; i < kUnits; ++i)
      units.push_back({gpu + slots[i] * bytes, host + random() % (kPool / bytes) * bytes});
    for (int round = 0; round < 2; ++round)
      for (Way way : {kPlain, kSingle, kPairs}) {
        CHECK(cudaMemset(gpu, 0, kPool));
        for (int threads : {1, 2, 4})
          for (size_t part : {size_t(64), size_t(128)})
            report(way, units, bytes, part, threads, streams);
        if (size_t bad = wrong(units, bytes)) std::printf("%zu units are wrong\n", bad);
      }
  }
  return 0;
}
