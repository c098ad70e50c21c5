// Copies of scattered units from pinned memory: batches or single, size of the parts, streams.
//
//   nvcc -O2 -std=c++17 -arch=sm_90a -o copy_lanes benchmarks/gpu/copy_lanes.cu && ./copy_lanes
//
// 36 layers of n units each, all submitted at once; microseconds per unit over 60 repeats (9 for
// single copies). Parts go to the streams ("lanes") in turn. With the argument "threads" every lane
// is a thread of its own that submits its share of each layer.
#include "copies.cuh"

constexpr size_t kPool = size_t(4) << 30, kWhole = 100000;
constexpr int kLayers = 36, kStreams = 8;

struct Case {
  size_t unit, count;
  bool single;
  int lanes;
  size_t part;
};

struct Copies {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> size;
};

double measure(const Case& c, Copies& copies, cudaStream_t* streams) {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t index = 0;
  int lane = 0;
  CHECK(cudaDeviceSynchronize());
  auto start = std::chrono::steady_clock::now();
  for (int layer = 0; layer < kLayers; ++layer)
    for (size_t first = 0; first < c.count; first += c.part) {
      size_t some = std::min(c.part, c.count - first), at = layer * c.count + first;
      if (!c.single) {
        CHECK(cudaMemcpyBatchAsync(&copies.to[at], &copies.from[at], &copies.size[at], some,
                                   &attributes, &index, 1, streams[lane]));
      } else {
        for (size_t i = at; i < at + some; ++i) {
          CHECK(cudaMemcpyAsync(copies.to[i], copies.from[i], c.unit, cudaMemcpyHostToDevice,
                                streams[lane]));
          lane = (lane + 1) % c.lanes;
        }
      }
      lane = (lane + 1) % c.lanes;
    }
  CHECK(cudaDeviceSynchronize());
  std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return taken.count() * 1e6 / (kLayers * c.count);
}

void report(const Case& c, Copies& copies, cudaStream_t* streams) {
  std::vector<double> us;
  for (int repeat = 0; repeat < (c.single ? 9 : 60); ++repeat)
    us.push_back(measure(c, copies, streams));
  std::sort(us.begin(), us.end());
  size_t n = us.size();
  std::printf("unit %zu n %zu %s lanes %d part %zu: min %.3f p25 %.3f med %.3f p75 %.3f p90 %.3f "
              "max %.3f\n",
              c.unit, c.count, c.single ? "single" : "batch", c.lanes, c.part, us[0], us[n / 4],
              us[n / 2], us[3 * n / 4], us[n * 9 / 10], us[n - 1]);
  std::fflush(stdout);
}

// The same in as many threads as lanes, each with a stream and a share of every layer.
void report_threads(const Case& c, Copies& copies, cudaStream_t* streams) {
  std::vector<double> us;
  auto work = [&](int lane) {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t index = 0, some = c.count / c.lanes;
    for (int layer = 0; layer < kLayers; ++layer) {
      size_t at = layer * c.count + lane * some;
      CHECK(cudaMemcpyBatchAsync(&copies.to[at], &copies.from[at], &copies.size[at], some,
                                 &attributes, &index, 1, streams[lane]));
    }
  };
  for (int repeat = 0; repeat < 40; ++repeat) {
    CHECK(cudaDeviceSynchronize());
    auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int lane = 0; lane < c.lanes; ++lane) threads.emplace_back(work, lane);
    for (auto& thread : threads) thread.join();
    CHECK(cudaDeviceSynchronize());
    std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    us.push_back(taken.count() * 1e6 / (kLayers * c.count));
  }
  std::sort(us.begin(), us.end());
  std::printf("unit %zu n %zu batch threads %d: min %.3f med %.3f max %.3f\n", c.unit, c.count,
              c.lanes, us[0], us[us.size() / 2], us.back());
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  bool in_threads = argc > 1 && !std::strcmp(argv[1], "threads");
  char *gpu, *host;
  CHECK(cudaMalloc(&gpu, kPool));
  CHECK(cudaHostAlloc(&host, kPool, cudaHostAllocDefault));
  cudaStream_t streams[kStreams];
  for (auto& stream : streams)
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::mt19937_64 random(1);
  std::vector<size_t> units{8192, 16384};
  if (in_threads) units.push_back(32768);
  for (size_t unit : units)
    for (size_t count : {size_t(384), size_t(768)}) {
      Copies copies;
      for (size_t i = 0; i < count * kLayers; ++i) {
        copies.to.push_back(gpu + random() % (kPool / unit) * unit);
        copies.from.push_back(host + random() % (kPool / unit) * unit);
        copies.size.push_back(unit);
      }
      if (in_threads) {
        for (int lanes : {1, 2, 3, 4, 6, 8}) report_threads({unit, count, false, lanes, 0}, copies, streams);
        continue;
      }
      for (bool single : {false, true})
        for (int lanes : {1, 2, 4})
          for (size_t part : {size_t(32), size_t(128), size_t(256), kWhole})
            if (single ? part == 256 : lanes < 4 || part > 32)
              report({unit, count, single, lanes, part}, copies, streams);
    }
  return 0;
}
