// Why batches of scattered copies run at two speeds: one cause after the other, all else alike.
//
//   nvcc -O2 -std=c++17 -arch=sm_90a -o copy_speeds benchmarks/gpu/copy_speeds.cu && ./copy_speeds
//
// 36 layers of n units of 8 KB, host to device, in batches of 256 on one stream. A line holds what
// was varied, then microseconds per unit: median, least and most of the repeats, the part of it in
// which the host submits, and every repeat in the order of time. With the argument "host" it tells
// whose speed that is: beside every repeat stand the times of two loops of the same thread that use
// no GPU, one of dependent multiplications (clock), one that fills the core (share of the core).
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <string>

#include "copies.cuh"

constexpr size_t kUnit = 8192, kGiB = size_t(1) << 30, kMiB = size_t(1) << 20, kPart = 256;
constexpr int kLayers = 36;

using Clock = std::chrono::steady_clock;

struct Copies {
  std::vector<void*> to;
  std::vector<const void*> from;
};

struct Place {
  char *gpu, *host;
  size_t gpu_bytes, host_bytes;
};

cudaStream_t new_stream() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

enum Order { kRandom, kBySource, kByTarget, kInLine };

Copies draw(const Place& place, size_t count, unsigned seed, Order order = kRandom) {
  std::mt19937_64 random(seed);
  size_t n = count * kLayers;
  std::vector<size_t> to(n), from(n);
  for (size_t i = 0; i < n; ++i) {
    to[i] = random() % (place.gpu_bytes / kUnit);
    from[i] = random() % (place.host_bytes / kUnit);
    if (order == kInLine) to[i] = from[i] = i;
  }
  if (order == kBySource) std::sort(from.begin(), from.end());
  if (order == kByTarget) std::sort(to.begin(), to.end());
  Copies copies;
  for (size_t i = 0; i < n; ++i) {
    copies.to.push_back(place.gpu + to[i] * kUnit);
    copies.from.push_back(place.host + from[i] * kUnit);
  }
  return copies;
}

// Return microseconds per unit in all, and until the last batch was submitted.
std::pair<double, double> once(Copies& copies, cudaStream_t stream) {
  static std::vector<size_t> sizes(size_t(1) << 20, kUnit);
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t index = 0, n = copies.to.size();
  CHECK(cudaStreamSynchronize(stream));
  auto start = Clock::now();
  for (size_t at = 0; at < n; at += kPart)
    CHECK(cudaMemcpyBatchAsync(&copies.to[at], &copies.from[at], sizes.data(),
                               std::min(kPart, n - at), &attributes, &index, 1, stream));
  std::chrono::duration<double> submitted = Clock::now() - start;
  CHECK(cudaStreamSynchronize(stream));
  std::chrono::duration<double> taken = Clock::now() - start;
  return {taken.count() * 1e6 / n, submitted.count() * 1e6 / n};
}

volatile unsigned long long sink;

double chain_us() {
  auto start = Clock::now();
  unsigned long long x = 88172645463325252ull;
  for (int i = 0; i < 40'000; ++i) x = x * 6364136223846793005ull + 1442695040888963407ull;
  sink = x;
  return std::chrono::duration<double>(Clock::now() - start).count() * 1e6;
}

double share_us() {
  static std::vector<unsigned> values(4096, 3);
  auto start = Clock::now();
  unsigned sum[8] = {};
  for (int round = 0; round < 60; ++round)
    for (size_t i = 0; i < values.size(); i += 8)
      for (int k = 0; k < 8; ++k) sum[k] += values[i + k] ^ (sum[k] >> 3);
  sink = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
  return std::chrono::duration<double>(Clock::now() - start).count() * 1e6;
}

double correlation(const std::vector<double>& x, const std::vector<double>& y) {
  double n = x.size(), mx = 0, my = 0, xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) mx += x[i] / n, my += y[i] / n;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mx) * (y[i] - my);
    xx += (x[i] - mx) * (x[i] - mx), yy += (y[i] - my) * (y[i] - my);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

