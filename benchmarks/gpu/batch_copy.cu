// Rate and repeatability of batched copies from pinned host memory, by unit, count and variant.
//
//   nvcc -O2 -std=c++17 -arch=sm_90a -o batch_copy benchmarks/gpu/batch_copy.cu && ./batch_copy
//
// One line per case: microseconds per unit of 11 repeats (lowest, median, highest), GB/s of the
// median. Units are scattered over 4 GiB of host memory and 4 GiB of the GPU's; 36 batches follow
// each other in a stream, as the layers of a step do. Variants: order of the source (stream, any),
// the hint to overlap with compute, and batches cut into parts.
#include "copies.cuh"

constexpr size_t kPool = size_t(4) << 30;
constexpr int kLayers = 36, kRepeats = 11;

struct Variant {
  const char* name;
  cudaMemcpySrcAccessOrder order;
  unsigned flags;
  size_t part;
};

double measure(char* gpu, char* host, size_t unit, size_t count, const Variant& variant,
               std::mt19937_64& random, cudaStream_t stream) {
  std::vector<void*> to(count);
  std::vector<const void*> from(count);
  std::vector<size_t> sizes(count, unit);
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = variant.order;
  attributes.flags = variant.flags;
  size_t index = 0;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin, stream));
  for (int layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < count; ++i) {
      to[i] = gpu + random() % (kPool / unit) * unit;
      from[i] = host + random() % (kPool / unit) * unit;
    }
    for (size_t first = 0; first < count; first += variant.part) {
      size_t some = std::min(variant.part, count - first);
      CHECK(cudaMemcpyBatchAsync(to.data() + first, from.data() + first, sizes.data() + first, some,
                                 &attributes, &index, 1, stream));
    }
  }
  CHECK(cudaEventRecord(end, stream));
  CHECK(cudaEventSynchronize(end));
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return ms * 1e3 / (double(count) * kLayers);
}

int main() {
  char *gpu, *host;
  CHECK(cudaMalloc(&gpu, kPool));
  CHECK(cudaHostAlloc(&host, kPool, cudaHostAllocDefault));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::mt19937_64 random(1);
  const size_t whole = size_t(1) << 40;
  const Variant variants[] = {
      {"stream", cudaMemcpySrcAccessOrderStream, 0, whole},
      {"any", cudaMemcpySrcAccessOrderAny, 0, whole},
      {"overlap", cudaMemcpySrcAccessOrderStream, cudaMemcpyFlagPreferOverlapWithCompute, whole},
      {"parts of 32", cudaMemcpySrcAccessOrderStream, 0, 32},
      {"parts of 128", cudaMemcpySrcAccessOrderStream, 0, 128},
  };
  std::printf("unit_bytes count variant us_low us_median us_high gb_per_s\n");
  for (size_t unit : {size_t(8192), size_t(16384), size_t(32768), size_t(65536)})
    for (size_t count : {size_t(64), size_t(192), size_t(640)})
      for (const Variant& variant : variants) {
        std::vector<double> us;
        measure(gpu, host, unit, count, variant, random, stream);
        for (int i = 0; i < kRepeats; ++i)
          us.push_back(measure(gpu, host, unit, count, variant, random, stream));
        std::sort(us.begin(), us.end());
        std::printf("%zu %zu %s %.3f %.3f %.3f %.2f\n", unit, count, variant.name, us.front(),
                    us[kRepeats / 2], us.back(), unit / us[kRepeats / 2] * 1e-3);
        std::fflush(stdout);
      }
  return 0;
}