// Compare each repeat with what the thread could do just before and after it.
void beside_loops(const std::string& what, Copies copies, cudaStream_t stream, int repeats) {
  std::vector<double> us, chain, share;
  once(copies, stream);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    double before_chain = chain_us(), before_share = share_us();
    us.push_back(once(copies, stream).first);
    chain.push_back((before_chain + chain_us()) / 2);
    share.push_back((before_share + share_us()) / 2);
  }
  auto sorted = us;
  std::sort(sorted.begin(), sorted.end());
  std::printf("%-44s n %5zu cpu %2d med %.3f min %.3f max %.3f correlation with clock %.2f, with "
              "share of the core %.2f |", what.c_str(), copies.to.size() / kLayers, sched_getcpu(),
              sorted[us.size() / 2], sorted[0], sorted.back(), correlation(us, chain),
              correlation(us, share));
  for (size_t i = 0; i < us.size(); ++i)
    std::printf(" %.2f/%.0f/%.0f", us[i], chain[i], share[i]);
  std::printf("\n");
  std::fflush(stdout);
}

__global__ void hold(const volatile int* go) {
  while (*go == 0) {
  }
}

__global__ void read_all(const uint4* data, size_t count, int rounds, unsigned* out) {
  unsigned sum = 0;
  for (int round = 0; round < rounds; ++round)
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
      sum += data[i].x;
  if (sum == 1) *out = sum;
}

// The same beside a kernel that reads HBM as fast as it can, in every repeat.
void beside_reads(const Place& place, cudaStream_t stream, size_t count) {
  cudaStream_t other = new_stream();
  unsigned* out;
  CHECK(cudaMalloc(&out, sizeof *out));
  auto data = reinterpret_cast<const uint4*>(place.gpu);
  for (int blocks : {0, 32, 264, 1056}) {
    if (blocks) read_all<<<blocks, 512, 0, other>>>(data, 4 * kGiB / 16, blocks / 3, out);
    beside_loops("beside reads of HBM by " + std::to_string(blocks) + " blocks",
                 draw(place, count, 12), stream, 10);
    bool running = cudaStreamQuery(other) == cudaErrorNotReady;
    std::printf("  the reads %s\n", running ? "went on until after it" : "had ended before");
    CHECK(cudaStreamSynchronize(other));
  }
  CHECK(cudaFree(out));
}

// Submit batches to a stream that a kernel holds: the host's share, with no copy running.
void held(const Place& place, cudaStream_t stream, size_t units) {
  int* go;
  CHECK(cudaHostAlloc(&go, sizeof *go, cudaHostAllocDefault));
  Copies copies = draw(place, 96, 11);
  std::vector<size_t> sizes(units, kUnit);
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t index = 0;
  std::vector<double> us;
  for (int repeat = 0; repeat < 8; ++repeat) {
    *go = 0;
    hold<<<1, 1, 0, stream>>>(go);
    auto start = Clock::now();
    CHECK(cudaMemcpyBatchAsync(copies.to.data(), copies.from.data(), sizes.data(), units,
                               &attributes, &index, 1, stream));
    us.push_back(std::chrono::duration<double>(Clock::now() - start).count() * 1e6 / units);
    *go = 1;
    CHECK(cudaStreamSynchronize(stream));
  }
  std::sort(us.begin(), us.end());
  std::printf("submitted to a held stream, %4zu units: med %.3f min %.3f max %.3f us per unit\n",
              units, us[4], us[0], us[7]);
  std::fflush(stdout);
  CHECK(cudaFreeHost(go));
}

void report(const std::string& what, Copies copies, cudaStream_t stream, int repeats = 8) {
  std::vector<double> us, submit;
  once(copies, stream);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    auto [all, part] = once(copies, stream);
    us.push_back(all), submit.push_back(part);
  }
  auto sorted = us;
  std::sort(sorted.begin(), sorted.end()), std::sort(submit.begin(), submit.end());
  std::printf("%-44s n %5zu cpu %2d med %.3f min %.3f max %.3f submit %.3f |", what.c_str(),
              copies.to.size() / kLayers, sched_getcpu(), sorted[us.size() / 2], sorted[0],
              sorted.back(), submit[us.size() / 2]);
  for (double value : us) std::printf(" %.2f", value);
  std::printf("\n");
  std::fflush(stdout);
}

void by_count(const Place& place, cudaStream_t stream, const char* when) {
  for (unsigned seed : {1u, 2u, 3u})
    for (size_t count : {96, 192, 384, 768, 1152})
      report("count and addresses " + std::to_string(seed) + " " + when,
             draw(place, count, seed), stream);
}

void by_spread(const Place& place, cudaStream_t stream) {
  for (size_t host : {64 * kMiB, 512 * kMiB, 4 * kGiB})
    for (size_t gpu : {64 * kMiB, 512 * kMiB, 4 * kGiB}) {
      Place part{place.gpu, place.host, gpu, host};
      report("host in " + std::to_string(host / kMiB) + " MiB, device in " +
                 std::to_string(gpu / kMiB) + " MiB", draw(part, 768, 4), stream);
    }
}

void by_order(const Place& place, cudaStream_t stream) {
  report("random", draw(place, 768, 5), stream);
  report("ordered by source", draw(place, 768, 5, kBySource), stream);
  report("ordered by target", draw(place, 768, 5, kByTarget), stream);
  report("in line", draw(place, 768, 5, kInLine), stream);
}

void by_stream(const Place& place) {
  for (int i = 0; i < 8; ++i)
    report("stream " + std::to_string(i), draw(place, 768, 6), new_stream());
}

void by_cpu(const Place& place, cudaStream_t stream) {
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  int cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  for (int i = 0; i < 4; ++i) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(i * cpus / 4, &one);
    sched_setaffinity(0, sizeof one, &one);
    report("on one processor", draw(place, 768, 7), stream);
  }
  sched_setaffinity(0, sizeof before, &before);
}

void only(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
}

void tell_host(const Place& place, cudaStream_t stream) {
  int cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  for (int turn = 0; turn < 2; ++turn)
    for (int cpu = 0; cpu < cpus; ++cpu) {
      only(cpu);
      beside_loops("on one processor", draw(place, 384, 7), stream, 6);
    }
  only(0);
  beside_loops("a row of repeats", draw(place, 384, 1), stream, 150);
  only(1 % cpus);
  beside_loops("a row of repeats", draw(place, 384, 1), stream, 150);
  beside_reads(place, stream, 384);
  for (size_t units : {32, 64, 128, 256}) held(place, stream, units);
}

void by_memory(const Place& place, cudaStream_t stream) {
  struct Kind { const char* name; int advice; };
  for (Kind kind : {Kind{"registered, 4 KiB pages", MADV_NOHUGEPAGE},
                    Kind{"registered, huge pages", MADV_HUGEPAGE}}) {
    char* memory = static_cast<char*>(mmap(nullptr, kGiB, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(memory, kGiB, kind.advice);
    std::memset(memory, 1, kGiB);
    CHECK(cudaHostRegister(memory, kGiB, cudaHostRegisterDefault));
    for (size_t count : {384, 768})
      report(kind.name, draw({place.gpu, memory, place.gpu_bytes, kGiB}, count, 8), stream);
    CHECK(cudaHostUnregister(memory));
    munmap(memory, kGiB);
  }
  char* memory;
  CHECK(cudaHostAlloc(&memory, kGiB, cudaHostAllocDefault));
  for (size_t count : {384, 768})
    report("allocated pinned, 1 GiB", draw({place.gpu, memory, place.gpu_bytes, kGiB}, count, 8),
           stream);
  CHECK(cudaFreeHost(memory));
}

void beside_host_copies(const Place& place, cudaStream_t stream) {
  cudaStream_t other = new_stream();
  for (size_t count : {384, 768}) {
    for (int i = 0; i < 24; ++i)
      CHECK(cudaMemcpyAsync(place.host, place.gpu, kGiB / 2, cudaMemcpyDeviceToHost, other));
    report("beside copies to the host", draw(place, count, 9), stream);
    CHECK(cudaStreamSynchronize(other));
    report("and without", draw(place, count, 9), stream);
  }
}

int main(int argc, char**) {
  Place place{nullptr, nullptr, 4 * kGiB, 4 * kGiB};
  CHECK(cudaMalloc(&place.gpu, place.gpu_bytes));
  CHECK(cudaHostAlloc(&place.host, place.host_bytes, cudaHostAllocDefault));
  std::memset(place.host, 1, place.host_bytes);
  cudaStream_t stream = new_stream();
  if (argc > 1) return tell_host(place, stream), 0;
  by_count(place, stream, "at first");
  report("a row of repeats", draw(place, 384, 1), stream, 120);
  report("a row of repeats", draw(place, 768, 1), stream, 80);
  by_spread(place, stream);
  by_order(place, stream);
  by_stream(place);
  by_cpu(place, stream);
  by_memory(place, stream);
  beside_host_copies(place, stream);
  by_count(place, stream, "at last");
  usleep(500'000);
  report("after half a second of rest", draw(place, 768, 1), stream, 40);
  return 0;
}
